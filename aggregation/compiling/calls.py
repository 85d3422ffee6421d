"""A researcher's model, loss and metrics on the rows of a batch, as every graph of a plan calls them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import floor
from typing import Any

from coterie import errors
from coterie.aggregation.compiling import researcher
from coterie.aggregation.experiment import ComputePrecision
from coterie.aggregation.losses import PerExample, parts_of, takes_weights
from coterie.aggregation.plan.manifest import SAMPLE_WEIGHT
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn import mode as modes
from coterie.compute.nn.calling import forward
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.module import Module
from coterie.compute.nn.sequential import Sequential
from coterie.compute.optim.optimizer import Arrays
from coterie.compute.step.half_forward import half_forward
from coterie.compute.step.sums import batch_sums
from coterie.compute.trace import GraphInputs, TensorSpec
from coterie.protocol.schema import DataSchema, Label

Outputs = dict[str, Array]


class Requested(Mapping[str, Array]):
    """Tensors that become inputs of the graph only when they are read, so that a graph has no input that it ignores.

    places: full names of those that are not ``<prefix>/<name>``.
    """

    def __init__(
        self,
        inputs: GraphInputs,
        prefix: str,
        shapes: Mapping[str, tuple[int, ...]],
        places: Mapping[str, str] | None = None,
    ) -> None:
        self._inputs, self._prefix, self._shapes, self._places = inputs, prefix, shapes, places or {}

    def __getitem__(self, name: str) -> Array:
        shape = self._shapes[name]
        full = self._places.get(name, f"{self._prefix}/{name}")
        return self._inputs[full] if full in self._inputs else self._inputs.request(full, TensorSpec(shape))

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


@dataclass(frozen=True, kw_only=True)
class BatchCalls:
    """What a graph computes from the batch that it reads: the output of a module, losses, metric sums. Each takes the
    inputs of the graph that is being traced.

    schema: of the batch's rows.
    loss, metrics: the researcher's, (prediction, label) → one value per example.
    """

    schema: DataSchema
    loss: PerExample
    metrics: Mapping[str, PerExample]

    def rows(self, rows: int) -> dict[str, TensorSpec]:
        """The inputs of a batch with labels and weights."""
        label = self.schema.label
        return {
            **self.features(rows),
            f"batch/{label.name}": TensorSpec((rows, *label.shape), label.dtype),
            f"batch/{SAMPLE_WEIGHT}": TensorSpec((rows,)),
        }

    def features(self, rows: int) -> dict[str, TensorSpec]:
        """The inputs of a batch without labels."""
        return {f"batch/{f.name}": TensorSpec((rows, *f.shape), f.dtype) for f in self.schema.features}

    def losses(self, inputs: GraphInputs, prediction: Array) -> Array:
        """The loss of each example, ``[B]``."""
        label = self.schema.label
        highest, lowest = _highest_class(label), label.low
        of_classes = [part for part in map(_unwrapped, parts_of(self.loss)) if part[0] is softmax_cross_entropy]
        ignored = [options.get("ignore") for _, options in of_classes]
        if lowest is not None and lowest < 0 and any(one is None or one > lowest for one in ignored):
            raise errors.ExperimentError(
                f"The schema's label may be as low as {lowest:g}, which is no class.",
                hint="Where it stands for filling: functools.partial(softmax_cross_entropy, ignore=-1), with low=-1. "
                "Else set low=0.",
                code="loss_mismatch",
            )
        if of_classes and prediction.ndim >= 2 and highest >= prediction.shape[-1]:
            # A label without a logit would train without a word, on the wrong loss.
            raise errors.ExperimentError(
                f"The schema's label goes up to class {highest}, but the model gives {prediction.shape[-1]} logits: "
                f"class 0 to {prediction.shape[-1] - 1}.",
                hint=f"Let the last layer have {highest + 1} outputs, or correct the label's classes or range.",
                code="loss_mismatch",
            )
        return self._per_example("loss", self.loss, prediction, inputs)

    def totals(self, inputs: GraphInputs, losses: Array, prediction: Array, weight: Array) -> Outputs:
        """The metric sums of this batch by the metrics' names, ``[1]`` each."""
        values = {"loss": losses} | {
            name: self._per_example(name, function, prediction, inputs) for name, function in self.metrics.items()
        }
        return batch_sums(values, weight)

    def label(self, inputs: GraphInputs) -> Array:
        """The label of each row, ``[B, *shape]``."""
        return inputs[f"batch/{self.schema.label.name}"]

    def weight(self, inputs: GraphInputs) -> Array:
        """The weights of the rows, ``[B]``; where a row is traced by itself, it is no padding."""
        weights, rows = inputs[f"batch/{SAMPLE_WEIGHT}"], self.label(inputs).shape[:1]
        return weights if weights.shape == rows else xp.ones(rows, dtype="float32")

    def output(
        self,
        module: Module,
        what: str,
        inputs: GraphInputs,
        weights: Arrays,
        mode: modes.Mode,
        *,
        precision: ComputePrecision = "float32",
    ) -> tuple[Array, Arrays]:
        """What a module makes of the batch's features, normalised as the schema says, and its buffers after it.

        what: how messages call it.
        precision: in which it computes; weights and results are float32.
        Raises errors.ExperimentError.
        """
        features = {f.name: inputs[f"batch/{f.name}"] for f in self.schema.features}
        frozen = {name: spec.shape for name, spec in module.specs().items() if spec.role == "frozen"}
        held = Requested(inputs, "frozen", frozen)
        x = {f.name: _normalised(features[f.name], f) for f in self.schema.features}
        call = partial(forward, module)
        if precision != "float32":
            call = partial(half_forward, precision, module, named=researcher.NamedArrays)
        taken = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in x.items())
        prediction, buffers = researcher.ask(
            what,
            call,
            researcher.NamedArrays("parameter", {**weights, **{name: held[name] for name in held}}),
            researcher.NamedArrays("feature", x) if len(x) > 1 else next(iter(x.values())),
            mode,
            takes=f"the schema's features ({taken})",
            hint="Make the schema's shapes and dtypes those of the model's first layer.",
            code="model_mismatch",
        )
        return researcher.array(what, prediction, code="model_mismatch"), buffers

    def _per_example(self, name: str, function: PerExample, prediction: Array, inputs: GraphInputs) -> Array:
        """One float32 value per example, or a refusal that names what came instead."""
        label = self.label(inputs)
        weight = (self.weight(inputs),) if takes_weights(function) else ()
        kind = "loss" if name == "loss" else "metric"
        takes = f"prediction {prediction.dtype}{list(prediction.shape)} and label {label.dtype}{list(label.shape)}"
        what = f"The {kind} {name!r}"
        result = researcher.ask(what, function, prediction, label, *weight, takes=takes, code=f"{kind}_mismatch")
        values = researcher.array(what, result, code=f"{kind}_shape")
        if values.shape != label.shape[:1]:
            raise errors.ExperimentError(
                f"{what} must return one value per example, [{label.shape[0]}]; it returned "
                f"{list(values.shape)} for {takes}.",
                hint="Leave out the mean over the batch: coterie weighs and averages." if not values.shape else None,
                code=f"{kind}_shape",
            )
        if values.dtype.name != "float32":
            raise errors.ExperimentError(
                f"{what} must return float32; it returned {values.dtype}.",
                hint='Convert it with astype(x, "float32"); random numbers of NumPy are float64 unless told otherwise.',
                code=f"{kind}_dtype",
            )
        return values


@dataclass(frozen=True, kw_only=True)
class ModelCalls:
    """The calls of an experiment's model on a batch.

    algorithm: the name of the method, for messages.
    precision: in which the model computes, at whatever weights.
    """

    batch: BatchCalls
    model: Module
    algorithm: str
    precision: ComputePrecision = "float32"

    def predict(self, inputs: GraphInputs, weights: Arrays, mode: modes.Mode) -> tuple[Array, Arrays]:
        """The model's output for the batch, normalised as the schema says, and its buffers after it."""
        return self.batch.output(self.model, "The model", inputs, weights, mode, precision=self.precision)

    def represent(self, inputs: GraphInputs, weights: Arrays) -> Array:
        """What the model makes of the batch before its last layer, ``[B, …]``: the output of all layers but the last
        of a Sequential, else of the module that the model's ``encoder`` is. Raises errors.ExperimentError.
        """
        layers = self.model.layers[:-1] if isinstance(self.model, Sequential) else ()
        encoder = Sequential(*layers) if layers else getattr(self.model, "encoder", None)
        if not isinstance(encoder, Module):
            raise errors.ExperimentError(
                f"Algorithm {self.algorithm!r} needs the features that the model computes before "
                f"its last layer, and {type(self.model).__name__} does not define them.",
                hint="Use nn.Sequential(...) with two layers or more, or give the model an attribute `encoder`: a "
                "module that takes the model's own parameters.",
                code="model_mismatch",
            )
        mine = {name: weights[name] for name in encoder.specs() if name in weights}
        what, mode = "The model's encoder", modes.EVAL
        return self.batch.output(encoder, what, inputs, mine, mode, precision=self.precision)[0]


_UNTOUCHED = {"float32": "float32", "uint8": "float32", "int32": "int32", "int16": "int32", "int8": "int32"}
"""What a model is given of a feature without normalisation."""


def _normalised(x: Array, feature: Any) -> Array:
    """(x - offset) * scale in float32. A signed whole number without normalisation stays one, as int32: it is an id."""
    if not feature.is_normalised:
        return xp.astype(x, _UNTOUCHED[feature.dtype])
    offset, scale = feature.normalisation()
    values = x if feature.dtype == "float32" else xp.astype(x, xp.float32)
    values = values - offset if offset.any() else values
    return values * scale if (scale != 1).any() else values


def _unwrapped(function: Any) -> tuple[Any, Mapping[str, Any]]:
    """What a partial function is of, and with which options."""
    return (function.func, function.keywords) if isinstance(function, partial) else (function, {})


def _highest_class(label: Label) -> int:
    """The greatest class index that the schema lets pass; -1 where it sets no bound."""
    if label.classes is not None:
        return len(label.classes) - 1
    return -1 if label.high is None or label.dtype != "int32" else floor(label.high)
