"""What the array and the rules of primitives ask for that is made of them: the table of primitives, and the functions
that are an array's methods. So those who are below the table need not import it.
"""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from coterie.compute.ir import Attributes, Graph, NDArray, Node, Type
from coterie.compute.walk import environment_of, outputs_of, walk


class Row(Protocol):
    """What applying a primitive asks of its row; ``primitives.row.Primitive`` has more."""

    @property
    def infer(self) -> Callable[[Sequence[Type], Attributes], tuple[Type, ...]]: ...

    @property
    def evaluate(self) -> Callable[[Any, Sequence[NDArray], Attributes], Sequence[NDArray]]: ...


class _Dispatch:
    """rows: by name; ``coterie.compute.table`` sets them. functions: the module of array functions, which sets itself.
    Both do so while they are imported. ``coterie.compute.array`` imports both, so whoever has an array has them.
    """

    rows: Mapping[str, Row]
    functions: ModuleType


DISPATCH = _Dispatch()


def run(graph: Graph, inputs: Sequence[NDArray]) -> list[NDArray]:
    """The outputs by position, of inputs whose types are known to be right."""
    return outputs_of(graph, walk(graph, environment_of(graph, inputs), _evaluated))


def _evaluated(node: Node, operands: list[NDArray]) -> list[NDArray]:
    results = DISPATCH.rows[node.primitive].evaluate(run, operands, node.attributes)
    return [np.asarray(result, dtype=value.type.dtype) for value, result in zip(node.outputs, results, strict=True)]
