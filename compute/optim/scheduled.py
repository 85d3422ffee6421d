"""Hyper-parameters that change with the steps of a training, written into the step itself."""

from collections.abc import Mapping
from math import isfinite
from numbers import Real
from typing import cast

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.optim.optimizer import Arrays, Optimizer, check_whole
from coterie.compute.optim.packing import packed
from coterie.compute.optim.schedules import Schedule
from coterie.compute.source import user_source
from coterie.errors import InputError

STEP = "schedule.step"
MOST_VALUES = 100_000
_LARGEST = float(np.finfo(np.float32).max)


def scheduled(optimizer: Optimizer, steps: int, schedules: Mapping[str, Schedule]) -> Optimizer:
    """The optimizer, whose hyper-parameters follow schedules over the steps that it takes.

    The schedules are asked here, once for each step, and their numbers become a table of the graph, so that a device
    needs no code for them. The number of the step is state, float32[1] as ``schedule.step``; it begins at 0 with the
    optimizer's state, in an experiment in each round, and a step that does not count leaves it.

    steps: how many numbers are asked for, from step 0 on; later steps have the last one.
    schedules: by the name of a hyper-parameter, which is no longer one of the result.
    Raises InputError for a name that the optimizer does not have, and for a number that is negative, NaN or infinite,
    naming the step.
    """
    if not isinstance(cast(object, optimizer), Optimizer):
        raise InputError(f"scheduled: needs an Optimizer, such as optim.adam(0.01), got {optimizer!r}.")
    check_whole("scheduled", steps=steps)
    where = f"{user_source()}: scheduled {optimizer.name}"
    if steps > MOST_VALUES:
        raise InputError(f"{where}: a table has at most {MOST_VALUES} steps, not {steps}.")
    if STEP in optimizer.init({"w": xp.zeros((1,))}):
        raise InputError(f"{where}: it has schedules already.", hint="Give all of them at once.")
    if not isinstance(cast(object, schedules), Mapping) or not all(map(callable, schedules.values())):
        raise InputError(
            f"{where}: schedules are functions of a step's number by the name of a hyper-parameter, got "
            f"{str(schedules)[:80]}.",
            hint='For example {"lr": optim.cosine(0.1, length=100)}.',
        )
    unknown = sorted(map(str, schedules.keys() - optimizer.hyper.keys()))
    if unknown or not schedules:
        has = f"{optimizer.name} has {', '.join(sorted(optimizer.hyper)) or 'none'}"
        lacking = f"no hyper-parameter {', '.join(unknown)}" if schedules else "no schedule"
        raise InputError(f"{where}: there is {lacking}; {has}.", hint="Give a schedule for one of its names.")
    tables = {name: _table(f"{where}: schedule {name!r}", schedules[name], steps) for name in sorted(schedules)}
    inner = packed(optimizer)

    def init(params: Arrays) -> dict[str, Array]:
        return inner.init(params) | {STEP: xp.zeros((1,))}

    def weighted(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array, weight: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        place = xp.astype(xp.minimum(state[STEP], float(steps - 1)), xp.int32)
        now = {name: xp.take(Array(table), place) for name, table in tables.items()}
        own = {name: state[name] for name in state if name != STEP}
        moved, kept = inner.step(grads, own, params, {**hyper, **now}, active, weight=weight)
        return moved, {**state, **kept, STEP: state[STEP] + active}

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        return weighted(grads, state, params, hyper, active, xp.ones((1,)))

    return Optimizer(
        name=f"scheduled {optimizer.name}",
        hyper={name: value for name, value in optimizer.hyper.items() if name not in tables},
        init=init,
        update=update,
        weighted=weighted,
    )


def _table(where: str, schedule: Schedule, steps: int) -> np.ndarray:
    """What a schedule gives for each step, float32 [steps]."""
    values = np.empty(steps, np.float32)
    for step in range(steps):
        try:
            value = cast(object, schedule(step))
        except Exception as error:
            raise InputError(
                f"{where} raises {type(error).__name__} at step {step}: {error}.",
                hint="It is called with the number of a step, from 0, and returns a number.",
            ) from error
        if not isinstance(value, Real) or not isfinite(value) or not 0 <= float(value) <= _LARGEST:
            raise InputError(
                f"{where} gives {value!r} at step {step}; it must be a number of at least 0 that float32 holds.",
                hint="Steps are counted from 0.",
            )
        values[step] = float(value)
    return values
