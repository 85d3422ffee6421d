"""`coterie simulate`: the experiment with many virtual clients, on this machine or a cluster."""

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from coterie.cli.failures import FAILED
from coterie.cli.output import JsonOption, Output
from coterie.cli.places import HOME, file_to_write, folder_name, set_aside
from coterie.cli.promises import promise, promised
from coterie.cli.rounds import RoundTable, advise
from coterie.errors import ExperimentError


def simulate(
    target: Annotated[str, typer.Argument(metavar="FILE[:NAME]", help="The file that makes the experiment.")],
    clients: Annotated[
        str,
        typer.Option(
            help="The name in FILE that holds, or returns, each client's data: files, folders or arrays by name."
        ),
    ] = "clients",
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds to run, instead of the experiment's own.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed, instead of the experiment's own.")] = None,
    engine: Annotated[
        str,
        typer.Option(help="Where clients work: threads, processes, batched, batched:N, auto, ray:local or ray://HOST."),
    ] = "threads",
    workers: Annotated[int, typer.Option(min=1, help="Number of clients that train in parallel.")] = 1,
    trainer: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="A trainer of your own, for an ExternalModel.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the last round of the previous run.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write the model: infer.onnx, or weights.safetensors of an ExternalModel."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train with virtual clients: no coordinator, no network, the same arithmetic."""
    from coterie.aggregation.external_model import ExternalModel
    from coterie.cli.loading import call, load_experiment, override, split_target
    from coterie.simulation import simulate_full

    output = Output(json)
    started = time.perf_counter()
    experiment, module = load_experiment(target)
    experiment = override(experiment, rounds=rounds, seed=seed)
    shards = call(module, split_target(target)[0], clients)
    if not isinstance(shards, Sequence) or isinstance(shards, str):
        raise ExperimentError(
            f"{target}: `{clients}` is a {type(shards).__name__}, not a sequence with each client's data.",
            hint='For example: clients = ["data/site-1.csv", "data/site-2.csv"]',
            code="experiment_file",
        )
    sources = cast(Sequence[Any], shards)
    folder, external = HOME / "simulations" / folder_name(experiment.name), isinstance(experiment.model, ExternalModel)
    model = file_to_write(out or folder / ("weights.safetensors" if external else "infer.onnx"))
    if not resume and (kept := set_aside(folder)) is not None:
        output.say(f"The earlier run is kept in {kept}; --resume goes on with it instead.")
    title = f"{experiment.name}: {len(sources)} virtual clients"
    promise(output, experiment)
    with interruptible(output, folder), RoundTable(output, title) as table:
        result = simulate_full(
            experiment,
            sources,
            engine=engine,
            workers=workers,
            trainer=trainer,
            folder=folder,
            resume=resume,
            on_event=lambda event: show(table, event),
            watch=table.work,
        )
    rows = result.history.to_dicts()
    committed = [row for row in rows if row["state"] == "committed"]
    path: Path | None = None
    if committed:
        path = result.save_weights(model) if external else result.save_infer(model)
    output.event(
        "summary",
        rounds=len(committed),
        clients=len(sources),
        seconds=round(time.perf_counter() - started, 3),
        loss=committed[-1].get("loss") if committed else None,
        accuracy=committed[-1].get("accuracy") if committed else None,
        bytes_up=sum(row.get("bytes_up") or 0 for row in rows),
        bytes_down=sum(row.get("bytes_down") or 0 for row in rows),
        model=path,
        **promised(experiment),
    )
    advise(output, rows)
    if path is None:
        output.say("No round was committed, so there is no model; the table shows the causes.")
        raise typer.Exit(FAILED)
    if not table.rows:
        output.say(f"Nothing to do: all {len(rows)} rounds were done before; more with --rounds.")
    output.say(f"Model: {path}")
    output.say(f"Curves and tables: {folder}; coterie report {folder.name} draws them.")


@contextmanager
def interruptible(output: Output, folder: Path) -> Generator[None]:
    """Say at Ctrl-C what is left of the run, and how it goes on."""
    from coterie.simulation.checkpoint import FILE as CHECKPOINT

    try:
        yield
    except KeyboardInterrupt:
        if (folder / CHECKPOINT).exists():
            output.say(
                f"\nThe rounds that ended are kept in {folder}; the same command with --resume goes on after them."
            )
        else:
            output.say("\nNo round had ended, so nothing is kept.")
        raise


def show(table: RoundTable, event: Mapping[str, Any]) -> None:
    """Show the rounds; the end is told by the command itself."""
    if event["event"] == "round":
        table.add(event)
