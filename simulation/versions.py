"""Model versions of a run: the newest in memory, all of them in a folder where there is one."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import StorageError
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.files import write_durably
from coterie.protocol.layout import Layout
from coterie.protocol.tensors import decode_tensors, encode_tensors, read_file

Tensors = dict[str, NDArray[Any]]


class Versions:
    """Weights by their SHA-256.

    folder: where each is kept as ``<sha256>.safetensors``; None for memory alone, which holds what `retain` says.
    """

    def __init__(self, layout: Layout, folder: Path | None) -> None:
        self._layout = layout
        self._folder = folder
        self._data: dict[str, bytes] = {}

    def add(self, data: bytes) -> str:
        """Keep a version's file; its id."""
        digest = sha256_hex(data)
        self._data[digest] = data
        if self._folder is not None:
            write_durably(self._folder / f"{digest}.safetensors", data)
        return digest

    def add_vector(self, weights: NDArray[np.float32]) -> str:
        """Keep a version given flat, as the layout orders it."""
        return self.add(encode_tensors(self._layout.unflatten(weights)))

    def read(self, digest: str) -> Tensors:
        """The tensors of a version. Raises StorageError when it is no longer there."""
        if digest in self._data:
            return decode_tensors(self._data[digest])
        if self._folder is None:
            raise StorageError(f"Version {digest[:12]} was not kept.", hint="Give the simulation a folder.")
        return read_file(self._folder / f"{digest}.safetensors")

    def size(self, digest: str) -> int:
        """Bytes of a version's file."""
        return len(self._data[digest]) if digest in self._data else len(encode_tensors(self.read(digest)))

    def file(self, digest: str, folder: Path) -> Path:
        """A file of a version: the one that is kept, else one written into ``folder``."""
        if self._folder is not None:
            return self._folder / f"{digest}.safetensors"
        path = folder / f"{digest}.safetensors"
        if not path.exists():
            path.write_bytes(self._data[digest])
        return path

    def retain(self, digests: Iterable[str]) -> None:
        """Forget all versions in memory but these."""
        wanted = set(digests)
        self._data = {digest: data for digest, data in self._data.items() if digest in wanted}
