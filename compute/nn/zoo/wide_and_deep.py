"""Wide & Deep learning for tables with categories (Cheng et al. 2016)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.nn.embedding import Embedding
from coterie.compute.nn.initialisers import Constant
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import (
    Module,
    Parameters,
    ParameterSpec,
    check_input,
    check_positive,
    part,
    prefixed,
    require,
)
from coterie.compute.nn.zoo.dense import mlp
from coterie.errors import InputError

_INPUTS = ("categories", "numbers")


@dataclass(frozen=True)
class WideAndDeep(Module):
    """{"categories": int32[B, K], "numbers": float32[B, D]} → logits [B, classes]: the sum of a wide and a deep part.

    vocabularies: how many values each of the K columns of categories has; column k holds ids in 0 .. vocabularies[k] -
    1. numbers: D. Wide: a linear layer over the categories as indicators, over the pairs of columns in ``crosses`` as
    indicators of every pair of values, and over the numbers. Deep: an embedding of ``size`` numbers for each category,
    beside the numbers, through an MLP with ReLU layers of ``hidden``.

    The wide weights start as zeros. Raises InputError for a cross of a column that is not there.
    """

    vocabularies: tuple[int, ...]
    numbers: int
    classes: int
    size: int = 8
    hidden: tuple[int, ...] = (64, 32)
    crosses: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        check_positive(self, numbers=self.numbers, classes=self.classes, size=self.size)
        if not isinstance(cast(object, self.vocabularies), Sequence) or not self.vocabularies:
            raise InputError(f"WideAndDeep: vocabularies must be a size for each column, got {self.vocabularies!r}.")
        for values in self.vocabularies:
            check_positive(self, vocabularies=values)
        for cross in self.crosses:
            if len(cross) != 2 or not (0 <= cross[0] < cross[1] < len(self.vocabularies)):
                raise InputError(
                    f"WideAndDeep: the cross {cross} is no pair of columns i < j of the {len(self.vocabularies)} with "
                    "categories."
                )

    @property
    def _first(self) -> tuple[int, ...]:
        """The row of the tables at which each column of categories begins."""
        return tuple(accumulate(self.vocabularies, initial=0))[:-1]

    @property
    def _indicators(self) -> int:
        """How many indicators the wide part has."""
        pairs = sum(self.vocabularies[one] * self.vocabularies[other] for one, other in self.crosses)
        return sum(self.vocabularies) + pairs

    def _parts(self) -> dict[str, Module]:
        columns = len(self.vocabularies)
        return {
            "embedding": Embedding(sum(self.vocabularies), self.size),
            "deep": mlp((columns * self.size + self.numbers, *self.hidden, self.classes)),
        }

    def specs(self) -> dict[str, ParameterSpec]:
        zeros = Constant(0.0)
        return {
            "indicators": ParameterSpec((self._indicators, self.classes), zeros),
            "slopes": ParameterSpec((self.classes, self.numbers), zeros),
            **prefixed(self._parts()),
        }

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        categories, numbers = self._inputs(x)
        rows = categories + Array(np.array(self._first, np.int32))
        embedding, deep = self._parts().values()
        embedded = embedding(part(params, "embedding"), rows, mode)
        flat = xp.reshape(embedded, (embedded.shape[0], len(self.vocabularies) * self.size))
        told = deep(part(params, "deep"), xp.concat([flat, numbers], axis=1), mode)
        return told + self._wide(params, categories, rows, numbers)

    def _wide(self, params: Parameters, categories: Array, rows: Array, numbers: Array) -> Array:
        active, first = [rows], sum(self.vocabularies)
        for one, other in self.crosses:
            pair = categories[:, one : one + 1] * self.vocabularies[other] + categories[:, other : other + 1]
            active.append(pair + first)
            first += self.vocabularies[one] * self.vocabularies[other]
        picked = ops.embedding(require(params, "indicators", self), xp.concat(active, axis=1))
        return xp.sum(picked, axis=1) + numbers @ xp.matrix_transpose(require(params, "slopes", self))

    def _inputs(self, x: object) -> tuple[Array, Array]:
        if not isinstance(x, Mapping) or not set(_INPUTS) <= set(cast(Mapping[str, Array], x)):
            found = ", ".join(map(str, cast(Mapping[str, Array], x))) if isinstance(x, Mapping) else type(x).__name__
            raise InputError(
                f"WideAndDeep takes arrays by name, {' and '.join(_INPUTS)}; it was given {found}.",
                hint='In an experiment, declare two features: Feature(name="categories", dtype="int32", shape=(K,)) '
                'and Feature(name="numbers", shape=(D,)).',
            )
        arrays = cast(Mapping[str, Array], x)
        categories, numbers = (arrays[name] for name in _INPUTS)
        check_input(categories, ("B", len(self.vocabularies)), self)
        check_input(numbers, ("B", self.numbers), self)
        return categories, numbers
