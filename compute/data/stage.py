"""One link of a pipeline: where its rows are, and what is made of them.

A pipeline is a tree of stages over sources, and a value. It works in two strokes. *Locating* turns positions into row
numbers of the sources: cheap arithmetic on arrays, done by whoever reads the pipeline, in order. *Making* reads those
rows and maps and filters them: work that any thread or process can do for any rows at any time, since the rows' random
numbers are found by counting. What comes out depends on neither the number of workers nor their speed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from coterie.compute.data.block import Block
from coterie.compute.data.source import Column
from coterie.compute.ir import NDArray

if TYPE_CHECKING:
    from collections.abc import Generator

# At least the pass that is being read and the one into which reading ahead already reaches; of small data more, for a
# repeated and then shuffled chain has rows of all its passes in turn.
_PASSES, _POSITIONS = 2, 1 << 20

Kept = TypeVar("Kept", bound=Sized)

Kind = Literal["load", "map"]


@dataclass(frozen=True, slots=True, eq=False)
class Address:
    """K rows of a stage: in which pass, at which position of it; both int64 [K]."""

    passes: NDArray
    positions: NDArray

    def __len__(self) -> int:
        return len(self.positions)

    def pick(self, chosen: NDArray) -> Address:
        """Some of these rows."""
        return Address(self.passes[chosen], self.positions[chosen])

    @staticmethod
    def span(epoch: int, start: int, stop: int) -> Address:
        """The positions [start, stop) of one pass."""
        return Address(np.full(stop - start, epoch, np.int64), np.arange(start, stop, dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Rows of a stage, and what its parts are to make for them. places: for each part, which of these rows it makes."""

    address: Address
    parts: tuple[Located, ...] = ()
    places: tuple[NDArray, ...] = ()


@dataclass(slots=True)
class Spent:
    """Seconds of work: by the wall's clock and by the processor's."""

    seconds: float = 0.0
    cpu: float = 0.0

    def add(self, other: Spent) -> None:
        """Count another's in."""
        self.seconds += other.seconds
        self.cpu += other.cpu


@dataclass(slots=True)
class Job:
    """What accompanies rows that are made. signals: the values of sync points. spent: time, by kind of work. epoch:
    added to the pass that operations read. salt: added to the seeds of their random numbers.
    """

    signals: Mapping[str, Any] = field(default_factory=dict[str, Any])
    spent: dict[Kind, Spent] = field(default_factory=lambda: {"load": Spent(), "map": Spent()})
    epoch: int = 0
    salt: int = 0

    @contextmanager
    def timed(self, kind: Kind) -> Generator[None]:
        """Count what is done inside."""
        wall, cpu = perf_counter(), thread_time()
        try:
            yield
        finally:
            self.spent[kind].add(Spent(perf_counter() - wall, thread_time() - cpu))


class Memory:
    """What one reader of a pipeline keeps for its stages and rules, of some passes; it can always be found anew."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[int, Any]] = {}

    def of(self, owner: object, epoch: int, make: Callable[[], Kept]) -> Kept:
        """What ``make`` gave for this part of the pipeline and this pass."""
        kept: dict[int, Kept] = self._kept.setdefault(id(owner), {})
        if epoch not in kept:
            kept[epoch] = made = make()
            while len(kept) > max(_PASSES, _POSITIONS // max(1, len(made))):
                del kept[next(iter(kept))]
        return kept[epoch]


class Stage(ABC):
    """Rows by pass and position. A stage is a value, can be sent to another process, and never keeps anything."""

    @property
    @abstractmethod
    def length(self) -> int | None:
        """Positions in a pass; None for no end."""

    @property
    @abstractmethod
    def sparse(self) -> bool:
        """Whether a filter below may leave positions without a row."""

    @property
    @abstractmethod
    def depth(self) -> int:
        """Steps with random numbers of their own from the sources up to here."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, Column] | None:
        """The columns, or None where only a step's result would tell."""

    @abstractmethod
    def locate(self, address: Address, memory: Memory) -> Located:
        """Where these rows are."""

    @abstractmethod
    def make(self, located: Located, job: Job) -> Block:
        """The rows that ``locate`` found, in order. Raises DataError naming the row and the step that failed."""

    @abstractmethod
    def describe(self) -> str:
        """The pipeline up to here in one line; two with the same line give the same rows from the same data."""
