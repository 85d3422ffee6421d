"""Models of other frameworks as modules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast, final

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute.array import Array, as_array
from coterie.compute.ir import NDArray
from coterie.compute.nn import losses
from coterie.compute.nn.batch_normalisation import Running, by_batch
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, Role, require
from coterie.compute.nn.sequential import Flatten, Sequential
from coterie.compute.onnx.importer.frameworks import export_hint
from coterie.compute.onnx.importer.model import ImportedModel
from coterie.compute.onnx.importer.operation import BatchNormaliser
from coterie.compute.source import user_source
from coterie.errors import InputError


@dataclass(frozen=True)
class _Given:
    """The first values of a parameter: those of the file."""

    value: NDArray

    def __call__(self, shape: tuple[int, ...], bits: np.random.Philox) -> NDArray:
        return self.value.astype(np.float32)


@final
@dataclass(frozen=True, eq=False)
class Imported(Module):
    """A model that ``compute.onnx.load`` read, as a module of one output: alone, as a part of another one, or with a
    new head behind it.

        trunk = onnx.load("model.onnx").cut("features").freeze("*")
        model = nn.Sequential(nn.Imported(trunk), nn.Linear(64, 5))

    Parameters have the names and first values of the file, whatever the seed; what is frozen has the role ``frozen``,
    running statistics are buffers. x: the model's input, or arrays by the names of its inputs where it has several
    (``features``: other names, in the order of the inputs). Integers are converted to the integers of the file; floats
    make the model compute in their own dtype.

    In training, batch normalisation goes by the batch and moves its running statistics, as
    :class:`~coterie.compute.nn.BatchNorm1d` does; with frozen statistics it goes by them, in training too. An inference
    graph has no dropout. Raises InputError for a model of several outputs and for names that are not those of inputs.
    """

    model: ImportedModel
    features: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        model = cast(object, self.model)
        if not isinstance(model, ImportedModel):
            found = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
            raise InputError(
                f"Imported: the model is {found}, not one of compute.onnx.load.",
                hint=export_hint(model) or 'Load it first: nn.Imported(onnx.load("model.onnx")).',
            )
        if len(self.model.outputs) != 1:
            raise InputError(
                f"Imported: the model gives {len(self.model.outputs)} outputs ({', '.join(self.model.outputs)}), and a "
                "module gives one.",
                hint=f"Choose one: model.cut({self.model.outputs[-1]!r}).",
            )
        if self.features is not None and len(self.features) != len(self.model.inputs):
            told = ", ".join(given.name for given in self.model.inputs)
            raise InputError(f"Imported: {len(self.features)} features do not name the model's inputs ({told}).")

    def specs(self) -> dict[str, ParameterSpec]:
        roles: tuple[tuple[Mapping[str, NDArray], Role], ...] = (
            (self.model.parameters, "shared"),
            (self.model.frozen, "frozen"),
            (self.model.buffers, "buffer"),
        )
        return {
            name: ParameterSpec(value.shape, _Given(value), role)
            for held, role in roles
            for name, value in held.items()
        }

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        names = (*self.model.parameters, *self.model.frozen, *self.model.buffers)
        weights = {name: as_array(require(params, name, self)) for name in names}
        inputs = [as_array(array) for array in self._inputs(x)]
        floats = [array.type.dtype for array in (*inputs, *weights.values()) if array.type.is_float]
        model = self.model.astype(floats[0] if floats else "float32")
        given = tuple(xp.astype(array, wanted.dtype) for array, wanted in zip(inputs, model.inputs, strict=True))
        return model.run(weights, given, self._batch_norm(weights, mode) if mode.training else None)

    def __repr__(self) -> str:
        return f"Imported({', '.join(given.name for given in self.model.inputs)} → {self.model.outputs[0]})"

    def _inputs(self, x: Any) -> list[Array]:
        if len(self.model.inputs) == 1 and not isinstance(x, Mapping):
            return [x]
        names = self.features or tuple(given.name for given in self.model.inputs)
        if not isinstance(x, Mapping):
            raise InputError(
                f"{user_source()}: {self} takes arrays by name ({', '.join(names)}), got a {type(x).__name__}.",
                hint="Give a dictionary, or name the features of the schema so.",
            )
        arrays = cast("Mapping[str, Array]", x)
        if absent := [name for name in names if name not in arrays]:
            raise InputError(
                f"{user_source()}: {self} takes the input {absent[0]!r}; it was given {', '.join(arrays) or 'none'}.",
                hint="Name the features so, or say Imported(model, features=(...)) in the order of the model's inputs.",
            )
        return [arrays[name] for name in names]

    def _batch_norm(self, weights: Parameters, mode: Mode) -> BatchNormaliser:
        moving = [weights[name] for name in self.model.buffers]

        def normalised(
            x: Array, given: tuple[Array, Array, Array, Array], epsilon: float, momentum: float
        ) -> Array | None:
            scale, bias, mean, variance = given
            if not any(array is mean for array in moving):
                return None
            return by_batch(x, scale, bias, Running(mean, variance, 1 - momentum), mode, epsilon, self)

        return normalised


_PASSING = frozenset(("Cast", "Flatten", "Identity", "Normalizer", "Reshape", "Squeeze"))
_ENDS: Mapping[Callable[..., Array], str] = {
    losses.softmax_cross_entropy: "Softmax",
    losses.binary_cross_entropy_with_logits: "Sigmoid",
}


def require_logits(model: object, loss: object) -> None:
    """Raises InputError for a foreign model, alone or at the end of a ``Sequential``, that ends in the very function
    that its loss applies: it would learn, from gradients that are wrong.
    """
    end = next((operator for function, operator in _ENDS.items() if function is loss), None)
    last = _last_layer(model)
    if end is None or not isinstance(last, Imported):
        return
    step = last.model.made_by(last.model.outputs[0])
    while step is not None and step.operator in _PASSING:
        step = last.model.made_by(step.inputs[0])
    if step is not None and step.operator == end:
        raise InputError(
            f"The model ends in a {end} (the node {step.name!r}), and its loss takes logits, what the {end} is given.",
            hint=f"Cut it there: model.cut({step.inputs[0]!r}).",
        )


def _last_layer(model: object) -> object:
    """What makes the output of a model, but for its shape; the model itself where it is no ``Sequential``."""
    while isinstance(model, Sequential):
        model = next((layer for layer in reversed(model.layers) if not isinstance(layer, Flatten)), None)
    return model


def as_module(model: object) -> object:
    """A model of ``compute.onnx.load`` as a module; everything else as it is. Raises InputError for a network class of
    the MindSpore face, which becomes one by its own ``as_module``.
    """
    if not isinstance(model, type) and hasattr(model, "construct") and hasattr(model, "parameters_and_names"):
        raise InputError(
            f"{type(model).__name__} is a Cell, and a model of coterie is a Module.",
            hint="model=mindspore.as_module(network), with from coterie.compute import mindspore.",
        )
    return Imported(model) if isinstance(model, ImportedModel) else model
