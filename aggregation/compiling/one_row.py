"""The inputs of a graph as a function sees them that is traced on one row of the batch."""

from collections.abc import Iterator, Mapping

from coterie.compute.array import Array
from coterie.compute.trace import GraphInputs, TensorSpec


class OneRow(GraphInputs):
    """Those of the whole graph, but for the batch: of that, one row."""

    def __init__(self, whole: GraphInputs, row: Mapping[str, Array]) -> None:
        self._whole, self._row = whole, row

    def request(self, name: str, spec: TensorSpec) -> Array:
        """A further input of the whole graph."""
        return self._whole.request(name, spec)

    def __getitem__(self, name: str) -> Array:
        return self._row[name] if name in self._row else self._whole[name]

    def __contains__(self, name: object) -> bool:
        return name in self._whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole)

    def __len__(self) -> int:
        return len(self._whole)
