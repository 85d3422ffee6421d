"""Layers one after another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import cast

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.embedding import Embedding, PositionalEmbedding
from coterie.compute.nn.linear import Linear
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, part, refuse_shape
from coterie.compute.nn.recomputed import recomputed
from coterie.compute.source import user_source
from coterie.errors import InputError, ShapeError

# One of them alone keeps its input, computed again or not.
_PLAIN = (Linear, Embedding, PositionalEmbedding)


@dataclass(frozen=True, init=False)
class Sequential(Module):
    """Calls its layers in order. The parameters of layer i are named "i.<name>". Raises InputError for what is no
    layer, and for a layer with parameters that stands in two places.

    Under ``Mode.recompute`` each layer with matrices or kernels is a part, together with the layers behind it that have
    none.
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
        _refuse_tied(layers)
        object.__setattr__(self, "layers", layers)

    def specs(self) -> dict[str, ParameterSpec]:
        return {
            f"{index}.{name}": spec for index, layer in enumerate(self.layers) for name, spec in layer.specs().items()
        }

    @property
    def recomputes(self) -> bool:
        return len(self._parts()) > 1 or any(layer.recomputes for layer in self.layers)

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        if not mode.recompute:
            return self._run(range(len(self.layers)), params, x, mode)
        for indices in self._parts():
            run, (first, *rest) = partial(self._run, indices, params), (self.layers[index] for index in indices)
            if first.recomputes:
                x = run(x, mode)
            elif rest or not isinstance(first, _PLAIN):
                x = recomputed(run, x, mode)
            else:
                x = run(x, replace(mode, recompute=False))
        return x

    def _parts(self) -> list[list[int]]:
        """Places of the layers of each part."""
        parts: list[list[int]] = []
        for index, layer in enumerate(self.layers):
            if not parts or any(len(spec.shape) > 1 for spec in layer.specs().values()):
                parts.append([])
            parts[-1].append(index)
        return parts

    def _run(self, indices: Sequence[int], params: Parameters, x: Array, mode: Mode) -> Array:
        for index in indices:
            layer = self.layers[index]
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


def _refuse_tied(layers: Sequence[Module]) -> None:
    """Require that no layer with parameters stands in two places: it would have parameters of its own in each."""
    places: dict[int, str] = {}
    for place, layer in _placed(layers, ""):
        first = places.setdefault(id(layer), place)
        if first != place and layer.specs():
            raise InputError(
                f"{user_source()}: Sequential: layer {first} and layer {place} are one {type(layer).__name__}, and "
                "each place would have parameters of its own.",
                hint="Write a layer for each place; to share its parameters, call it twice in a module of your own.",
                code="tied_parameters",
            )


def _placed(layers: Sequence[Module], prefix: str) -> Iterator[tuple[str, Module]]:
    """Every layer with its place, those of chains inside included."""
    for index, layer in enumerate(layers):
        place = f"{prefix}{index}"
        yield place, layer
        if isinstance(layer, Sequential):
            yield from _placed(layer.layers, f"{place}.")
