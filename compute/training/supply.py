"""Where a trainer takes its batches from: arrays that it shuffles itself, or a pipeline of ``compute.data``."""

import json
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

from coterie.compute.data.batched import Batched
from coterie.compute.data.batches import WEIGHT, Batches
from coterie.compute.data.dataset import Dataset
from coterie.compute.ir import NDArray
from coterie.compute.training.checks import check_data, check_labels
from coterie.errors import InputError

Arrays: TypeAlias = Mapping[str, NDArray]
Data: TypeAlias = Arrays | Dataset | Batched
Batch: TypeAlias = dict[str, NDArray]


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


class Supply(ABC):
    """Batches of one shape, from any place on."""

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
    def once(self) -> Iterator[Batch]:
        """The batches of one epoch, unshuffled where the trainer is who shuffles."""

    @abstractmethod
    def check_labels(self, label: str, classes: int) -> "Supply":
        """The same with every label in 0 .. classes - 1. Raises InputError for others, now or when they come."""


@dataclass(frozen=True)
class OfArrays(Supply):
    """Arrays, all rows in a new order each epoch. weights: how much each row counts; None for all alike."""

    arrays: Arrays
    batch_size: int
    seed: int
    weights: NDArray | None = None

    @property
    def sample(self) -> Arrays:
        return self.arrays

    @contextmanager
    def open(self, place: Place, epochs: int) -> Generator[Iterator[tuple[Batch, Place]]]:
        if place.stream:
            raise _elsewhere("a pipeline")
        batches = Batches(
            self.arrays, batch_size=self.batch_size, seed=self.seed, epochs=epochs, sample_weight=self.weights
        )
        rows = place.rows if place.batch else batches.rows
        batches.restore({**batches.state(), "epoch": place.epoch, "batch": place.batch, "rows": rows})
        yield ((batch, self._behind(batches)) for batch in batches)

    def _behind(self, batches: Batches) -> Place:
        state = batches.state()
        more, batch = divmod(state["batch"], batches.per_epoch)
        return Place(state["epoch"] + more, batch, batches.rows)

    def once(self) -> Iterator[Batch]:
        return Batches(self.arrays, batch_size=self.batch_size, shuffle=False, sample_weight=self.weights)

    def check_labels(self, label: str, classes: int) -> Supply:
        check_labels(label, self.arrays[label], classes)
        return self


@dataclass(frozen=True)
class OfPipeline(Supply):
    """A pipeline, in the order that it gives itself. first: its first batch. labels: the name of the labels and the
    number of classes that each batch is held to.
    """

    batched: Batched
    first: Arrays
    labels: tuple[str, int] | None = None

    @property
    def sample(self) -> Arrays:
        return self.first

    @contextmanager
    def open(self, place: Place, epochs: int) -> Generator[Iterator[tuple[Batch, Place]]]:
        if place.batch and not place.stream:
            raise _elsewhere("arrays")
        with replace(self.batched, passes=epochs).stream() as stream:
            here = {**stream.state(), "epoch": place.epoch}
            stream.restore(cast("Mapping[str, object]", json.loads(place.stream)) if place.stream else here)
            yield ((self._checked(batch), _behind(stream.state())) for batch in stream)

    def once(self) -> Iterator[Batch]:
        return (self._checked(batch) for batch in replace(self.batched, passes=1))

    def check_labels(self, label: str, classes: int) -> Supply:
        return replace(self, labels=(label, classes))

    def _checked(self, batch: Batch) -> Batch:
        if self.labels is not None:
            label, classes = self.labels
            check_labels(label, batch[label], classes)
        return batch


def supply_of(data: Data, label: str, batch_size: int, seed: int, weights: NDArray | None = None) -> Supply:
    """Arrays, or a pipeline whose batches have ``batch_size`` rows; a data set without batches is batched as it is.

    weights: of the rows of arrays. Raises InputError for what is neither, batches of another size, weights beside a
    pipeline, and sync points, which a trainer cannot update.
    """
    batched = data.batch(batch_size) if isinstance(data, Dataset) else data
    if not isinstance(batched, Batched):
        return OfArrays(check_data(batched, label), batch_size, seed, weights)
    if weights is not None:
        raise InputError(
            f"Trainer: {WEIGHT} goes with arrays; the data is a pipeline.",
            hint="Keep the weights in a column, and let batch(..., per_batch_map=...) multiply "
            f"the batch's {WEIGHT!r} by it and drop it.",
        )
    if batched.size != batch_size:
        raise InputError(
            f"Trainer: the data's batches have {batched.size} rows, the trainer's batch_size is {batch_size}.",
            hint=f"Give Trainer(..., batch_size={batched.size}).",
        )
    if batched.points:
        raise InputError(
            "Trainer: the data has sync points, which nobody would update.",
            hint="Take its stream() and train in a loop of your own, with a TrainStep.",
        )
    first = {name: values for name, values in batched.first().items() if name != WEIGHT}
    return OfPipeline(batched, check_data(first, label))


def _behind(state: Mapping[str, int]) -> Place:
    return Place(state["epoch"], state["batch"], 0, json.dumps(state) if state["batch"] else "")


def _elsewhere(what: str) -> InputError:
    return InputError(
        f"The trainer stands in the middle of an epoch over {what}.",
        hint="Go on with the same data to the end of the epoch first.",
    )
