"""Layers one after another."""

from dataclasses import dataclass
from math import prod
from typing import cast

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, part, refuse_shape
from coterie.errors import InputError, ShapeError


@dataclass(frozen=True, init=False)
class Sequential(Module):
    """Calls its layers in order. The parameters of layer i are named "i.<name>". Raises InputError for what is no
    layer.
    """

    layers: tuple[Module, ...]

    def __init__(self, *layers: Module) -> None:
        for index, layer in enumerate(cast(tuple[object, ...], layers)):
            if not isinstance(layer, Module):
                found = f"the class {layer.__name__}" if isinstance(layer, type) else f"a {type(layer).__name__}"
                raise InputError(
                    f"Sequential: layer {index} is {found}, not a layer.",
                    hint="Give layers one after another: Sequential(Linear(4, 3), ReLU()).",
                )
        object.__setattr__(self, "layers", layers)

    def specs(self) -> dict[str, ParameterSpec]:
        return {
            f"{index}.{name}": spec for index, layer in enumerate(self.layers) for name, spec in layer.specs().items()
        }

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        for index, layer in enumerate(self.layers):
            try:
                x = layer(part(params, str(index)), x, mode)
            except ShapeError as error:
                source = str(error.details.get("source", ""))
                where, told = f"{source}: " if source else "", error.message.removeprefix(f"{source}: ")
                raise ShapeError(
                    f"{where}Layer {index} of the model: {told}", hint=error.hint, **error.details
                ) from error
        return x


@dataclass(frozen=True)
class Flatten(Module):
    """x[B, ...] → [B, the product of the rest]."""

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        if not x.shape:
            refuse_shape(self, "[B, ...]", x, hint="The first axis is that of the examples.")
        return xp.reshape(x, (x.shape[0], prod(x.shape[1:])))
