"""Where a training takes its batches from: one protocol for devices, simulations and `coterie.compute.training`.

What is trained on are arrays, which are shuffled here; rows of a data set that are made when a batch wants them,
shuffled alike; or a pipeline that gives its own order and its own batches.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

import numpy as np

from coterie.compute.data.batched import Batched
from coterie.compute.data.batches import Batches
from coterie.compute.data.mapping import located
from coterie.compute.data.stream import BatchStream
from coterie.compute.data.streamed_rows import StreamedRows, empty_epoch
from coterie.compute.ir import NDArray
from coterie.draws import batch_order, row_salt
from coterie.errors import DataError, InputError

Arrays: TypeAlias = Mapping[str, NDArray]
AnyRows: TypeAlias = Arrays | StreamedRows
"""Rows of one common number: arrays [N, ...] by name, or rows that are made when a batch wants them."""
Batch: TypeAlias = dict[str, NDArray]


class Supply(ABC):
    """Batches of one shape, each with ``sample_weight``."""

    @abstractmethod
    def epochs(self, count: int) -> Iterator[Batch]:
        """The batches of so many epochs, from the first on. Raises DataError for rows that do not fit."""

    @abstractmethod
    def once(self) -> Iterator[Batch]:
        """The batches of one epoch, unshuffled where the shuffling is not the data's own."""


@dataclass(frozen=True)
class Place:
    """Where a training stands. batch: of the epoch; rows: of the arrays that it is in the middle of; stream: the state
    of the pipeline, as JSON, where it is in the middle of one.
    """

    epoch: int = 0
    batch: int = 0
    rows: int = 0
    stream: str = ""

    @property
    def last_epoch(self) -> int:
        """The epoch of the batch before this place."""
        return self.epoch if self.batch else self.epoch - 1


class PlacedSupply(Supply):
    """A supply that can be gone on with from any place."""

    @property
    @abstractmethod
    def sample(self) -> Arrays:
        """Some rows [K, ...] of every array but the weights: their names, dtypes and shapes are those of all."""

    @abstractmethod
    def open(self, place: Place, epochs: int) -> AbstractContextManager[Iterator[tuple[Batch, Place]]]:
        """The batches from a place to the end of ``epochs``, each with the place behind it. Raises InputError for a
        place in the middle of another supply.
        """

    @abstractmethod
    def checked(self, check: Callable[[Arrays], None]) -> "PlacedSupply":
        """The same with everything held to a check, now or when it comes. Raises what ``check`` raises."""


@dataclass(frozen=True)
class OfArrays(PlacedSupply):
    """Arrays, all rows in a new order each epoch. weights: how much each row counts; None for all alike."""

    arrays: Arrays
    batch_size: int
    seed: int = 0
    weights: NDArray | None = None

    @property
    def sample(self) -> Arrays:
        return self.arrays

    def epochs(self, count: int) -> Batches:
        return Batches(
            self.arrays, batch_size=self.batch_size, seed=self.seed, epochs=count, sample_weight=self.weights
        )

    def once(self) -> Batches:
        return Batches(self.arrays, batch_size=self.batch_size, shuffle=False, sample_weight=self.weights)

    @contextmanager
    def open(self, place: Place, epochs: int) -> Generator[Iterator[tuple[Batch, Place]]]:
        if place.stream:
            raise _elsewhere("a pipeline")
        batches = self.epochs(epochs)
        rows = place.rows if place.batch else batches.rows
        batches.restore({**batches.state(), "epoch": place.epoch, "batch": place.batch, "rows": rows})
        yield ((batch, self._behind(batches)) for batch in batches)

    def _behind(self, batches: Batches) -> Place:
        state = batches.state()
        more, batch = divmod(state["batch"], batches.per_epoch)
        return Place(state["epoch"] + more, batch, batches.rows)

    def checked(self, check: Callable[[Arrays], None]) -> PlacedSupply:
        check(self.arrays)
        return self


@dataclass(frozen=True)
class OfStream(Supply):
    """Rows that are made for each batch: in the orders in which arrays of the same rows are taken, and with random
    numbers of their own in each epoch, which the seed decides as well.
    """

    rows: StreamedRows
    batch_size: int
    seed: int = 0

    def epochs(self, count: int) -> Iterator[Batch]:
        for epoch in range(count):
            order, salt = batch_order(len(self.rows), self.seed, epoch), row_salt(self.seed, epoch)
            yield from self.rows.batches(self.batch_size, order, epoch=epoch, salt=salt)

    def once(self) -> Iterator[Batch]:
        return self.rows.batches(self.batch_size, np.arange(len(self.rows)))


@dataclass(frozen=True)
class OfPipeline(PlacedSupply):
    """A pipeline, in the order that it gives itself. first: its first batch. checks: what each batch is held to."""

    batched: Batched
    first: Arrays
    checks: tuple[Callable[[Arrays], None], ...] = ()

    @property
    def sample(self) -> Arrays:
        return self.first

    def epochs(self, count: int) -> Iterator[Batch]:
        with self.open(Place(), count) as batches:
            for batch, _ in batches:
                yield batch

    def once(self) -> Iterator[Batch]:
        return self.epochs(1)

    @contextmanager
    def open(self, place: Place, epochs: int) -> Generator[Iterator[tuple[Batch, Place]]]:
        if place.batch and not place.stream:
            raise _elsewhere("arrays")
        with replace(self.batched, passes=epochs).stream() as stream:
            here = {**stream.state(), "epoch": place.epoch}
            stream.restore(cast("Mapping[str, object]", json.loads(place.stream)) if place.stream else here)
            yield self._placed(stream, place.last_epoch, epochs)

    def checked(self, check: Callable[[Arrays], None]) -> PlacedSupply:
        return replace(self, checks=(*self.checks, check))

    def _placed(self, stream: BatchStream, epoch: int, epochs: int) -> Iterator[tuple[Batch, Place]]:
        """What is left of a stream, each batch with the place behind it. epoch: of the batch before."""
        for batch in stream:
            self._require_alike(batch)
            for check in self.checks:
                check(batch)
            place = _behind(stream.state())
            if place.last_epoch > epoch + 1:
                raise empty_epoch(self.batched.stage, epoch + 1)
            epoch = place.last_epoch
            yield batch, place
        if epoch + 1 < epochs:
            raise empty_epoch(self.batched.stage, epoch + 1)

    def _require_alike(self, batch: Batch) -> None:
        """Hold a batch to the shapes and dtypes of the first."""
        for name, values in self.first.items():
            found = batch.get(name, values)
            if (found.shape, found.dtype) != (values.shape, values.dtype):
                error = DataError(
                    f"Column {name!r} of a batch is {found.dtype}{list(found.shape)}, and was "
                    f"{values.dtype}{list(values.shape)} in the first.",
                    hint="Bring all rows to one shape by a step: map(Resize(32, 32), 'image'), map(Pad(64), 'ids').",
                    code="data_shape",
                    column=name,
                )
                raise located(error, self.batched.stage)


def supply_of(rows: AnyRows, batch_size: int, *, seed: int = 0, names: Collection[str] | None = None) -> Supply:
    """The batches of some rows.

    names: those of the arrays that are wanted; all without.
    """
    if isinstance(rows, StreamedRows):
        return OfStream(rows, batch_size, seed)
    return OfArrays(rows if names is None else {name: rows[name] for name in names}, batch_size, seed)


def row_count(rows: AnyRows) -> int:
    """How many rows there are."""
    return len(rows) if isinstance(rows, StreamedRows) else len(next(iter(rows.values())))


def column_of(rows: AnyRows, name: str) -> NDArray:
    """A whole column: of rows that are made when they are wanted, one that they keep."""
    return rows.known[name] if isinstance(rows, StreamedRows) else rows[name]


def bytes_of(rows: AnyRows) -> int:
    """Bytes in memory for as long as the rows are kept."""
    if isinstance(rows, StreamedRows):
        return rows.positions.nbytes + sum(values.nbytes for values in rows.known.values())
    return sum(array.nbytes for array in rows.values())


def _behind(state: Mapping[str, int]) -> Place:
    return Place(state["epoch"], state["batch"], 0, json.dumps(state) if state["batch"] else "")


def _elsewhere(what: str) -> InputError:
    return InputError(
        f"The trainer stands in the middle of an epoch over {what}.",
        hint="Go on with the same data to the end of the epoch first.",
    )
