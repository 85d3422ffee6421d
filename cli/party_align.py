"""`coterie party align`: which rows of a table are about somebody whom the partner has rows of too."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.consent import confirm
from coterie.cli.jobs import leaving
from coterie.cli.output import JsonOption, Output
from coterie.cli.party import (
    FOLDER,
    FirstUseOption,
    SessionOption,
    StageOption,
    StoreOption,
    TableArgument,
    WaitOption,
    open_party,
)
from coterie.cli.places import AuthorityOption, file_to_write
from coterie.cli.written_rows import write_rows
from coterie.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.client_sdk.party.party import Session


def align(
    table: TableArgument,
    column: Annotated[
        list[str], typer.Option("--id", metavar="COLUMN", help="A column that identifies a row; may be repeated.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where the common rows are written, in common order.")
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="Learn only how many ids are common, not which.")] = False,
    told: Annotated[
        str | None, typer.Option("--told", metavar="ROLE", help="The role that alone is told (default: both are).")
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", metavar="RULE", help="How ids are normalised (default: nfc, strip and casefold)."),
    ] = None,
    minimum: Annotated[
        int | None, typer.Option(min=1, help="Tell nobody anything of fewer common ids than this (default: 10).")
    ] = None,
    most: Annotated[
        int | None, typer.Option(min=1, help="Most ids that the partner may bring (default: 10 million).")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that reckon.")] = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before anything leaves.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    stage: StageOption = None,
    session: SessionOption = None,
    trust_first_use: FirstUseOption = False,
    wait: WaitOption = None,
    store: StoreOption = FOLDER,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Find the rows that both parties have, without showing the ids of others. Both run this at about the same time."""
    from coterie.client_sdk.party import alignment
    from coterie.client_sdk.party.alignment_ids import read_ids
    from coterie.privacy.psi.ids import DEFAULT_RULES

    output = Output(json)
    place = _place(out, count=count, force=force)
    header, cells = _table(table)
    ids = read_ids(
        cells,
        column,
        rules=DEFAULT_RULES if rule is None else rule,
        source=table.name,
    )
    with open_party(store, output, ca, trusts_first_use=trust_first_use) as party:
        joined = party.session(session)
        where = _stage(joined, stage)
        output.event("leaving", stage=where, ids=len(ids.ids), columns=ids.columns, rules=ids.rules, told=told)
        for line in leaving(joined, ids, told, count=count):
            output.say(line)
        confirm(yes=yes)
        asked = alignment.count_common if count else alignment.align
        found = asked(
            joined,
            ids,
            told=told,
            minimum=minimum or alignment.MINIMUM,
            most=most or alignment.MOST,
            stage=where,
            workers=workers,
            patience_s=wait,
        )
    common = found.count if isinstance(found, alignment.Aligned) else found
    rows: list[int] | None = None
    if isinstance(found, alignment.Aligned) and found.rows is not None:
        rows = found.rows.tolist()
    if rows is not None and place is not None:
        write_rows(place, header, ([cells[name][row] for name in header] for row in rows))
    wrote = None if rows is None or place is None else str(place)
    output.event("aligned", stage=where, ids=len(ids.ids), common=common, path=wrote)
    if common is None:
        output.say(f"Done. Only the role {told} is told what is common.")
    else:
        output.say(f"{common} of {len(ids.ids)} ids are common.")
    if wrote is not None:
        output.say(f"These rows are in {wrote}; row i is about the same person at both parties.")


def _stage(session: "Session", stage: str | None) -> str:
    from coterie.client_sdk.party.alignment import STAGE

    first, *others = session.membership.terms.stages
    return stage or (STAGE if others or first == STAGE else first)


def _place(out: Path | None, *, count: bool, force: bool) -> Path | None:
    """Where the rows go; None where only a count is asked for."""
    if count:
        if out is not None:
            raise InputError("--count learns no rows, so there is nothing for --out.", code="usage")
        return None
    if out is None:
        raise InputError(
            "Where do the common rows go?", hint="Give --out FILE, or --count for their number.", code="usage"
        )
    place = file_to_write(out)
    if place.exists() and not force:
        raise InputError(f"{place} already exists.", hint="Name another file, or give --force.", code="file_unusable")
    return place


def _table(path: Path) -> "tuple[tuple[str, ...], dict[str, Sequence[str]]]":
    """The names of a table's columns, and all its cells as they are written."""
    from coterie.compute.data.sources.table_files import read_texts, table_names

    header = table_names(path)
    cells = read_texts(path, header)
    return header, {name: ["" if cell is None else str(cell) for cell in cells[name]] for name in header}
