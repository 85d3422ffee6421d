"""Sources that are read whole, once, when the first row is asked for."""

import threading
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.compute.data.source import Column, Rows, Source
from coterie.compute.data.sources.arrays import ArraySource
from coterie.compute.ir import NDArray


class Loaded:
    """The rows that one process has read. Sent to another process it arrives empty: that one reads the file itself."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.source: ArraySource | None = None

    def __reduce__(self) -> tuple[type["Loaded"], tuple[()]]:
        return Loaded, ()


@dataclass(frozen=True, eq=False)
class LoadedSource(Source):
    """A file whose rows are kept in memory from the first use on; threads that ask at the same time wait for one read.

    A subclass says how the file is read (`load`), and nothing else.
    """

    _loaded: Loaded = field(default_factory=Loaded, init=False, repr=False)

    @abstractmethod
    def load(self) -> ArraySource:
        """Read the file. Raises DataError."""

    @property
    def columns(self) -> Mapping[str, Column]:
        """What the file holds; reads it."""
        return self._source().columns

    def __len__(self) -> int:
        return len(self._source())

    def rows(self, indices: NDArray) -> Rows:
        """Copies of the rows of these numbers."""
        return self._source().rows(indices)

    def _source(self) -> ArraySource:
        with self._loaded.lock:
            if self._loaded.source is None:
                self._loaded.source = self.load()
            return self._loaded.source
