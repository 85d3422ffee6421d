"""The partition as a value: whose rows are whose, how that came about, and how skewed it is."""

import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.errors import ConfigurationError, CoterieError
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.checked_rows import CheckedRows
from coterie.protocol.conversion import to_json
from coterie.protocol.files import make_folder, write_durably
from coterie.protocol.frames import Frame, as_columns
from coterie.protocol.tensors import read_file, write_file
from coterie.simulation.partition.changes import known_change
from coterie.simulation.partition.checks import Change, RowIndices, column, refuse, require, too_few
from coterie.simulation.partition.drawing import ENDINGS, Picture, draw, svg
from coterie.simulation.partition.skew import Skew

FORMAT = "coterie-partition-1"
MANIFEST_FILE, ROWS_FILE, DRAWING_FILE = "partition.json", "rows.safetensors", "partition.svg"
MOST_CLASSES = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Partition(Sequence[RowIndices]):
    """Row indices of each client, rising, as a sequence; made by a partitioner.

    method, seed, parameters: which, and with what.
    total: rows of the data set.
    labels: of every row where they are known; they are counted in the manifest.
    names: of the clients, where the data names them.
    changes: what `split` does to the clients' rows.
    Raises ConfigurationError: ``partition_empty`` for a client without rows, ``partition_invalid`` for a row that two
    clients have or that there is not.
    """

    method: str
    total: int
    rows: tuple[RowIndices, ...]
    seed: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    labels: NDArray[Any] | None = field(default=None, repr=False)
    names: tuple[str, ...] | None = None
    changes: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        empty = next((client for client, rows in enumerate(self.rows) if not len(rows)), None)
        if empty is not None or not self.rows:
            who = "There are no clients" if empty is None else f"Client {empty} of {len(self.rows)} has no rows"
            raise too_few(f"{who}, and {self.method} was asked for clients that have some.")
        taken = np.concatenate(self.rows)
        require(bool(((taken >= 0) & (taken < self.total)).all()), f"a row lies outside 0..{self.total - 1}")
        require(len(np.unique(taken)) == len(taken), "a row is assigned twice")
        require(
            self.labels is None or len(self.labels) == self.total,
            f"there must be a label for each of the {self.total} rows",
        )
        require(
            self.names is None or len(self.names) == len(self.rows),
            f"there must be a name for each of the {len(self.rows)} clients",
        )

    @staticmethod
    def of(
        method: str,
        count: int,
        parts: Iterable[ArrayLike],
        *,
        labels: NDArray[Any] | None = None,
        names: tuple[str, ...] | None = None,
        seed: int | None = None,
        **parameters: Any,
    ) -> "Partition":
        """A partition of rows 0 .. count-1; each part is sorted."""
        rows = tuple(np.sort(np.asarray(part, np.int64)) for part in parts)
        return Partition(
            method=method,
            total=count,
            rows=rows,
            seed=None if seed is None else int(seed),
            parameters=_python_numbers(parameters),
            labels=labels,
            names=names,
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[RowIndices]:
        return iter(self.rows)

    @overload
    def __getitem__(self, index: int) -> RowIndices: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RowIndices, ...]: ...
    def __getitem__(self, index: int | slice) -> RowIndices | tuple[RowIndices, ...]:
        return self.rows[index]

    def labelled(self, labels: NDArray[Any]) -> "Partition":
        """The same partition, told what the labels are, so that its manifest and drawing count them."""
        return replace(self, labels=column(labels, "labels"))

    def then(self, *changes: Change) -> "Partition":
        """The same partition, whose clients' rows `split` changes like this, one after the other."""
        return replace(self, changes=(*self.changes, *changes))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each client."""
        return tuple(len(rows) for rows in self.rows)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The labels' values, sorted; none where labels are unknown or more than a thousand."""
        return tuple(str(value) for value in self._classes_of_rows[0])

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Rows of each class at each client, ``[clients, classes]``, as dealt out: wrong labels come later."""
        places, number = self._classes_of_rows[1], len(self._classes_of_rows[0])
        return np.array([np.bincount(places[rows], minlength=number)[:number] for rows in self.rows], np.int64)

    @cached_property
    def _classes_of_rows(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        nothing = np.zeros(self.total, np.int64)
        if self.labels is None:
            return np.zeros(0), nothing
        values, places = np.unique(self.labels, return_inverse=True)
        return (values, places.reshape(-1)) if len(values) <= MOST_CLASSES else (np.zeros(0), nothing)

    @cached_property
    def skew(self) -> Skew:
        """How unlike the clients are in labels and sizes."""
        return Skew.of(self.counts, self.sizes)

    @cached_property
    def sha256(self) -> str:
        """The digest of who has which rows: each client's number of rows and then the rows, as little-endian int64."""
        digest = sha256()
        for rows in self.rows:
            digest.update(np.array([len(rows)], "<i8").tobytes() + rows.astype("<i8").tobytes())
        return digest.hexdigest()

    def manifest(self) -> dict[str, Any]:
        """Everything about the partition but the rows, as JSON values."""
        return {
            "format": FORMAT,
            "method": self.method,
            "parameters": {name: value for name, value in self.parameters.items() if value is not None},
            "seed": self.seed,
            "rows": self.total,
            "left_out": self.total - sum(self.sizes),
            "clients": len(self),
            "names": None if self.names is None else list(self.names),
            "sizes": list(self.sizes),
            "classes": list(self.classes),
            "counts": self.counts.tolist() if self.classes else [],
            "skew": to_json(self.skew),
            "changes": [_python_numbers(change.to_json()) for change in self.changes],
            "sha256": self.sha256,
        }

    def write(self, folder: str | Path) -> Path:
        """Write ``partition.json``, the rows and a drawing into a folder; returns the manifest's path."""
        place = Path(folder)
        make_folder(place)
        text = json.dumps(self.manifest(), indent=1, ensure_ascii=False) + "\n"
        rows = {"rows": np.concatenate(self.rows), "sizes": np.array(self.sizes, np.int64)}
        write_file(place / ROWS_FILE, rows)
        write_durably(place / DRAWING_FILE, svg(self._picture()).encode())
        write_durably(place / MANIFEST_FILE, text.encode())
        return place / MANIFEST_FILE

    def draw(self, path: str | Path) -> Path:
        """Draw how many rows of each class every client has: ``.svg`` by itself, other endings with matplotlib.

        Raises ConfigurationError (``extra_missing``) without it, ``partition_invalid`` for an ending that says nothing.
        """
        place = Path(path)
        require(place.suffix.lower() in ENDINGS, f"the extension of {str(path)!r} must be one of {', '.join(ENDINGS)}")
        return draw(self._picture(), place)

    def _picture(self) -> Picture:
        return Picture(
            method=self.method, parameters=self.parameters, skew=self.skew, classes=self.classes, sizes=self.sizes,
            counts=self.counts,
        )  # fmt: skip

    @staticmethod
    def read(folder: str | Path) -> "Partition":
        """What `write` wrote: rows and changes, without labels, which the manifest only counts.

        Raises ConfigurationError (``partition_damaged``) when rows and manifest do not belong together,
        ``partition_invalid`` for a change that only the writer's own code knows, or another version's form.
        """
        place = Path(folder)
        with _reading(place):
            told = json.loads((place / MANIFEST_FILE).read_text(encoding="utf-8"))
            form, changes = str(told["format"]), [dict(change) for change in told.get("changes", ())]
        if form != FORMAT:
            raise refuse(
                f"the partition in {place} has the format {form[:40]!r}; this version of coterie reads {FORMAT!r}",
                hint="Update coterie, or make the partition again from its seed.",
            )
        with _reading(place):
            tensors = read_file(place / ROWS_FILE)
            parts = np.split(tensors["rows"], np.cumsum(tensors["sizes"])[:-1])
            names = None if told["names"] is None else tuple(told["names"])
            found = Partition.of(
                str(told["method"]), told["rows"], parts, names=names, seed=told["seed"], **told["parameters"]
            )
        if found.sha256 != told.get("sha256"):
            raise _damaged(place, "the rows are not those that the manifest's digest names")
        return found.then(*(known_change(change) for change in changes))


def split(arrays: ArraysByName | Frame, parts: Sequence[RowIndices]) -> list[dict[str, NDArray[Any]]]:
    """The rows of each part, by array name, with the changes that belong to a `Partition`. A table's columns are its
    arrays.
    """
    given: ArraysByName = as_columns(arrays, "the rows")
    return [rows_of(given, parts, client) for client in range(len(parts))]


def rows_of(arrays: ArraysByName, parts: Sequence[RowIndices], client: int) -> dict[str, NDArray[Any]]:
    """The rows of one part, as `split` gives them.

    Raises ConfigurationError (``partition_invalid``) for what is no arrays by name, for arrays of other lengths than
    the partition was made for, and for rows that they do not have.
    """
    if not isinstance(cast(object, arrays), Mapping):
        raise refuse(
            f"the data to divide must be arrays by name, not a {type(arrays).__name__}", hint='Write {"x": x, "y": y}.'
        )
    given = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in given.items():
        require(array.ndim > 0, f"array {name!r} is a single value, not rows")
        if isinstance(parts, Partition):
            has = len(array)
            require(has == parts.total, f"array {name!r} has {has} rows; the partition is one of {parts.total} rows")
    try:
        rows = {name: array[parts[client]] for name, array in given.items()}
    except (IndexError, TypeError) as error:
        raise refuse(
            f"the rows of client {client} cannot be taken out: {error}",
            hint="A client's part is a list of row numbers, below the number of rows.",
        ) from error
    for change in parts.changes if isinstance(parts, Partition) else ():
        rows = change.apply(rows, client, len(parts))
    return CheckedRows(rows, arrays.schema) if isinstance(arrays, CheckedRows) else rows


def _python_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with Python's numbers for NumPy's, which JSON does not know."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}


@contextmanager
def _reading(place: Path) -> Generator[None]:
    """Let whatever is wrong with the files of a partition be called so."""
    try:
        yield
    except CoterieError as error:
        raise _damaged(place, error.message.rstrip(".")) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(place, f"{type(error).__name__}: {error}") from error


def _damaged(place: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The partition in {place} cannot be read: {why}.",
        hint="Make it again from its seed; the manifest says how.",
        code="partition_damaged",
    )
