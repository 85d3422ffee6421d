"""A step that is cut for processes, run in one: each process's part of a stage after the other."""

from collections.abc import Collection, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.compute.onnx.spread.stages import Bound
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.spread.loop import SpreadStep

Arrays = Mapping[str, NDArray[Any]]


class InTurn:
    """The step, loaded. Processes see nothing of one another but what lies in the memory that stages name."""

    def __init__(self, data: bytes, *, batch: Collection[str], processes: int) -> None:
        self.cut = SpreadStep.cut(data, batch=batch, processes=processes, threads=1)
        self._loaded = [
            [Executable(stage.data) if stage.data else None for stage in graphs] for graphs in self.cut.graphs
        ]

    def run(self, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """The step's results. What nobody writes is NaN, or the largest number of its kind."""
        graph = self.cut.step.graph
        results = {name: _unwritten(graph.size(name), graph.dtype(name)) for name in graph.outputs}
        own: dict[tuple[str, int], NDArray[Any]] = {}

        def read(bound: Bound) -> NDArray[Any]:
            memory = {"input": lambda: feeds[bound.tensor].reshape(-1), "output": lambda: results[bound.tensor]}
            held = memory[bound.home]() if bound.home != "own" else own[bound.tensor, bound.rank]
            return held[bound.start : bound.start + prod(bound.shape)].reshape(bound.shape)

        for stage in range(self.cut.step.count):
            for rank, graphs in enumerate(self.cut.graphs):
                loaded = self._loaded[rank][stage]
                made = {} if loaded is None else loaded.run({bound.name: read(bound) for bound in graphs[stage].inputs})
                for bound in graphs[stage].outputs:
                    value = made[bound.name].reshape(-1)
                    if bound.home == "own":
                        own[bound.tensor, bound.rank] = value
                    else:
                        results[bound.tensor][bound.start : bound.start + value.size] = value
        return {name: value.reshape(graph.shapes[name]) for name, value in results.items()}


def _unwritten(size: int, dtype: Any) -> NDArray[Any]:
    kind = np.dtype(dtype)
    return np.full(size, np.nan if kind.kind == "f" else np.iinfo(kind).max, kind)
