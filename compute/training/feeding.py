"""What a trainer feeds its step: rows of batches, hyper-parameters, and numbers for dropout."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.compute.data.batches import WEIGHT
from coterie.compute.ir import NDArray
from coterie.compute.optim.schedules import Schedule
from coterie.compute.runtime.tensors import TensorInfo
from coterie.compute.step.draws import RANDOM
from coterie.compute.training.checks import check_number
from coterie.compute.training.stacks import Stacks
from coterie.draws import random_arrays

Feeds = dict[str, NDArray]


@dataclass(frozen=True)
class Feeder:
    """seed: of the numbers for dropout. hyper: the optimizer's; schedules: those that change. size: steps a call."""

    seed: int
    hyper: Mapping[str, float]
    schedules: Mapping[str, Schedule]
    size: int

    def feeds(self, batches: Iterator[Feeds], wanted: Sequence[TensorInfo], first: int) -> Iterator[tuple[Feeds, int]]:
        """The feeds of each call, and how many steps of it count. wanted: the inputs to feed; first: the number of the
        first step.
        """
        shapes = {tensor.name: tensor.shape for tensor in wanted}
        if self.size == 1:
            for number, batch in enumerate(batches, first):
                yield rows_of(batch, shapes) | self._scalars(shapes, number), 1
            return
        inner = {name: shape[1:] for name, shape in shapes.items()}
        stacks = Stacks(batches, self.size)
        try:
            for stack in stacks:
                count = len(stack[WEIGHT])
                scalars = [self._scalars(inner, first + ahead) for ahead in range(count)]
                rows = rows_of(stack, shapes) | {name: np.stack([row[name] for row in scalars]) for name in scalars[0]}
                yield {name: _filled(name, value, self.size) for name, value in rows.items()}, count
                first += count
        finally:
            stacks.close()

    def _scalars(self, shapes: Mapping[str, tuple[int, ...]], number: int) -> Feeds:
        """What step ``number`` is fed besides its batch."""
        given = {
            name: check_number(f"schedule {name!r} at step {number}", rule(number))
            for name, rule in self.schedules.items()
        }
        scheduled = {**self.hyper, **given}
        fed = {f"hyper/{name}": np.array([value], np.float32) for name, value in scheduled.items()}
        fed["hyper/active"] = np.ones(1, np.float32)
        drawn = sorted((name for name in shapes if name.startswith(RANDOM)), key=lambda name: int(name[len(RANDOM) :]))
        fed |= random_arrays(self.seed, number, {name: shapes[name] for name in drawn})
        return {name: value for name, value in fed.items() if name in shapes}


def rows_of(batch: Mapping[str, NDArray], wanted: Mapping[str, object]) -> dict[str, NDArray]:
    """The arrays of a batch that the graph reads."""
    named = {f"batch/{name}": value for name, value in batch.items()}
    return {name: value for name, value in named.items() if name in wanted}


def _filled(name: str, rows: NDArray, size: int) -> NDArray:
    """Rows up to ``size``: copies of the last one, which do not count."""
    missing = size - len(rows)
    if not missing:
        return rows
    more = np.repeat(rows[-1:], missing, axis=0)
    return np.concatenate([rows, more * (0 if name == "hyper/active" else 1)], dtype=rows.dtype)
