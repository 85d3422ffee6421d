"""How a stage is run: fill the inputs by their sources, run, put the outputs by their destinations.

Devices, simulations, the coordinator's evaluation, the export of models and the roles of a session all go this one way.
What changes from step to step of a training (batches, random numbers, noise, messages) and the loop of steps itself are
the trainer's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.aggregation.plan.stage import SAMPLE_WEIGHT, Destination, Over, Source, Stage, StageInput
from coterie.compute.data.supply import AnyRows, row_count, supply_of
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.step_loop import StepLoop
from coterie.errors import InputError, InternalError
from coterie.protocol.arrays import ArraysByName

Array = npt.NDArray[Any]

FED: frozenset[Source] = frozenset(("batch", "random", "noise", "message"))
"""Sources that give something new at each step."""


def _no_arrays() -> ArraysByName:
    return {}


def _nothing_left() -> Mapping[Destination, ArraysByName]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Supply:
    """Everything that the inputs of a task's stages are filled from, apart from what changes with each step.

    model: the version's tensors.
    frozen: the frozen blob's.
    client_state: this client's, as committed.
    hyper, counters: numbers by name.
    left: what earlier stages of the task put, by destination and key.
    """

    model: ArraysByName
    frozen: ArraysByName = field(default_factory=_no_arrays)
    client_state: ArraysByName = field(default_factory=_no_arrays)
    hyper: Mapping[str, float] = field(default_factory=dict[str, float])
    counters: Mapping[str, float] = field(default_factory=dict[str, float])
    left: Mapping[Destination, ArraysByName] = field(default_factory=_nothing_left)

    def at(self, destination: Destination) -> ArraysByName:
        """What was put there so far, by key."""
        return self.left.get(destination, {})

    def after(self, put: Mapping[Destination, ArraysByName]) -> "Supply":
        """With what a stage put. What one carried from step to step is state from then on."""
        found: dict[Destination, ArraysByName] = dict(self.left)
        for destination, values in put.items():
            into: Destination = "state" if destination == "carry" else destination
            found[into] = {**found.get(into, {}), **values}
        return replace(self, left=found)


def filled(stage: Stage, supply: Supply) -> dict[str, Array]:
    """Every input of a stage that does not change from batch to batch: carried ones as the first step takes them.

    Raises InputError (``layout_mismatch``) naming a tensor that the supply lacks.
    """
    return {tensor.name: _FILL[tensor.source](supply, tensor) for tensor in stage.inputs if tensor.source not in FED}


def run(
    stage: Stage,
    executable: Executable,
    supply: Supply,
    rows: AnyRows,
    *,
    on_batch: Callable[[], None] = lambda: None,
) -> Supply:
    """The supply after a stage that runs once or in one pass over the rows.

    rows: one array per feature, and the labels where the stage reads them, ``[rows, …]``; or rows made for each batch.
    on_batch: called after each batch of a pass; what it raises ends the pass.
    Raises InputError as `filled` does.
    """
    return supply.after(_RUN[stage.over](stage, executable, supply, rows, on_batch))


def run_batch(
    stage: Stage, executable: Executable, supply: Supply, feeds: ArraysByName
) -> Mapping[Destination, ArraysByName]:
    """What a stage puts for one batch, by destination and key.

    feeds: the inputs that change with each batch, by their names.
    Raises InputError as `filled` does.
    """
    return _put(stage, executable.run({**filled(stage, supply), **feeds}))


def _put(stage: Stage, outputs: ArraysByName) -> Mapping[Destination, ArraysByName]:
    put: dict[Destination, dict[str, Array]] = {}
    for tensor in stage.outputs:
        put.setdefault(tensor.destination, {})[tensor.address] = outputs[tensor.name]
    return put


def _run_once(
    stage: Stage, executable: Executable, supply: Supply, rows: AnyRows, on_batch: Callable[[], None]
) -> Mapping[Destination, ArraysByName]:
    return _put(stage, executable.run(filled(stage, supply)))


def _run_pass(
    stage: Stage, executable: Executable, supply: Supply, rows: AnyRows, on_batch: Callable[[], None]
) -> Mapping[Destination, ArraysByName]:
    loop = StepLoop(executable, carry={}, constants=filled(stage, supply), state={})
    feeds = {tensor.name: tensor.key for tensor in stage.from_source("batch")}
    names = [tensor.name for tensor in stage.outputs]
    keys = [key for key in feeds.values() if key != SAMPLE_WEIGHT]
    found: dict[str, list[Array]] = {name: [] for name in names}
    for batch in supply_of(rows, stage.batch, names=keys).once():
        loop.step({name: batch[key] for name, key in feeds.items()})
        for name, value in loop.read(names).items():
            found[name].append(value)
        on_batch()
    count = row_count(rows)
    put: dict[Destination, dict[str, Array]] = {}
    for tensor in stage.outputs:
        put.setdefault(tensor.destination, {})[tensor.key] = _JOIN[tensor.destination](found[tensor.name], count)
    return put


def _steps(
    stage: Stage, executable: Executable, supply: Supply, rows: AnyRows, on_batch: Callable[[], None]
) -> Mapping[Destination, ArraysByName]:
    raise InternalError(f"Stage {stage.name!r} runs over batches of training, which only a trainer draws.")


def _total(values: list[Array]) -> npt.NDArray[np.float64]:
    """Of each batch in float32, of all in float64."""
    total = 0.0
    for value in values:
        total += float(value[0])
    return np.array([total], np.float64)


_RUN: Mapping[
    Over,
    Callable[[Stage, Executable, Supply, AnyRows, Callable[[], None]], Mapping[Destination, ArraysByName]],
] = {"once": _run_once, "pass": _run_pass, "steps": _steps}

# What a pass makes of an output of every batch; count: of the rows, after which there is padding.
_JOIN: Mapping[Destination, Callable[[list[Array], int], Array]] = {
    "probe": lambda values, count: _total(values).astype(np.float32),
    "metric": lambda values, count: _total(values),
    "prediction": lambda values, count: np.concatenate(values)[:count],
}


def _require_tensor(tensors: ArraysByName, tensor: StageInput) -> Array:
    if tensor.key not in tensors:
        raise InputError(f"Tensor {tensor.key!r} is absent from the {tensor.source}.", code="layout_mismatch")
    return tensors[tensor.key]


def _client_state(supply: Supply, tensor: StageInput) -> Array:
    found = supply.client_state.get(tensor.key)
    return np.zeros(tensor.shape, np.float32) if found is None else found


def _number(values: Mapping[str, float], key: str) -> Array:
    return np.array([values[key]], np.float32)


_FILL: Mapping[Source, Callable[[Supply, StageInput], Array]] = {
    "model": lambda supply, tensor: _require_tensor(supply.model, tensor),
    "frozen": lambda supply, tensor: _require_tensor(supply.frozen, tensor),
    "client_state": _client_state,
    "probe": lambda supply, tensor: _require_tensor(supply.at("probe"), tensor),
    "hyper": lambda supply, tensor: _number(supply.hyper, tensor.key),
    "active": lambda supply, tensor: np.ones(1, np.float32),
    "state": lambda supply, tensor: supply.at("state")[tensor.name],
    "zeros": lambda supply, tensor: np.zeros(tensor.shape, tensor.dtype),
    "counter": lambda supply, tensor: _number(supply.counters, tensor.key),
}
