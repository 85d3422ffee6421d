"""One node of a foreign graph as its translation sees it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np

from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.limits import check_size
from coterie.errors import GraphRefused

BatchNormaliser: TypeAlias = Callable[[Array, tuple[Array, Array, Array, Array], float, float], "Array | None"]
"""x [B, C, ...]; scale, bias, running mean and running variance [C]; epsilon; momentum, the share that a running
statistic keeps at a step → x normalised by the batch, or None where it is to go by the running statistics.
"""
MOST_ELEMENTS = 2**28
"""Of one tensor that a file makes out of sizes; 1 GiB of float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operator applied to arrays. An input that the node leaves out is None. outputs: how many are used. batch_norm:
    what normalises batches instead of the running statistics of the file.
    """

    operator: str
    name: str
    inputs: tuple[Array | None, ...]
    attributes: Mapping[str, Any]
    opset: int
    outputs: int
    batch_norm: BatchNormaliser | None = None

    def __getitem__(self, index: int) -> Array:
        """One input. Raises GraphRefused when the node leaves it out."""
        found = self.get(index)
        if found is None:
            self.refuse(f"its input {index} is missing", "The file is damaged: export it again.")
        return found

    def get(self, index: int) -> Array | None:
        """One input, or None."""
        return self.inputs[index] if index < len(self.inputs) else None

    def known(self, index: int) -> NDArray:
        """The numbers of an input. Raises GraphRefused when they are only known when the graph runs."""
        array = self[index]
        if array.recorder is not None:
            self.refuse(
                f"its input {index} is computed from data, and a static graph must know it",
                "Export with fixed sizes, or without the control flow that makes it.",
            )
        return array.numpy()

    def integers(self, index: int, attribute: str) -> tuple[int, ...] | None:
        """Integers that are an attribute in older operator sets and an input in newer ones; None when left out."""
        if attribute in self.attributes:
            return tuple(int(n) for n in self.attributes[attribute])
        if self.get(index) is None:
            return None
        return tuple(int(n) for n in np.asarray(self.known(index)).reshape(-1))

    def held(self, count: int) -> None:
        """Raises TooLarge for more elements than a file may ask for by a few numbers, before NumPy makes them; the
        results of operations are checked by themselves.
        """
        check_size(count)

    def option(self, name: str, default: Any) -> Any:
        """An attribute, or its default."""
        return self.attributes.get(name, default)

    def refuse(self, why: str, hint: str) -> NoReturn:
        """Raise GraphRefused naming the node."""
        raise node_refused(self.operator, self.name, why, hint)


def node_refused(operator: str, name: str, why: str, hint: str) -> GraphRefused:
    """The refusal of a node, to be raised."""
    return GraphRefused(
        f"The node {name!r} ({operator}) cannot be imported: {why}.",
        hint=hint,
        code="import_refused",
        operator=operator,
        node=name,
    )


Rule: TypeAlias = Callable[[Operation], "Array | Sequence[Array]"]
"""The translation of an operator: one array, or one for each output."""


def is_known(array: Array) -> bool:
    """Whether an array's numbers do not depend on the inputs of the trace."""
    return array.recorder is None


def pointwise(fn: Callable[..., Array]) -> Rule:
    """An operator whose inputs are the operands of an array function."""
    return lambda node: fn(*(node[index] for index in range(len(node.inputs))))
