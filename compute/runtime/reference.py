"""The NumPy reference: what a graph means, against which every provider is held."""

from collections.abc import Mapping

import numpy as np

from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, NDArray, Value
from coterie.errors import InputError


def evaluate(graph: Graph, inputs: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """A graph's outputs by name, computed node by node on NumPy, in the form that an ``Executable`` of its ONNX file
    takes and gives.

    Inputs and outputs of rank 0 have the shape [1], as in the file. Raises InputError for a missing, unknown, misshaped
    or mistyped input.
    """
    given = {
        name: _from_file(graph.inputs[name], array) if name in graph.inputs else array for name, array in inputs.items()
    }
    return {name: np.reshape(array, array.shape or (1,)) for name, array in interpret(graph, given).items()}


def distance(actual: NDArray, expected: NDArray) -> float:
    """How far two arrays are apart: the largest |actual - expected| / (1 + |expected|); infinite where shapes, dtypes,
    or places of NaN and infinity differ.

    Integers and bools have no rounding: any difference is infinite.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return np.inf
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(actual, expected) else np.inf
    ordinary = np.isfinite(expected)
    if not np.array_equal(ordinary, np.isfinite(actual)) or not np.array_equal(
        actual[~ordinary], expected[~ordinary], equal_nan=True
    ):
        return np.inf
    a, e = actual[ordinary].astype(np.float64), expected[ordinary].astype(np.float64)
    return float(np.max(np.abs(a - e) / (1 + np.abs(e)), initial=0.0))


def _from_file(value: Value, array: NDArray) -> NDArray:
    if value.type.shape:
        return array
    if array.shape != (1,):
        raise InputError(f"A scalar input is carried as [1], got {list(array.shape)}.")
    return array.reshape(())
