"""A step loop that takes each step at the shortest length that holds its rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.runtime.tensors import TensorInfo


@dataclass(frozen=True)
class ShorterStep:
    """A step for shorter rows.

    lengths: of each feed that is cut, how many positions are left.
    load: gives the step; asked when it is first needed.
    """

    lengths: Mapping[str, int]
    load: Callable[[], Executable]


class LengthLoop:
    """A ``StepLoop`` over one step in several lengths, of the same carry and constants, on the CPU.

    full: the step that holds all rows. shorter: others, the shortest first. fill: of each feed that is cut, the number
    that stands at positions that a row does not have.

    A row ends at its last position that holds another number. A step runs at the first length that holds all rows, on
    the first part of each feed, of what is drawn too. Each length that was used holds a state and the constants; the
    state is copied when the length changes.
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
        self._carry, self._constants = dict(carry), dict(constants)
        self._shorter, self._fill = tuple(shorter), dict(fill)
        self._full = StepLoop(full, carry=carry, constants=constants, state=state, in_place=True)
        self._loops: dict[int, StepLoop] = {}
        self._now = self._full

    @property
    def input(self) -> Mapping[str, TensorInfo]:
        """The inputs of the step, by name."""
        return self._full.input

    @property
    def feeds(self) -> tuple[TensorInfo, ...]:
        """The inputs that every step must be given, at the full length."""
        return self._full.feeds

    def load(self, state: Mapping[str, NDArray], *, constants: Mapping[str, NDArray] | None = None) -> None:
        """Start again from ``state``; see ``StepLoop.load``."""
        self._now = self._full
        self._full.load(state, constants=constants)
        if constants is not None:
            self._constants = dict(constants)
            for loop in self._loops.values():
                loop.load(state, constants=constants)

    def step(self, feeds: Mapping[str, NDArray]) -> None:
        """Run once, at the shortest length that holds the rows."""
        loop = self._loop(feeds)
        loop.step(feeds if loop is self._full else first_parts(feeds, loop.feeds))

    def read(self, names: Sequence[str]) -> dict[str, NDArray]:
        """Copies of the named outputs; see ``StepLoop.read``."""
        return self._now.read(names)

    def state(self) -> dict[str, NDArray]:
        """Copies of the carried inputs as the next step will see them."""
        return self._now.state()

    def _loop(self, feeds: Mapping[str, NDArray]) -> StepLoop:
        longest: dict[str, int] = {}
        for number, each in enumerate(self._shorter):
            for name in each.lengths.keys() - longest.keys():
                longest[name] = positions(feeds[name], self._fill[name])
            if all(longest[name] <= length for name, length in each.lengths.items()):
                return self._switched(number)
        return self._switched(None)

    def _switched(self, number: int | None) -> StepLoop:
        """The loop of this length, going on from the state of the one before."""
        if number is not None and number not in self._loops:
            step, state = self._shorter[number].load(), self._now.state()
            loop = StepLoop(step, carry=self._carry, constants=self._constants, state=state, in_place=True)
            self._now = self._loops[number] = loop
        loop = self._full if number is None else self._loops[number]
        if loop is not self._now:
            loop.load(self._now.state())
            self._now = loop
        return loop


def positions(rows: NDArray, fill: float) -> int:
    """How many positions (second axis) the longest of these rows has: up to the last that holds another number."""
    held = (rows != fill).any(axis=(0, *range(2, rows.ndim)))
    return int(np.flatnonzero(held)[-1]) + 1 if held.any() else 0


def first_parts(feeds: Mapping[str, NDArray], wanted: Iterable[TensorInfo]) -> dict[str, NDArray]:
    """The first part of each feed, as large along each axis as is wanted."""
    return {info.name: np.ascontiguousarray(feeds[info.name][tuple(map(slice, info.shape))]) for info in wanted}
