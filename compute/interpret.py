"""Evaluate a graph on NumPy: the reference for every other way to run it."""

from collections.abc import Mapping

import numpy as np

from coterie.compute import table as _table  # noqa: F401  # pyright: ignore[reportUnusedImport]  for run
from coterie.compute.dispatch import run as run
from coterie.compute.ir import Graph, NDArray, Type, require_graph
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
