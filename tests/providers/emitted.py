"""Files that coterie writes beside plans, with numbers to run them on and what must come out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.compute.ir import Graph
from coterie.compute.runtime.reference import distance, evaluate

# What orders of sums move, relative to an output's largest number.
CLOSE: Mapping[str, float] = {"float32": 1e-4, "float64": 1e-11}


@dataclass(frozen=True, kw_only=True)
class EmittedCase:
    """One file. expected: outputs by name; most: how far one may be off, relative to its largest number."""

    name: str
    data: bytes
    feeds: Mapping[str, NDArray[Any]]
    expected: Mapping[str, NDArray[Any]]
    most: float

    def apart(self, found: Mapping[str, NDArray[Any]]) -> float:
        """How far the worst output is off; infinite where shapes, dtypes or places of NaN differ."""
        return max(_apart(found[name], value) for name, value in self.expected.items())


def _apart(found: NDArray[Any], expected: NDArray[Any]) -> float:
    if expected.dtype.kind != "f":
        return distance(found, expected)
    finite = np.abs(expected[np.isfinite(expected)])
    unit = expected.dtype.type(max(float(finite.max(initial=0.0)), 1e-30))
    return distance(found / unit, expected / unit)


def judged_by_numpy(name: str, graph: Graph, data: bytes, feeds: Mapping[str, NDArray[Any]], dtype: str) -> EmittedCase:
    """The case whose results are those of the graph on NumPy."""
    return EmittedCase(name=name, data=data, feeds=feeds, expected=evaluate(graph, feeds), most=CLOSE[dtype])
