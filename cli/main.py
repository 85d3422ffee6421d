"""The program: its commands, and the one place where an exception becomes an exit code."""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from coterie.cli import (
    audit,
    budget,
    clients,
    demo,
    devices,
    doctor,
    evaluate,
    events,
    export,
    identities,
    models,
    new,
    party,
    party_align,
    party_run,
    policy,
    populations,
    prepare,
    query,
    server,
    sessions,
    simulate,
    stop,
    submit,
    tokens,
    watch,
)
from coterie.cli import list as list_
from coterie.cli import report as report_
from coterie.cli.failures import INTERRUPTED, report
from coterie.version import __version__

# Name, function, and what it is for in one line.
COMMANDS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("demo", demo.demo, "Watch it work: real digits, a coordinator, ten clients."),
    ("new", new.new, "Write a starter project that runs."),
    ("prepare", prepare.prepare, "Agree on a schema's statistics by sums over clients."),
    ("simulate", simulate.simulate, "Train an experiment with virtual clients."),
    ("server", server.server, "Run the coordinator."),
    ("submit", submit.submit, "Start an experiment on a coordinator."),
    ("list", list_.list_, "List experiments, populations or devices."),
    ("watch", watch.watch, "Show an experiment's rounds as they end."),
    ("events", events.events, "Print what happened on a coordinator."),
    ("query", query.query, "Ask devices about their rows, without training."),
    ("report", report_.report, "Draw the curves of a run."),
    ("evaluate", evaluate.evaluate, "Measure scores against labels, or what a partner adds."),
    ("policy", policy.policy, "Show or set the floor under a population's experiments."),
    ("stop", stop.stop, "Stop an experiment."),
    ("export", export.export, "Write a model for inference, smaller and checked."),
    ("doctor", doctor.doctor, "Check this machine."),
)

app = typer.Typer(
    name="coterie",
    help="Federated learning in which the training step is a file.",
    epilog="Start with `coterie demo`, or `coterie new my-project`. Every command takes --json.",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def coterie(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated learning in which the training step is a file."""


for _name, _command, _purpose in COMMANDS:
    app.command(_name, short_help=_purpose)(_command)
app.add_typer(clients.app, name="client")
app.add_typer(models.app, name="models")
app.add_typer(devices.app, name="devices")
app.add_typer(populations.app, name="populations")
app.add_typer(tokens.app, name="tokens")
app.add_typer(sessions.app, name="sessions")
party.app.command("align")(party_align.align)
party.app.command("run")(party_run.run)
app.add_typer(party.app, name="party")
app.add_typer(audit.app, name="audit")
app.add_typer(budget.app, name="budget")
app.add_typer(identities.app, name="identities")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `coterie` with these arguments (the process's own when absent) and exit with a code of docs/cli.md."""
    words = sys.argv[1:] if arguments is None else [*arguments]
    sys.exit(run(words))


def run(words: Sequence[str]) -> int:
    """Run one command and return its exit code; whatever went wrong has been said on standard error."""
    try:
        code = typer.main.get_command(app).main([*words] or ["--help"], prog_name="coterie", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except SystemExit as leaving:
        # Typer leaves with 1 when the reader of our output has left, as `head` does; that is no failure.
        if isinstance(leaving.__context__, BrokenPipeError):
            return report(leaving.__context__, as_json=False)
        raise
    except Exception as error:
        return report(error, as_json="--json" in words)
    if code == INTERRUPTED:
        # Typer makes this code of Ctrl-C in a command, without a word.
        print("\ninterrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
