"""A model for the columns of a prepared schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from coterie import errors
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec
from coterie.compute.nn.zoo.dense import mlp
from coterie.compute.nn.zoo.wide_and_deep import WideAndDeep
from coterie.protocol.schema import DataSchema


def tabular(
    schema: DataSchema, *, outputs: int | None = None, hidden: tuple[int, ...] = (64, 32), size: int = 8
) -> Module:
    """A model of all of the schema's numbers and categories: wide and deep where there are both, else an MLP over what
    there is.

    outputs: of the last layer; as many as the label has classes when None.
    hidden, size: see `WideAndDeep`.
    Raises errors.ExperimentError (``model_mismatch``) for a feature that is neither, and for outputs that nobody says.
    """
    categories = tuple(feature.name for feature in schema.features if feature.vocabulary is not None)
    numbers = tuple(feature.name for feature in schema.features if feature.dtype == "float32")
    other = next((f.name for f in schema.features if f.name not in (*categories, *numbers)), None)
    count = outputs or len(schema.label.classes or ())
    if other is not None or count < 1:
        what = "no classes, and outputs were not given" if other is None else f"no number or category in {other!r}"
        raise errors.ExperimentError(
            f"A tabular model cannot be made of this schema: it has {what}.",
            hint="Give outputs=1 for a label that is a number; write a model of your own for other features.",
            code="model_mismatch",
        )
    vocabularies = tuple(len(feature.vocabulary) + 1 for feature in schema.features if feature.vocabulary is not None)
    width = sum(feature.size for feature in schema.features if feature.name in numbers)
    inner: Module
    if categories and width:
        inner = WideAndDeep(vocabularies, width, count, size=size, hidden=hidden)
    else:
        inner = mlp((width or sum(vocabularies), *hidden, count))
    return _Tabular(categories, numbers, vocabularies, inner)


@dataclass(frozen=True)
class _Tabular(Module):
    """Features by name → what ``model`` takes. Categories alone are indicators."""

    categories: tuple[str, ...]
    numbers: tuple[str, ...]
    vocabularies: tuple[int, ...]
    model: Module

    def specs(self) -> dict[str, ParameterSpec]:
        """Those of the model."""
        return self.model.specs()

    def __call__(self, params: Parameters, x: Any, mode: Mode = EVAL) -> Array:
        """``[B, outputs]``."""
        alone = (*self.categories, *self.numbers)[0]
        named = cast(Mapping[str, Array], x) if isinstance(x, Mapping) else {alone: cast(Array, x)}
        rows = next(iter(named.values())).shape[0]
        flat = [xp.reshape(named[name], (rows, -1)) for name in self.numbers]
        if not self.categories:
            return self.model(params, xp.concat(flat, axis=1), mode)
        if not flat:
            ones = [
                xp.astype(named[name][:, None] == xp.arange(size), xp.float32)
                for name, size in zip(self.categories, self.vocabularies, strict=True)
            ]
            return self.model(params, xp.concat(ones, axis=1), mode)
        places = xp.stack([named[name] for name in self.categories], axis=1)
        both: Any = {"categories": places, "numbers": xp.concat(flat, axis=1)}
        return self.model(params, both, mode)
