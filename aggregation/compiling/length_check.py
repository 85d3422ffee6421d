"""Whether the steps of a plan's lengths are the step of the full length, on made-up rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coterie import errors
from coterie.aggregation.compiling.agreement import first_step
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.stage import Stage
from coterie.aggregation.sequence_lengths import padding
from coterie.aggregation.walk import Array
from coterie.compute.runtime.choice import StepCase
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.length_loop import first_parts
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.schema import DataSchema

# Of what the steps move in a tensor: float32 sums in another order, or half precision's.
_APART = {None: 1e-3, "float16": 0.03, "bfloat16": 0.1}
# Rounding may turn a step around (Adam divides a gradient that is zero but for it by its own size), so the full steps
# are made again from weights that are some roundings off, and what that changes, so many times, is forgiven.
_ROUNDINGS, _FREEDOM = 2.0**-20, 4.0
# Weights that begin at zero, or near it, would hide what they are multiplied with.
_STIRRED, _LOUD = 0.1, 4.0
# What is drawn has another shape at each length, so that the same number stands in for all of it: one that makes every
# dropout keep everything.
_DRAWN = 0.999
_STEPS = 4


def check_lengths(plan: Plan, weights: ArraysByName, frozen: ArraysByName) -> None:
    """Make the first steps of a training on the CPU at each length and at the full one, on made-up rows that fit.

    The weights are the first version, stirred; rows are as long as the length, shorter, and without any position. What
    the steps move is compared, and not where they end, so that a small step size hides nothing.

    weights, frozen: the first version, and the frozen tensors. Raises errors.ExperimentError (``length_matters``) for
    a length whose steps move a tensor otherwise.
    """
    stage = plan.manifest.stepped
    if stage is None or not stage.lengths:
        return
    case = _stirred(first_step(plan, stage, weights, frozen), {f"shared/{name}" for name in weights})
    apart = _APART[plan.manifest.training.precision]
    full = Executable(case.data)
    for file in (each for each in stage.files if each.length):
        lengths = dict(file.length.lengths) if file.length else {}
        batches = [_batch(plan.manifest.schema, stage, case, lengths, turn) for turn in range(_STEPS)]
        moved = _moved(case, full, batches)
        freedom = _moved(_rounded(case), full, batches)
        found = _moved(case, Executable(plan.graphs[file.name]), batches)
        wrong = [
            name for name in moved if _Move(moved[name], freedom[name], case.state[name]).is_far(found[name], apart)
        ]
        if wrong:
            raise errors.ExperimentError(
                f"The model of experiment {plan.manifest.name!r} learns from positions that only fill a row: at the "
                f"lengths {lengths} its steps move {wrong[0]!r} otherwise than at the full length.",
                hint="Leave filled positions out: a mask (x != 0) in attention and in means over positions, also of a "
                "row without any position, and ignore= in a loss over positions. Or leave lengths out.",
                code="length_matters",
            )


@dataclass(frozen=True)
class _Move:
    """What the steps at the full length move in a tensor; from weights that are some roundings off; and from where."""

    exact: Array
    rounded: Array
    start: Array

    def is_far(self, found: Array, apart: float) -> bool:
        if not self.exact.size:
            return False
        by_rounding = np.abs(self.rounded - self.exact).max() + np.finfo(np.float32).eps * np.abs(self.start).max()
        allowed = apart * np.abs(self.exact).max() + _FREEDOM * by_rounding
        return not bool(np.abs(found - self.exact).max() <= allowed)


def _moved(case: StepCase, step: Executable, batches: Sequence[ArraysByName]) -> dict[str, Array]:
    """What the steps over the batches change in each carried input."""
    loop = case.whole(step)
    for batch in batches:
        loop.step(first_parts(batch, loop.feeds))
    after = loop.state()
    return {name: np.asarray(after[name], np.float64) - np.asarray(case.state[name], np.float64) for name in after}


def _stirred(case: StepCase, trained: set[str]) -> StepCase:
    rng = np.random.default_rng(1)

    def stir(name: str, value: Array) -> Array:
        if name not in trained or value.dtype.kind != "f":
            return value
        stirred = value + _STIRRED * rng.standard_normal(value.shape)
        if value.ndim > 1:
            # The number that fills looks up the first row of a table: largest values and ranges shall show it.
            stirred[0] *= _LOUD
        return stirred.astype(value.dtype)

    return replace(case, state={name: stir(name, value) for name, value in case.state.items()})


def _rounded(case: StepCase) -> StepCase:
    rng = np.random.default_rng(0)

    def off(value: Array) -> Array:
        if value.dtype.kind != "f":
            return value
        return (value * (1 + _ROUNDINGS * rng.choice((-1.0, 1.0), value.shape))).astype(value.dtype)

    return replace(case, state={name: off(value) for name, value in case.state.items()})


def _batch(schema: DataSchema, stage: Stage, case: StepCase, lengths: Mapping[str, int], turn: int) -> dict[str, Array]:
    """In the first turn rows that are all as long as the length. Later one is, the next one is half as long, and the
    next one has no position; and so on, beginning elsewhere in each turn.
    """
    feeds = dict(case.feeds)
    for tensor in stage.from_source("random"):
        feeds[tensor.name] = np.full(tensor.shape, _DRAWN, np.float32)
    names = {tensor.key: tensor.name for tensor in stage.from_source("batch")}
    for key, length in lengths.items():
        fill = padding(schema, key)
        rows = feeds[names[key]].copy()
        rows[rows == fill] = _other(schema, key, fill)
        for number, row in enumerate(rows):
            row[(length, (length + 1) // 2, 0)[(number + turn) % 3 if turn else 0] :] = fill
        feeds[names[key]] = rows
    return feeds


def _other(schema: DataSchema, key: str, fill: float) -> float:
    """A number near the one that fills, that a row may have."""
    column = next((each for each in schema.features if each.name == key), schema.label)
    return fill + 1 if column.high is None or fill + 1 <= column.high else fill - 1
