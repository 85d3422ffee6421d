"""`coterie party run`: a party does the job of its session, with its table, step by step."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.consent import confirm
from coterie.cli.jobs import job_lines, leaving_lines
from coterie.cli.output import JsonOption, Output
from coterie.cli.party import FOLDER, FirstUseOption, SessionOption, StoreOption, TableArgument, WaitOption, open_party
from coterie.cli.places import AuthorityOption, file_to_write
from coterie.cli.written_rows import write_rows
from coterie.errors import InputError

if TYPE_CHECKING:
    from coterie.aggregation.vertical.report import FitReport
    from coterie.client_sdk.party.job import JobOutcome
    from coterie.client_sdk.party.job_table import JobTable
    from coterie.client_sdk.party.party import Session

_STEPS = {
    "align": "Aligning: which rows do both parties have?",
    "train": "Training.",
    "evaluate": "Evaluating.",
    "predict": "Predicting.",
}


def run(
    table: TableArgument,
    column: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="COLUMN", help="A column that identifies a row; may be repeated."),
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", metavar="COLUMN", help="The column of labels, at the label owner alone.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns", metavar="A,B,...", help="The columns to learn from (default: all but ids and the label)."
        ),
    ] = None,
    held_out: Annotated[
        float | None,
        typer.Option(
            "--held-out", metavar="SHARE", help="Of common rows, not trained on; at the label owner (default: none)."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where the label owner's predictions are written, as CSV."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Where the signed report of the session is written.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes that reckon.")] = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before anything leaves.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite files that are there before the job begins.")
    ] = False,
    session: SessionOption = None,
    trust_first_use: FirstUseOption = False,
    wait: WaitOption = None,
    store: StoreOption = FOLDER,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Do what the session is for, with the partners, who run the same. Started again, it goes on where it was."""
    from coterie.client_sdk.party.job import own_role, run_job, session_job
    from coterie.client_sdk.party.job_table import TableChoice, read_job_table

    output = Output(json)
    chosen = None if columns is None else tuple(name.strip() for name in columns.split(",") if name.strip())
    choice = TableChoice(ids=tuple(column or ()), label=label, columns=chosen)
    with open_party(store, output, ca, trusts_first_use=trust_first_use) as party:
        joined = party.session(session)
        job, own = session_job(joined), own_role(joined)
        for line in job_lines(joined.membership.terms):
            output.say(line)
        _check_out(out, joined)
        places = [None if path is None else _place(path, joined, force=force) for path in (out, report)]
        rows = read_job_table(table, choice, job, own)
        lines = leaving_lines(joined, rows)
        output.event("leaving", role=own.name, rows=len(rows), columns=rows.columns, label=label, lines=lines)
        for line in lines:
            output.say(line)
        confirm(yes=yes)

        def tell(event: dict[str, Any]) -> None:
            output.event(**event)
            _say(output, event, len(rows))

        found = run_job(joined, rows, held_out=held_out, processes=processes, patience_s=wait, on_event=tell)
        if found.evaluation is not None:
            _say_evaluation(output, found, found.evaluation)
        if places[0] is not None:
            _write_scores(output, places[0], rows, found)
        if places[1] is not None:
            from coterie.protocol.files import write_durably

            places[1].parent.mkdir(parents=True, exist_ok=True)
            write_durably(places[1], joined.report().to_bytes())
            output.say(f"The signed report of what this party told and was told is in {places[1]}.")
        output.event("done", rows=len(found.rows), out=None if out is None else str(out))
        output.say("Done.")


def _check_out(out: Path | None, session: "Session") -> None:
    from coterie.client_sdk.party.job import session_job

    job = session_job(session)
    if out is not None and (session.membership.role != job.label_owner or "predict" not in job.steps):
        raise InputError(
            f"--out takes the predictions, which the role {job.label_owner} gets in the step predict.",
            hint="Leave --out out.",
            code="usage",
        )


def _place(path: Path, session: "Session", *, force: bool) -> Path:
    """A file to write. One that is there already may be of this very job, begun by an earlier program."""
    place = file_to_write(path)
    if place.exists() and not force and not session.folder_of_job().exists():
        raise InputError(f"{place} already exists.", hint="Name another file, or give --force.", code="file_unusable")
    return place


def _say(output: Output, event: dict[str, Any], rows: int) -> None:
    match event["event"]:
        case "step":
            output.say(_STEPS[event["step"]])
        case "aligned":
            output.say(f"{event['common']} of {rows} rows are common.")
        case "progress":
            output.say(f"  {event['done']} of {event['of']} {event['unit']}")
        case _:
            pass


def _say_evaluation(output: Output, found: "JobOutcome", report: "FitReport") -> None:
    held = 0 if found.held_out is None else int(found.held_out.sum())
    output.event(
        "evaluation",
        train=report.train.to_json(),
        held_out=None if report.held_out is None else report.held_out.to_json(),
        stability=report.stability,
    )
    output.say(f"On {len(found.rows) - held} rows that were trained on, and {held} held out:")
    output.say(report.text())


def _write_scores(output: Output, place: Path, table: "JobTable", found: "JobOutcome") -> None:
    if found.scores is None:
        return
    rows, scores = found.rows.tolist(), found.scores.tolist()
    cells = table.id_cells or {"row": [str(number + 1) for number in range(len(table))]}
    lines = ([*(cells[name][row] for name in cells), repr(score)] for row, score in zip(rows, scores, strict=True))
    write_rows(place, [*cells, "score"], lines)
    output.event("predicted", rows=len(rows), path=str(place))
    output.say(f"{len(rows)} predictions are in {place}.")
