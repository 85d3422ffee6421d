"""A party's table for the job of a session: ids, columns and label, checked before anything leaves, and the digests by
which a table that was changed in between is known.
"""

import hashlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.linear.columns import check_complete
from coterie.aggregation.vertical.tables import TableSource, check_labels, read_columns
from coterie.client_sdk.party.alignment_ids import RowIds, read_ids
from coterie.client_sdk.party.job_methods import METHODS
from coterie.compute.data.sources.table_files import TableColumns, read_texts, table_names
from coterie.errors import ConfigurationError, CoterieError, DataError, InternalError, nearest
from coterie.protocol.conversion import from_text, to_text
from coterie.protocol.files import write_durably
from coterie.protocol.frames import as_columns
from coterie.protocol.private_files import make_private_folder
from coterie.protocol.session import PartyRole
from coterie.protocol.session_job import JobStep, SessionJob

FILE: Final = "table.json"


@dataclass(frozen=True)
class TableChoice:
    """Which columns of a table a party uses.

    ids: those that identify a row, in the same order at both parties. label: of the label owner alone.
    columns: those to learn from; all but ids and label when not given.
    """

    ids: tuple[str, ...] = ()
    label: str | None = None
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class JobTable:
    """A party's rows.

    ids: normalised; None where the job has no step that needs them.
    id_cells: the cells of the id columns as they are, by column.
    columns: the names of those to learn from. numbers: they and the label, ``[rows]`` each.
    """

    ids: RowIds | None
    id_cells: TableColumns = field(repr=False)
    columns: tuple[str, ...]
    label: str | None
    numbers: Mapping[str, NDArray[np.float64]] = field(repr=False)

    def __len__(self) -> int:
        return len(next(iter((*self.numbers.values(), *self.id_cells.values()))))

    def taken(self, rows: NDArray[np.int64] | None) -> dict[str, NDArray[np.float64]]:
        """Columns and label of these rows, in this order; of all where none are given."""
        return {name: values if rows is None else values[rows] for name, values in self.numbers.items()}

    def digests(self) -> dict[str, str]:
        """SHA-256 (hex) of each column. They never leave the party's folder: values can be guessed by them."""
        found = {name: hashlib.sha256(values.tobytes()).hexdigest() for name, values in self.numbers.items()}
        for name, cells in self.id_cells.items():
            digest = hashlib.sha256()
            for text in map(str, cells):
                digest.update(len(text).to_bytes(4, "big") + text.encode("utf-8", "surrogatepass"))
            found[name] = digest.hexdigest()
        return found


@dataclass(frozen=True, kw_only=True)
class KeptTable:
    """What is kept of a table: the digest of each column."""

    columns: Mapping[str, str]


@contextmanager
def at_step(own: PartyRole, step: JobStep) -> Generator[None]:
    """Let every error within name the party and the step."""
    try:
        yield
    except InternalError:
        raise
    except CoterieError as error:
        message = f"{own.party} (role {own.name}), step {step}: {error.message}"
        raise type(error)(message, hint=error.hint, code=error.reason, **error.details) from error


def read_job_table(source: TableSource, choice: TableChoice, job: SessionJob, own: PartyRole) -> JobTable:
    """The table of a party for a job, whole and checked. No other column is read.

    Raises ConfigurationError (``job_columns``, ``extra_missing``), DataError (``data_missing``, ``data_cell``,
    ``data_dtype``, ``data_lengths``, ``data_empty``, ``ids_missing``, ``ids_repeated``, ``ids_kind``), each with party,
    step and column, and none with what is in a cell.
    """
    told = Path(source).name if isinstance(source, str | Path) else "the table given"
    names = _names(source, told, own)
    columns = _columns(choice, names, job, own)
    with at_step(own, "train"):
        for name in (*choice.ids, *columns, *((choice.label,) if choice.label else ())):
            _check_name(name, names, told)
    label = () if choice.label is None else (choice.label,)
    ids: RowIds | None = None
    with at_step(own, "align" if "align" in job.steps else "predict"):
        cells = _cells(source, choice.ids, told)
        if "align" in job.steps:
            ids = read_ids(cells, choice.ids, source=told)
    with at_step(own, "train"):
        given = str(source) if isinstance(source, Path) else source
        numbers = read_columns(given, (*columns, *label), told)
        method = METHODS[job.method.method]
        if method.complete:
            check_complete({name: numbers[name] for name in columns}, told)
        for name in label:
            check_labels(numbers[name], np.zeros(len(numbers[name]), np.bool_), name, method.labels(job), told)
    return JobTable(ids, cells, columns, choice.label, numbers)


def keep_table(table: JobTable, folder: Path, own: PartyRole, *, is_fixed: bool) -> None:
    """Keep the digests of a table, or compare them with those that were kept.

    is_fixed: whether partners build on the table as it was.
    Raises DataError (``table_changed``) with the column.
    """
    place = folder / FILE
    now = table.digests()
    kept = KeptTable(columns=now)
    if not (is_fixed and place.exists()):
        make_private_folder(folder)
        write_durably(place, to_text(kept).encode(), mode=0o600)
        return
    before = from_text(KeptTable, place.read_text(encoding="utf-8")).columns
    changed = next((name for name in (*before, *now) if before.get(name) != now.get(name)), None)
    if changed is None:
        return
    what = (
        f"column {changed!r} was not chosen"
        if changed not in before
        else f"column {changed!r} was chosen, and is not now"
        if changed not in now
        else f"column {changed!r} was another"
    )
    raise DataError(
        f"{own.party} (role {own.name}), step train: the table was changed: {what} when this job began.",
        hint="Put the table back as it was and choose the same columns; a changed table needs a new session.",
        code="table_changed",
        column=changed,
    )


def _names(source: TableSource, told: str, own: PartyRole) -> tuple[str, ...]:
    with at_step(own, "train"):
        if isinstance(source, str | Path):
            return table_names(source)
        return tuple(map(str, as_columns(source, told)))


def _columns(choice: TableChoice, names: Sequence[str], job: SessionJob, own: PartyRole) -> tuple[str, ...]:
    """The columns to learn from. Raises ConfigurationError (``job_columns``)."""
    is_owner = own.name == job.label_owner
    label = () if choice.label is None else (choice.label,)
    rest = tuple(name for name in names if name not in (*choice.ids, *label))
    columns = rest if choice.columns is None else choice.columns
    chosen = (*choice.ids, *label, *columns)
    twice = next((name for name in chosen if chosen.count(name) > 1), None)
    rules: tuple[tuple[bool, JobStep, str, str], ...] = (
        (
            is_owner or choice.label is None,
            "train",
            f"the column {choice.label!r} is named as a label, and the label is for the role {job.label_owner} to give",
            "Leave --label out; a column of yours that is not to be learned from is left out of --columns.",
        ),
        (not is_owner or choice.label is not None, "train", "no column is named as the label", "Give --label COLUMN."),
        (
            bool(choice.ids) or "align" not in job.steps,
            "align",
            "no column is named that identifies a row",
            "Give --id COLUMN, once for each column of an id.",
        ),
        (
            twice is None,
            "train",
            f"the column {twice!r} is named twice, among ids, label and columns",
            "Name each column for one purpose, once.",
        ),
        (is_owner or bool(columns), "train", "there is no column to learn from", "Give --columns."),
    )
    for good, step, why, hint in rules:
        if not good:
            raise ConfigurationError(
                f"{own.party} (role {own.name}), step {step}: {why}.", hint=hint, code="job_columns"
            )
    return columns


def _check_name(name: str, names: Sequence[str], told: str) -> None:
    if name not in names:
        near = nearest(name, names)
        raise DataError(
            f"{told}: there is no column {name!r}.",
            hint=f"Did you mean {near}?" if near else f"There are {', '.join(names[:20])}.",
            code="data_missing",
            column=name,
        )


def _cells(source: TableSource, ids: Sequence[str], told: str) -> TableColumns:
    if isinstance(source, str | Path):
        return read_texts(source, ids)
    given: Any = as_columns(source, told)
    return {name: given[name] for name in ids}
