"""`coterie report`: the curves of a run as a picture, and its table."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.extras import require
from coterie.cli.output import JsonOption, Output, figure, size
from coterie.cli.places import (
    DEFAULT_URL,
    HOME,
    AuthorityOption,
    TokenOption,
    UrlOption,
    access_token,
    file_to_write,
    folder_name,
)
from coterie.errors import ConfigurationError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coterie.aggregation.history import History
    from coterie.aggregation.report.panels import Panel

SIMULATIONS, REPORTS = HOME / "simulations", HOME / "reports"
_DRAWN = (".png", ".pdf", ".jpg")
_ENDINGS = (".svg", ".csv", *_DRAWN)
_COLUMNS = 3
_NO_CHARACTERS = "Some characters are not in matplotlib's font; a picture that ends in .svg has them all."
# The columns of a comparison, and what each shows of a run's summary.
_COMPARED: "Mapping[str, Callable[[Mapping[str, Any]], str]]" = {
    "rounds": lambda run: f"{run['committed']}/{run['rounds']}",
    "loss": lambda run: figure(run["loss"]),
    "accuracy": lambda run: figure(run["accuracy"]),
    "up": lambda run: size(run["bytes_up"]),
    "down": lambda run: size(run["bytes_down"]),
    "sec": lambda run: figure(run["seconds"], 1),
    "epsilon": lambda run: figure(run["epsilon"], 3),
}


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="A run's folder or file of --json lines, a simulation's name, or an experiment on a coordinator; "
            "several are compared.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The picture to write: .svg or .csv, with matplotlib also .png and .pdf.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Draw a run: loss, accuracy, worst decile of clients, bytes, seconds, failures and privacy per round; or compare
    several.
    """
    from coterie.aggregation.report.panels import panels
    from coterie.aggregation.report.svg import svg
    from coterie.aggregation.run_files import write_run
    from coterie.protocol.files import make_folder, write_durably

    output = Output(json)
    if len(runs) > 1:
        _compare(output, runs, out or REPORTS / "comparison.svg", lambda run: _fetched(run, url, token, ca))
        return
    run = runs[0]
    found = _stored(run)
    if found is None:
        name, history = _fetched(run, url, token, ca)
        if not panels(history):
            raise _nothing_to_draw(f"{name} can be drawn yet", f"Wait for one: coterie watch {quote(name)}")
        folder = write_run(REPORTS / folder_name(name), name, history)
    else:
        name, history, folder = found
        if folder.parent == SIMULATIONS and not Path(run).is_file() and folder != Path(run):
            output.say(f"The run is the simulation in {folder}; an experiment of its name has an id to call it by.")
    path = file_to_write(out or folder / "report.svg")
    ending = _ending(path)
    if ending != ".csv" and not panels(history):
        raise _nothing_to_draw(f"{name} can be drawn", f"Write its table: --out {path.with_suffix('.csv')}")
    make_folder(path.parent)
    if ending in _DRAWN:
        require("plot", command="report")
        if _draw(name, panels(history), path):
            output.say(_NO_CHARACTERS)
    else:
        write_durably(path, (history.to_csv() if ending == ".csv" else svg(name, panels(history))).encode())
    _print_summary(output, name, history, path)


def _compare(output: Output, runs: "Sequence[str]", out: Path, fetched: "Callable[[str], tuple[str, History]]") -> None:
    """Draw several runs in common panels, or write their rounds as one table, and print a line for each."""
    from coterie.aggregation.report.comparison import compared, summary
    from coterie.aggregation.report.svg import svg
    from coterie.protocol.files import make_folder, write_durably

    ending = _ending(file_to_write(out))
    found = {run: stored[1] if (stored := _stored(run)) else fetched(run)[1] for run in runs}
    drawn = compared(found)
    if ending != ".csv" and not drawn:
        raise _nothing_to_draw("these runs can be drawn", f"Write their table: --out {out.with_suffix('.csv')}")
    make_folder(out.parent)
    if ending in _DRAWN:
        require("plot", command="report")
        if _draw("", drawn, out):
            output.say(_NO_CHARACTERS)
    elif ending == ".csv":
        tables = [(run, history.to_csv().splitlines()) for run, history in found.items()]
        write_durably(out, _of_runs(tables).encode())
    else:
        write_durably(out, svg("", drawn).encode())
    told = {run: summary(history) for run, history in found.items()}
    for run, values in told.items():
        output.event("report", name=run, path=out, **values)
    output.table(
        ["run", *_COMPARED],
        [[run, *(shown(values) for shown in _COMPARED.values())] for run, values in told.items()],
        empty="Nothing to compare.",
    )
    output.say(f"Drawn: {out}")


def _of_runs(tables: "Sequence[tuple[str, list[str]]]") -> str:
    """One table for several runs: a column for the run, then all columns that any of them has."""
    import csv
    import io

    heads = [next(csv.reader(lines[:1])) for _, lines in tables]
    columns = [*dict.fromkeys(name for head in heads for name in head)]
    text = io.StringIO()
    writer = csv.DictWriter(text, ["run", *columns], restval="", lineterminator="\n")
    writer.writeheader()
    for run, lines in tables:
        writer.writerows({"run": run, **row} for row in csv.DictReader(lines))
    return text.getvalue()


def _ending(path: Path) -> str:
    """What a file's ending says that is to be written."""
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise InputError(
            f"{path} cannot be written: its extension must be one of {', '.join(_ENDINGS)}.",
            hint=f"Name it {path.with_suffix('.svg')}.",
            code="report_format",
        )
    return ending


def _nothing_to_draw(what: str, hint: str) -> InputError:
    """The refusal of a picture without a curve."""
    return InputError(f"Nothing to draw for {what}: none of its rounds measured it.", hint=hint, code="run_unreadable")


def _stored(run: str) -> "tuple[str, History, Path] | None":
    """The run that lies in this folder, this file, or under this name among the simulations made here."""
    from coterie.aggregation.run_files import ROUNDS, read_run

    places = (Path(run), SIMULATIONS / run, SIMULATIONS / folder_name(run))
    for path in places:
        if path.is_file() or (path / ROUNDS).is_file():
            return *read_run(path), path if path.is_dir() else path.parent
    if Path(run).is_dir():
        read_run(Path(run))
    if Path(run).suffix or len(Path(run).parts) > 1:
        raise InputError(
            f"There is no folder or file {run}.",
            hint="Name a run's folder, a simulation's name or an experiment's; `coterie list` shows the experiments.",
            code="run_unreadable",
        )
    return None


def _fetched(run: str, url: str, token: str | None, ca: Path | None) -> "tuple[str, History]":
    """The run on a coordinator."""
    from coterie.cli.watch import find_run
    from coterie.client_sdk.control.control import Control

    try:
        known = access_token(token)
    except ConfigurationError as error:
        found = sorted(path.name for path in SIMULATIONS.iterdir()) if SIMULATIONS.is_dir() else []
        here = f"but {', '.join(found)}" if found else "nor any other"
        raise InputError(
            f"There is no simulation {run!r} in this folder {here}, and no coordinator to ask.",
            hint="Name one of them, or run the command in the folder where `coterie server` was started.",
            code="run_unreadable",
        ) from error
    with Control(url, token=known, ca=ca) as control:
        found = find_run(control, run)
        return found.name, found.history()


def _print_summary(output: Output, name: str, history: "History", path: Path) -> None:
    from coterie.aggregation.report.comparison import summary
    from coterie.aggregation.report.hints import clipped, hints

    worst = history.curve("fairness.accuracy")
    told: dict[str, Any] = {
        "name": name,
        **summary(history),
        "worst_decile_accuracy": worst[-1][1] if worst else None,
        "clipped": clipped(history),
        "path": path,
    }
    output.event("report", **told)
    output.say(
        f"{name}: {len(history)} rounds, {told['committed']} committed; accuracy {figure(told['accuracy'])}, worst "
        f"decile of clients {figure(told['worst_decile_accuracy'])}; {size(told['bytes_up'])} up, "
        f"{size(told['bytes_down'])} down; {figure(told['seconds'], 1)} s."
    )
    if told["epsilon"] is not None:
        output.say(f"Privacy spent: epsilon {figure(told['epsilon'])} at delta {told['delta']:g}.")
    for hint in hints(history):
        output.say(hint)
    output.say(f"Drawn: {path}")


def _draw(name: str, drawn: "Sequence[Panel]", path: Path) -> bool:
    """The same panels by matplotlib. Whether its font lacks characters."""
    import warnings

    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from coterie.aggregation.report.svg import COLOURS

    lines = -(-len(drawn) // _COLUMNS)
    figure: Any = Figure(figsize=(4.4 * min(_COLUMNS, len(drawn)), 0.5 + 2.9 * lines), layout="constrained")
    figure.suptitle(name)
    places: Any = figure.subplots(lines, min(_COLUMNS, len(drawn)), squeeze=False)
    axes = list(places.flat)
    for panel, place in zip(drawn, axes, strict=False):
        for at, series in enumerate(panel.series):
            if not series.points:
                continue
            rounds, values = zip(*series.points, strict=True)
            place.plot(
                rounds, values, color=COLOURS[at % len(COLOURS)], label=series.name,
                linewidth=1 if series.faint else 2, alpha=0.55 if series.faint else 1.0,
                marker="o" if len(rounds) == 1 else None,
            )  # fmt: skip
        for mark in panel.marks:
            place.axvline(mark, color="#999999", linestyle="--", linewidth=1)
        title = f"{panel.title} ({panel.unit})" if panel.unit else panel.title
        place.set_title(f"{title}: {panel.note}" if panel.note else title, fontsize=10)
        if panel.from_zero:
            place.set_ylim(bottom=0)
        place.xaxis.set_major_locator(MaxNLocator(integer=True))
        place.grid(color="#e4e4e4")
        place.legend(fontsize=8, frameon=False)
    for spare in axes[len(drawn) :]:
        spare.set_axis_off()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        figure.savefig(path, dpi=120)
    return any("missing from" in str(one.message) for one in told)
