"""Evaluate a graph on NumPy: the reference for every other way to run it."""

from collections.abc import Mapping

import numpy as np

from coterie.compute.ir import Graph, NDArray, Type, Value
from coterie.compute.primitives.table import PRIMITIVES
from coterie.errors import InputError


def interpret(graph: Graph, inputs: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """The outputs by name. Raises InputError for a missing, unknown or wrongly typed input."""
    environment: dict[Value, NDArray] = {}
    if unknown := set(inputs) - set(graph.inputs):
        raise InputError(f"The graph has no input {sorted(unknown)}.", hint=f"It has {list(graph.inputs)}.")
    for name, value in graph.inputs.items():
        if name not in inputs:
            raise InputError(f"The input {name!r} ({value.type}) is missing.")
        array = np.asarray(inputs[name])
        if Type(array.dtype.name, array.shape) != value.type:
            raise InputError(f"The input {name!r} is {Type(array.dtype.name, array.shape)}, not {value.type}.")
        environment[value] = array
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            result = PRIMITIVES[node.primitive].evaluate(
                *(environment[value] for value in node.inputs), **node.attributes
            )
            environment[node.output] = np.asarray(result, dtype=node.output.type.dtype)
    return {name: environment[value] for name, value in graph.outputs.items()}
