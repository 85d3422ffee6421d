"""`coterie server`: the coordinator."""

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coterie.cli.extras import require
from coterie.cli.output import JsonOption, Output
from coterie.cli.places import HOME, PORT

if TYPE_CHECKING:
    from coterie.server.serve import Started


def server(
    host: Annotated[str, typer.Option(envvar="COTERIE_HOST", help="The address to bind.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, envvar="COTERIE_PORT", help="The port to bind; 0 chooses a free one.")
    ] = PORT,
    folder: Annotated[
        Path, typer.Option(envvar="COTERIE_FOLDER", help="Where the coordinator keeps everything.")
    ] = HOME / "server",
    database_url: Annotated[
        str | None,
        typer.Option(
            envvar="COTERIE_DATABASE_URL",
            help="The database, sqlite:////path/to/file.db (default: a file in the folder). Only SQLite is supported.",
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(envvar="COTERIE_TLS_CERT", help="PEM certificate chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(envvar="COTERIE_TLS_KEY", help="PEM private key.")] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            envvar="COTERIE_INSECURE",
            help="Bind beyond loopback without TLS (behind a proxy that terminates it).",
        ),
    ] = False,
    public_url: Annotated[
        str | None,
        typer.Option(
            envvar="COTERIE_PUBLIC_URL",
            help="Where devices reach this coordinator, behind a proxy that changes the Host header or the path.",
        ),
    ] = None,
    cors_origins: Annotated[
        str,
        typer.Option(
            envvar="COTERIE_CORS_ORIGINS", help="Origins of web pages that may use the API, separated by commas."
        ),
    ] = "",
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(envvar="COTERIE_LOG_LEVEL", help="The lowest level that is logged; logs are JSON on stderr."),
    ] = "warning",
    ledger_checkpoints: Annotated[
        Path | None,
        typer.Option(
            envvar="COTERIE_LEDGER_CHECKPOINTS",
            help="A folder on another disk, against which privacy ledgers are checked at every start.",
        ),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(envvar="COTERIE_UPSTREAM", help="Be an edge aggregator of the coordinator at this URL."),
    ] = None,
    upstream_token: Annotated[
        str | None,
        typer.Option(envvar="COTERIE_UPSTREAM_TOKEN", help="An edge token, needed to join it."),
    ] = None,
    upstream_ca: Annotated[
        Path | None,
        typer.Option(envvar="COTERIE_UPSTREAM_CA", help="PEM of the authority that signed its certificate."),
    ] = None,
    edge_name: Annotated[
        str | None,
        typer.Option(envvar="COTERIE_EDGE_NAME", help="Its name above (default: one with this host's name)."),
    ] = None,
    edge_cohort: Annotated[
        int, typer.Option(min=1, envvar="COTERIE_EDGE_COHORT", help="Updates wanted in an edge aggregator's round.")
    ] = 10,
    edge_over_selection: Annotated[
        float,
        typer.Option(min=1, max=10, envvar="COTERIE_EDGE_OVER_SELECTION", help="Tasks handed out for each of them."),
    ] = 1.0,
    edge_min_clients: Annotated[
        int,
        typer.Option(min=1, envvar="COTERIE_EDGE_MIN_CLIENTS", help="Least number of clients in one of its updates."),
    ] = 2,
    edge_deadline: Annotated[
        float | None,
        typer.Option(
            envvar="COTERIE_EDGE_DEADLINE_S",
            help="Deadline of its rounds in seconds (default: 4/5 of the coordinator's above).",
        ),
    ] = None,
    stop_with_stdin: Annotated[
        bool,
        typer.Option("--stop-with-stdin", help="Stop when standard input closes, as when the parent process ends."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run the coordinator until Ctrl-C. What it has accepted survives any stop; start it again to go on."""
    require("server", command="server")
    from coterie.server.serve import serve
    from coterie.server.settings import Settings

    output = Output(json)
    if upstream is None and any(each is not None for each in (upstream_token, upstream_ca, edge_deadline, edge_name)):
        raise typer.BadParameter(
            "--upstream-token, --upstream-ca, --edge-deadline and --edge-name (or their variables) are an edge "
            "aggregator's; they need --upstream."
        )
    given: dict[str, Any] = {
        "database_url": database_url,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "public_url": public_url,
        "ledger_checkpoints": ledger_checkpoints,
        "upstream": upstream,
        "upstream_token": upstream_token,
        "upstream_ca": upstream_ca,
        "edge_deadline_s": edge_deadline,
        "edge_name": edge_name,
    }
    settings = Settings(
        host=host,
        port=port,
        folder=folder,
        insecure=insecure,
        log_level=log_level,
        cors_origins=cors_origins,
        edge_cohort=edge_cohort,
        edge_over_selection=edge_over_selection,
        edge_min_clients=edge_min_clients,
        **{key: value for key, value in given.items() if value is not None},
    )
    if stop_with_stdin:
        threading.Thread(target=_stop_when_stdin_closes, daemon=True).start()
    serve(settings, on_ready=lambda started: _print_started(output, started))
    output.event("stopped")
    output.say("The coordinator has stopped; start it again in this folder to go on where it was.")


def _print_started(output: Output, started: "Started") -> None:
    output.event(
        "ready",
        url=started.url,
        docs=started.docs,
        folder=started.folder,
        admin_token_file=started.admin_token_file,
        pid=os.getpid(),
    )
    output.say(f"Coordinator at {started.url}")
    output.say(f"  API documentation     {started.docs}")
    output.say(f"  state                 {started.folder}")
    output.say(f"  administrator's token {started.admin_token_file} (keep it secret)")
    output.say("  stop                  Ctrl-C")


def _stop_when_stdin_closes() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
