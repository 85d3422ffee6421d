"""A step loop that takes each step at the shortest length that holds its rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.runtime.bound_step import BoundStep
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.in_place import stepped_in_place
from coterie.compute.runtime.step_memory import StepMemory
from coterie.compute.runtime.tensors import TensorInfo


@dataclass(frozen=True)
class ShorterStep:
    """A step for shorter rows.

    lengths: of each feed that is cut, how many positions are left.
    data: the step's file.
    load: gives the step of that file; asked when it is first needed.
    """

    lengths: Mapping[str, int]
    data: bytes
    load: Callable[[], Executable]


class LengthLoop:
    """A ``StepLoop`` over one step in several lengths, of the same carry and constants, on the CPU.

    full: the step that holds all rows. shorter: others, the shortest first. fill: of each feed that is cut, the number
    that stands at positions that a row does not have.

    A row ends at its last position that holds another number. A step runs at the first length that holds all rows, on
    the first part of each feed, of what is drawn too. State and constants are there once, whatever the length, and
    nothing is copied where it changes: all steps read and write them where they lie. State is stepped in place where
    the steps of all lengths prove that it may be.
    """

    def __init__(
        self,
        full: Executable,
        shorter: Sequence[ShorterStep],
        fill: Mapping[str, float],
        *,
        carry: Mapping[str, str],
        constants: Mapping[str, NDArray],
        state: Mapping[str, NDArray],
    ) -> None:
        lying = stepped_in_place(full.data, carry).intersection(
            *(stepped_in_place(each.data, carry) for each in shorter)
        )
        self._memory = StepMemory(full, carry=carry, constants=constants, state=state, lying=lying)
        self._full = BoundStep(full, self._memory)
        self._shorter, self._fill = tuple(shorter), dict(fill)
        self._steps: dict[int, BoundStep] = {}
        self._last = self._full

    @property
    def input(self) -> Mapping[str, TensorInfo]:
        """The inputs of the step, by name."""
        return self._full.executable.input

    @property
    def feeds(self) -> tuple[TensorInfo, ...]:
        """The inputs that every step must be given, at the full length."""
        return self._full.feeds

    def load(self, state: Mapping[str, NDArray], *, constants: Mapping[str, NDArray] | None = None) -> None:
        """Start again from ``state``; see ``StepLoop.load``."""
        self._memory.load(state, constants=constants)

    def step(self, feeds: Mapping[str, NDArray]) -> None:
        """Run once, at the shortest length that holds the rows. feeds: at the full length; see ``StepLoop.step``."""
        self._full.check(feeds)
        self._last = step = self._of_length(feeds)
        step.step(feeds if step is self._full else first_parts(feeds, step.feeds))

    def read(self, names: Sequence[str]) -> dict[str, NDArray]:
        """Copies of the named outputs; see ``StepLoop.read``."""
        return self._last.read(names)

    def state(self) -> dict[str, NDArray]:
        """Copies of the carried inputs as the next step will see them."""
        return self._memory.state()

    def _of_length(self, feeds: Mapping[str, NDArray]) -> BoundStep:
        longest: dict[str, int] = {}
        for number, each in enumerate(self._shorter):
            for name in each.lengths.keys() - longest.keys():
                longest[name] = positions(feeds[name], self._fill[name])
            if all(longest[name] <= length for name, length in each.lengths.items()):
                if number not in self._steps:
                    self._steps[number] = BoundStep(each.load(), self._memory)
                return self._steps[number]
        return self._full


def positions(rows: NDArray, fill: float) -> int:
    """How many positions (second axis) the longest of these rows has: up to the last that holds another number."""
    held = (rows != fill).any(axis=(0, *range(2, rows.ndim)))
    return int(np.flatnonzero(held)[-1]) + 1 if held.any() else 0


def first_parts(feeds: Mapping[str, NDArray], wanted: Iterable[TensorInfo]) -> dict[str, NDArray]:
    """The first part of each feed, as large along each axis as is wanted."""
    return {info.name: np.ascontiguousarray(feeds[info.name][tuple(map(slice, info.shape))]) for info in wanted}
