"""A tree of float arrays as one flat vector, and a function of the tree as one of the vector."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from coterie.compute import tree
from coterie.compute.array import Array, as_array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.ir import Type
from coterie.compute.science.line_search import Vector
from coterie.errors import DTypeError, InputError


class Batched(Protocol):
    """Value and gradient at a flat float64 vector, for further arguments such as a batch."""

    def __call__(self, vector: Vector, *more: Any) -> tuple[float, Vector]: ...


@dataclass(frozen=True)
class Flat:
    """How a tree lies in a vector: its structure and the types of its leaves, in order."""

    structure: tree.Structure
    types: tuple[Type, ...]

    @staticmethod
    def of(values: Any) -> "Flat":
        """The layout of a tree. Raises DTypeError for a leaf that is no float array."""
        leaves, structure = tree.flatten(values)
        types = tuple(as_array(leaf).type for leaf in leaves)
        for type_ in types:
            if not type_.is_float:
                raise DTypeError(f"Only floats can be minimised over, not {type_}.", hint="Leave it out of the tree.")
        return Flat(structure, types)

    @property
    def size(self) -> int:
        """The length of the vector."""
        return sum(type_.size for type_ in self.types)

    def vector(self, values: Any) -> Vector:
        """The tree as a float64 vector. Raises InputError for a tree of another structure or other shapes."""
        leaves, structure = tree.flatten(values)
        if structure != self.structure:
            raise InputError("The trees have different structures.", hint="Pass trees with the same keys and lengths.")
        for path, leaf, type_ in zip(self.structure.paths(), leaves, self.types, strict=True):
            if as_array(leaf).shape != type_.shape:
                raise InputError(
                    f"The trees differ: {path or 'the array'} is {as_array(leaf).type} in one, {type_} in another."
                )
        parts = [np.asarray(as_array(leaf).numpy(), np.float64).reshape(-1) for leaf in leaves]
        return np.concatenate(parts) if parts else np.zeros(0)

    def tree(self, vector: Vector) -> Any:
        """The vector as a tree of arrays, each rounded to its dtype."""
        ends = np.cumsum([type_.size for type_ in self.types])[:-1]
        parts = np.split(vector, ends) if self.types else []
        leaves = [
            Array(part.reshape(type_.shape).astype(type_.dtype)) for part, type_ in zip(parts, self.types, strict=True)
        ]
        return tree.unflatten(self.structure, leaves)

    def objective(self, fn: Callable[..., Any]) -> Batched:
        """The compiled value and gradient of a scalar function of the tree (and of more that is passed on), as a
        function of the vector.
        """
        # Imported on first use: optimizers are used where no runtime is.
        from coterie.compute.interactive.jit import jit

        both = jit(value_and_grad(fn))

        def evaluate(vector: Vector, *more: Any) -> tuple[float, Vector]:
            value, gradient = both(self.tree(vector), *more)
            return float(value), self.vector(gradient)

        return evaluate
