"""A data set as a chain: where rows come from, in which order, what is done to each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.compute.data.batched import Batched
from coterie.compute.data.batching import Batching
from coterie.compute.data.block import Block, Values, joined
from coterie.compute.data.checks import check_name, check_whole
from coterie.compute.data.joining import Concatenated, Zipped
from coterie.compute.data.mapping import Step, emptied
from coterie.compute.data.naming import Named
from coterie.compute.data.ordering import Cycle, Ordered, Rule, Sampled, Share, Stride, Window
from coterie.compute.data.reading import Reading
from coterie.compute.data.remaining import Remaining
from coterie.compute.data.samplers import RandomSampler, Sampler
from coterie.compute.data.source import Column, Row, Source
from coterie.compute.data.stage import Address, Job, Memory, Stage
from coterie.compute.data.transform import Operation, as_transform
from coterie.compute.ir import NDArray
from coterie.compute.source import user_source
from coterie.errors import ArgumentTypeError, ArgumentValueError, DataError

Columns = str | Sequence[str]
_SPAN = 256


@dataclass(frozen=True)
class Dataset:
    """Rows with named columns, in passes. Every method gives a new data set; nothing is read before rows are asked for.

    A pass goes over all rows once; passes differ where the chain shuffles, samples or draws random numbers, and are the
    same every time that they are asked for. Iterating gives the rows of the first pass as dicts.
    """

    stage: Stage

    def __post_init__(self) -> None:
        """Raises ArgumentTypeError for a source, arrays or a path: those are for ``of``."""
        if not isinstance(self.stage, Stage):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentTypeError(
                f"{user_source()}: Dataset(...) takes a stage, got {type(self.stage).__name__}.",
                hint="Write Dataset.of(...) for a source, for arrays by name, or for a file.",
            )

    @staticmethod
    def of(data: Dataset | Source | Mapping[str, NDArray] | str | Path) -> Dataset:
        """The rows of a source, of arrays ``[N, ...]`` by name, or of a file or folder that
        :func:`coterie.compute.data.open_source` knows.
        """
        if isinstance(data, Dataset):
            return data
        if isinstance(data, Source):
            return Dataset(Reading(data))
        from coterie.compute.data.sources.opening import open_source  # the readers are many

        return Dataset(Reading(open_source(data)))

    # Which rows, in which order.

    def shuffle(self, seed: int = 0) -> Dataset:
        """A new order each pass, of all rows, that depends on the seed and the number of the pass alone."""
        check_whole("shuffle", None, seed=seed)
        return self.sample(RandomSampler(seed))

    def sample(self, sampler: Sampler) -> Dataset:
        """The rows that a sampler takes. Raises ArgumentValueError where it does not fit, or there is no end."""
        sampler.size(self._require_end("sample"))
        return self._ordered(Sampled(sampler))

    def take(self, count: int) -> Dataset:
        """The first ``count`` rows of a pass, or all if there are fewer.

        After a filter, these are found by evaluating it from the first row on, once more than for the rows themselves.
        """
        check_whole("take", 0, count=count)
        return self._counted()._ordered(Window(0, count))

    def skip(self, count: int) -> Dataset:
        """The rows of a pass but the first ``count``. After a filter: see ``take``."""
        check_whole("skip", 0, count=count)
        return self._counted()._ordered(Window(count))

    def repeat(self, times: int | None = None) -> Dataset:
        """Pass after pass as one pass: so many times, or for ever. A batch may then have rows of two of them; use
        ``batch(...).epochs(n)`` where it should not.
        """
        if times is not None:
            check_whole("repeat", 0, times=times)
        return self._ordered(Cycle(times))

    def shard(self, count: int, index: int) -> Dataset:
        """Every ``count``-th row, from row ``index`` on: shards are disjoint, and together they are all rows.

        Shards of one shuffled data set stay disjoint in every pass. Raises ArgumentValueError for an index outside of
        [0, count).
        """
        check_whole("shard", count=count)
        check_whole("shard", 0, index=index)
        if index >= count:
            raise ArgumentValueError(f"shard: there is no shard {index} of {count}; the first is 0.")
        return self._ordered(Stride(index, count))

    def split(self, *parts: float, seed: int | None = None) -> tuple[Dataset, ...]:
        """Parts that share no row, the same ones in every pass.

        parts: numbers of rows, or fractions of them. seed: choose the rows by this order; without it they are in their
        own. The parts hold the rows as they are in the first pass, so shuffle and augment after splitting. Raises
        ArgumentValueError for parts that are more than all rows, and after a filter (split first).
        """
        self._require_all("split")
        sizes = _sizes(parts, self._require_end("split"))
        ends = np.cumsum([0, *sizes]).tolist()
        return tuple(self._ordered(Share(ends[i], ends[i + 1], seed)) for i in range(len(sizes)))

    def concat(self, *others: Dataset) -> Dataset:
        """The rows of the others behind these; all have the same columns. Raises ArgumentValueError for rows behind no
        end, DataError for other columns.
        """
        for dataset in (self, *others[:-1]):
            dataset._require_end("concat")
        names = [set(d.stage.columns) for d in (self, *others) if d.stage.columns is not None]
        if any(found != names[0] for found in names):
            raise DataError(
                f"concat: the data sets have different columns: {'; '.join(', '.join(sorted(n)) for n in names)}.",
                hint="Give them the same columns with select and rename.",
                code="data_columns",
            )
        return Dataset(Concatenated((self.stage, *(other.stage for other in others))))

    def zip(self, *others: Dataset) -> Dataset:
        """Row by row, the columns of all, under names of their own. Raises ArgumentValueError where lengths differ or a
        filter leaves gaps (filter afterwards), DataError for a name that occurs twice.
        """
        for dataset in (self, *others):
            dataset._require_all("zip")
        lengths = [dataset.stage.length for dataset in (self, *others)]
        if len(set(lengths)) > 1:
            raise ArgumentValueError(
                f"zip: the data sets have {' and '.join(map(str, lengths))} rows.",
                hint="Cut the longer one with take, so that no row is lost without a word.",
            )
        return Dataset(Zipped((self.stage, *(other.stage for other in others))))

    # What is done to rows.

    def map(
        self,
        operations: Operation | Sequence[Operation],
        columns: Columns | None = None,
        *,
        outputs: Columns | None = None,
        seed: int = 0,
    ) -> Dataset:
        """Every row with an operation, or several in turn, applied to it.

        operations: a Transform, or a function. columns: what it takes: a column's value; the values of several (a
        function takes them as arguments); the whole row, as a dict, without. outputs: the columns that the result
        becomes, those that it was taken from without; for several a tuple of values; a new row where the operation took
        a row. seed: of the random numbers of Transforms, which depend on it, the place in the chain, the pass and the
        row's position alone.
        """
        listed = (operations,) if callable(operations) or not isinstance(operations, Sequence) else tuple(operations)
        inputs = None if columns is None else _names("map", columns)
        made = inputs if outputs is None else _names("map", outputs)
        return self._step("map", listed, inputs, made, seed)

    def filter(self, predicate: Operation, columns: Columns | None = None, *, seed: int = 0) -> Dataset:
        """The rows for which ``predicate`` gives True; it takes what an operation of ``map`` takes."""
        inputs = None if columns is None else _names("filter", columns)
        return self._step("filter", (predicate,), inputs, None, seed)

    def select(self, *names: str) -> Dataset:
        """These columns, in this order. Raises DataError for one that there is not."""
        check_name("select", *names)
        return Dataset(Named(self.stage, {name: name for name in names}, others=False))

    def rename(self, **names: str) -> Dataset:
        """Columns under new names: ``rename(old="new")``; the others stay. Raises DataError."""
        check_name("rename", *names.values())
        return Dataset(Named(self.stage, {new: old for old, new in names.items()}, others=True))

    def batch(
        self, size: int, *, drop_remainder: bool = False, per_batch_map: Operation | None = None, seed: int = 0
    ) -> Batched:
        """Batches of ``size`` rows with ``sample_weight`` float32 [size]: 1 for a row, 0 for padding.

        The last batch of a pass is filled up with copies of its first row, which weigh 0; or dropped, where
        ``drop_remainder``. per_batch_map: takes a whole batch, arrays by column, and gives one; seed is for its random
        numbers.
        """
        check_whole("batch", size=size)
        operation = None if per_batch_map is None else as_transform("batch", per_batch_map)
        return Batched(stage=self.stage, batching=Batching(size, drop_remainder, operation, seed))

    # What there is.

    @property
    def columns(self) -> dict[str, Column]:
        """The columns. Where the chain maps rows, the first row is made to see them. Raises DataError for no row."""
        known = self.stage.columns
        return dict(known) if known is not None else {name: _column(value) for name, value in self._first().items()}

    def __len__(self) -> int:
        """Rows of a pass. Raises ArgumentTypeError where there is no end, or only a filter knows."""
        if self.stage.length is None or self.stage.sparse:
            why = "there is no end" if self.stage.length is None else "a filter decides for each row"
            raise ArgumentTypeError(f"The number of rows is not known beforehand: {why}.")
        return self.stage.length

    def __iter__(self) -> Iterator[Row]:
        # Rows that cost work are made when they are asked for, and an error comes at its row.
        span = _SPAN if self.stage.columns is not None else 1
        return (row for block in self._blocks(span) for row in block.rows())

    def arrays(self) -> dict[str, Values]:
        """All rows of the first pass, column by column: arrays where the values stack, else lists."""
        self._require_end("arrays")
        parts = [block.as_columns() for block in self._blocks(_SPAN) if len(block)]
        return dict(joined(parts)) if parts else {}

    def describe(self) -> str:
        """The chain in one line."""
        return self.stage.describe()

    # The parts of the above.

    def _blocks(self, span: int) -> Iterator[Block]:
        memory, start, length = Memory(), 0, self.stage.length
        while length is None or start < length:
            stop = start + span if length is None else min(start + span, length)
            yield self.stage.make(self.stage.locate(Address.span(0, start, stop), memory), Job())
            start = stop

    def _first(self) -> Row:
        for row in self:
            return row
        raise emptied(self.stage, f"No row is left of {self.stage.describe()}.")

    def _ordered(self, rule: Rule) -> Dataset:
        return Dataset(Ordered(self.stage, rule))

    def _counted(self) -> Dataset:
        return Dataset(Remaining(self.stage)) if self.stage.sparse else self

    def _step(
        self,
        where: str,
        operations: Sequence[Operation],
        inputs: tuple[str, ...] | None,
        outputs: tuple[str, ...] | None,
        seed: int,
    ) -> Dataset:
        check_whole(where, None, seed=seed)
        if not operations:
            raise ArgumentValueError(f"{where}: there is no operation.")
        transforms = tuple(as_transform(where, operation) for operation in operations)
        return Dataset(
            Step(self.stage, transforms, inputs, outputs, seed, decides=where == "filter", written=user_source())
        )

    def _require_end(self, where: str) -> int:
        if self.stage.length is None:
            raise ArgumentValueError(f"{where}: these rows have no end.", hint="Cut them with take first.")
        return self.stage.length

    def _require_all(self, where: str) -> None:
        if self.stage.sparse:
            raise ArgumentValueError(
                f"{where}: after a filter nobody knows which rows there are before each is looked at.",
                hint=f"Call {where} first, and filter its result.",
            )


def _names(where: str, columns: Columns) -> tuple[str, ...]:
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    check_name(where, *names)
    if not names or len(set(names)) < len(names):
        raise ArgumentValueError(f"{where}: it needs one or more different columns, got {columns!r}.")
    return names


def _sizes(parts: Sequence[float], rows: int) -> list[int]:
    """The rows of each part."""
    if not parts or not all(part > 0 for part in parts):
        raise ArgumentValueError(f"split: parts must be positive, got {parts}.")
    counts = [part for part in parts if isinstance(part, int | np.integer)]
    if len(counts) == len(parts) and sum(counts) <= rows:
        return [int(count) for count in counts]
    total = float(np.sum(parts))
    if counts or total > 1 + 1e-9:
        raise ArgumentValueError(
            f"split: {parts} are neither numbers of rows, together at most {rows}, nor fractions, together at most 1.0."
        )
    # Whole ends first, so that the parts' sizes add up whatever is rounded.
    ends = np.round(np.cumsum(parts) * rows).astype(np.int64)
    return np.diff(ends, prepend=0).tolist()


def _column(value: object) -> Column:
    if isinstance(value, str | bytes):
        return Column(type(value).__name__)
    array = np.asarray(value)
    return Column(array.dtype.name, array.shape)
