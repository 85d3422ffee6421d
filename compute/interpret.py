"""Evaluate a graph on NumPy: the reference for every other way to run it."""

from collections.abc import Mapping, Sequence

import numpy as np

from coterie.compute.ir import Graph, NDArray, Node, Type, require_graph
from coterie.compute.table import PRIMITIVES
from coterie.compute.walk import given, told, walk
from coterie.errors import InputError


def interpret(graph: Graph, inputs: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """The outputs by name. Raises InputError for a missing, unknown or wrongly typed input."""
    require_graph("interpret", graph)
    if unknown := set(inputs) - set(graph.inputs):
        raise InputError(f"The graph has no input {sorted(unknown)}.", hint=f"It has {list(graph.inputs)}.")
    arrays: list[NDArray] = []
    for name, value in graph.inputs.items():
        if name not in inputs:
            raise InputError(f"The input {name!r} ({value.type}) is missing.")
        array = np.asarray(inputs[name])
        if Type(array.dtype.name, array.shape) != value.type:
            raise InputError(f"The input {name!r} is {Type(array.dtype.name, array.shape)}, not {value.type}.")
        arrays.append(array)
    with np.errstate(all="ignore"):
        return dict(zip(graph.outputs, run(graph, arrays), strict=True))


def run(graph: Graph, inputs: Sequence[NDArray]) -> list[NDArray]:
    """The outputs by position, of inputs whose types are known to be right."""
    return told(graph, walk(graph, given(graph, inputs), _evaluated))


def _evaluated(node: Node, operands: list[NDArray]) -> list[NDArray]:
    results = PRIMITIVES[node.primitive].evaluate(run, operands, node.attributes)
    return [np.asarray(result, dtype=value.type.dtype) for value, result in zip(node.outputs, results, strict=True)]
