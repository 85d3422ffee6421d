"""The two graphs of a trainer: one training step, and the sums of one batch of an evaluation.

Names are those of plans: shared/…, frozen/…, optimizer/…, hyper/…, random/…, batch/…, and next/… for what a step
carries on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute.array import Array, as_array
from coterie.compute.data.batches import WEIGHT
from coterie.compute.interactive.purity import undrawn
from coterie.compute.ir import Graph
from coterie.compute.nn import mode as modes
from coterie.compute.nn.calling import forward
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.module import Module
from coterie.compute.optim.optimizer import Optimizer
from coterie.compute.passes import optimise
from coterie.compute.source import user_source
from coterie.compute.step.buffers import buffers_after
from coterie.compute.step.draws import drawing_mode
from coterie.compute.step.gradient import weighted_mean
from coterie.compute.step.precision import Precision
from coterie.compute.step.step import TrainStep
from coterie.compute.step.sums import batch_sums
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.errors import InputError, ShapeError

PerExample: TypeAlias = Callable[[Array, Array], Array]
"""(prediction, label) → one float32 value per example, [B]."""
Specs: TypeAlias = Mapping[str, TensorSpec]

NEXT = "next/"
_DRAW: Final = "In training a module draws with mode.uniform(shape), anew in every step: see nn.Dropout."


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the graphs are made of. state: the optimizer's, by name. batch: the arrays of a batch by name, with their
    rows; label: which of them the loss compares with.
    """

    model: Module
    loss: PerExample
    metrics: Mapping[str, PerExample]
    optimizer: Optimizer
    precision: Precision | None
    shared: Specs
    frozen: Specs
    buffers: Specs
    state: Specs
    batch: Specs
    label: str

    def train(self) -> Graph:
        """Weights, buffers, optimizer state, hyper and a batch → next/… of the first three, and "loss" [1]."""
        state = _named("shared", self.shared) | _named("buffer", self.buffers) | _named("optimizer", self.state)
        scalars = {f"hyper/{name}": TensorSpec((1,)) for name in (*self.optimizer.hyper, "active")}
        given = {**state, **_named("frozen", self.frozen), **scalars, **self._rows()}
        with undrawn(type(self.model).__call__, hint=_DRAW):
            return optimise(trace_named(self._train, given))

    def evaluate(self) -> Graph:
        """Weights and a batch → "examples", "loss" and each metric: sums over the batch, [1]."""
        weights = _named("shared", self.shared) | _named("frozen", self.frozen) | _named("buffer", self.buffers)
        with undrawn(type(self.model).__call__, hint=_DRAW):
            return optimise(trace_named(self._evaluate, {**weights, **self._rows()}))

    def _rows(self) -> dict[str, TensorSpec]:
        return {f"batch/{name}": spec for name, spec in self.batch.items()}

    def _train(self, inputs: GraphInputs) -> dict[str, Array]:
        weight = inputs[f"batch/{WEIGHT}"]
        mode = drawing_mode(inputs, weight)
        label, frozen = inputs[f"batch/{self.label}"], _group(inputs, "frozen", self.frozen)

        def objective(
            params: Mapping[str, Array], batch: Mapping[str, Array]
        ) -> tuple[Array, tuple[list[Array], dict[str, Array]]]:
            # Running statistics, and the loss itself, stay in float32, also where the model is in half precision.
            kept = {name.removeprefix("frozen/"): batch[name] for name in given if name.startswith("frozen/")}
            terms: list[Array] = []
            prediction, after = self._predict(
                {**params, **kept, **buffers}, batch, replace(mode, penalise=terms.append)
            )
            losses = _per_example("loss", self.loss, xp.astype(prediction, xp.float32), label)
            return sum(terms, losses), ([losses] if terms else [], after)

        buffers = _group(inputs, "buffer", self.buffers)
        given = _group(inputs, "batch", self.batch) | {f"frozen/{name}": array for name, array in frozen.items()}
        state = {
            "params": _group(inputs, "shared", self.shared),
            "optimizer": _group(inputs, "optimizer", self.state),
        }
        hyper = {name: inputs[f"hyper/{name}"] for name in self.optimizer.hyper}
        active = inputs["hyper/active"]
        step = TrainStep(objective, self.optimizer, self.precision)
        after, (loss, (plain, moved)) = step(state, given, hyper, active)
        if plain:  # what is told is the loss of the labels, without the terms that were minimised beside it
            loss = weighted_mean(plain[0], weight)
        statistics = buffers_after(active, moved, buffers, self.precision)
        outputs = {f"{NEXT}buffer/{name}": array for name, array in statistics.items()}
        outputs |= {f"{NEXT}shared/{name}": array for name, array in after["params"].items()}
        outputs |= {f"{NEXT}optimizer/{name}": array for name, array in after["optimizer"].items()}
        return outputs | {"loss": xp.reshape(loss, (1,))}

    def _evaluate(self, inputs: GraphInputs) -> dict[str, Array]:
        groups = {"shared": self.shared, "frozen": self.frozen, "buffer": self.buffers}
        params = {name: array for key, specs in groups.items() for name, array in _group(inputs, key, specs).items()}
        batch = _group(inputs, "batch", self.batch)
        prediction, label, weight = self._predict(params, batch, modes.EVAL)[0], batch[self.label], batch[WEIGHT]
        values = {"loss": _per_example("loss", self.loss, prediction, label)} | {
            name: _per_example(f"metric {name!r}", function, prediction, label)
            for name, function in self.metrics.items()
        }
        return batch_sums(values, weight)

    def classes(self) -> int | None:
        """How many classes the loss tells apart: as many as there are logits; None for a loss without classes."""
        if self.loss is not softmax_cross_entropy:
            return None
        weights = _named("shared", self.shared) | _named("frozen", self.frozen) | _named("buffer", self.buffers)

        def predict(inputs: GraphInputs) -> dict[str, Array]:
            params = {name.partition("/")[2]: inputs[name] for name in weights}
            return {"prediction": self._predict(params, _group(inputs, "batch", self.batch), modes.EVAL)[0]}

        shape = trace_named(predict, weights | self._rows()).outputs["prediction"].type.shape
        return shape[-1] if len(shape) > 1 else None

    def _predict(
        self, params: Mapping[str, Array], batch: Mapping[str, Array], mode: modes.Mode
    ) -> tuple[Array, dict[str, Array]]:
        features = self._features(batch)
        try:
            prediction, after = forward(self.model, params, features, mode)
        except AttributeError as error:
            if isinstance(features, Array):
                raise
            raise InputError(
                f"{user_source()}: Trainer: the model cannot use the features {', '.join(features)}, which it got as a "
                f"dictionary of arrays: {error}.",
                hint="Leave out of the data what is no feature, or begin the model with a layer that takes them by "
                "name.",
            ) from error
        if not isinstance(cast(object, prediction), Array):
            raise InputError(
                f"{user_source()}: Trainer: the model must return one array, it returned a {type(prediction).__name__}."
            )
        return prediction, after

    def _features(self, batch: Mapping[str, Array]) -> Any:
        """The only feature as it is, several by name."""
        names = [name for name in self.batch if name not in (self.label, WEIGHT)]
        return batch[names[0]] if len(names) == 1 else {name: batch[name] for name in names}


def _per_example(what: str, function: PerExample, prediction: Array, label: Array) -> Array:
    """What a loss or a metric returns, if it is one value per example: only such values can be weighed, and a number
    for the batch would count its padding.
    """
    values = cast(object, function(prediction, label))
    given = f"prediction {prediction.type} and label {label.type}"
    if not isinstance(values, (Array, np.ndarray)):
        raise InputError(
            f"{user_source()}: Trainer: the {what} must return an array, it returned a {type(values).__name__} for "
            f"{given}."
        )
    array = as_array(cast(Any, values))
    if array.shape != label.shape[:1]:
        raise ShapeError(
            f"{user_source()}: Trainer: the {what} must return one value per example, [{label.shape[0]}]; it returned "
            f"{list(array.shape)} for {given}.",
            hint="Leave out the mean over the batch: the trainer weighs and averages."
            if not array.shape
            else "Reduce it: mean over all axes but the first.",
        )
    return array


def _named(group: str, specs: Specs) -> dict[str, TensorSpec]:
    return {f"{group}/{name}": spec for name, spec in specs.items()}


def _group(inputs: GraphInputs, group: str, specs: Specs) -> dict[str, Array]:
    return {name: inputs[f"{group}/{name}"] for name in specs}
