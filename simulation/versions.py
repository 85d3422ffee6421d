"""Model versions of a run: the newest in memory, all of them in a folder where there is one."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coterie.errors import StorageError
from coterie.protocol.arrays import ArrayDict
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.files import write_durably
from coterie.protocol.layout import Layout
from coterie.protocol.tensors import decode_tensors, tensor_chunks


class Versions:
    """Weights by the SHA-256 of their tensor file. In memory a version is one flat vector, as the layout orders it, and
    its file is never made where nobody reads it.

    folder: where each is kept as ``<sha256>.safetensors``; None for memory alone, which holds what `retain` says.
    """

    def __init__(self, layout: Layout, folder: Path | None) -> None:
        self._layout = layout
        self._folder = folder
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._sizes: dict[str, int] = {}

    def add(self, weights: NDArray[np.float32]) -> str:
        """Keep a version; its id."""
        digest, size = hashlib.sha256(), 0
        for chunk in tensor_chunks(self._layout.unflatten(weights)):
            digest.update(chunk)
            size += len(chunk)
        name = digest.hexdigest()
        self._vectors[name], self._sizes[name] = weights, size
        if self._folder is not None:
            write_durably(self._path_of(self._folder, name), tensor_chunks(self._layout.unflatten(weights)))
        return name

    def add_tensors(self, weights: ArrayDict) -> str:
        """Keep a version given by tensors."""
        return self.add(self._layout.flatten(weights))

    def vector(self, digest: str) -> NDArray[np.float32]:
        """A version, flat; read-only. Raises StorageError: when it was not kept; ``checkpoint_damaged`` when its file
        is no longer there, or holds something else.
        """
        if digest not in self._vectors:
            if self._folder is None:
                raise StorageError(f"Version {digest[:12]} was not kept.", hint="Give the simulation a folder.")
            data = read_named(self._path_of(self._folder, digest), digest)
            self._vectors[digest] = self._layout.flatten(decode_tensors(data))
            self._sizes[digest] = len(data)
        view = self._vectors[digest].view()
        view.flags.writeable = False
        return view

    def read(self, digest: str) -> ArrayDict:
        """The tensors of a version, as read-only views. Raises StorageError when it is no longer there."""
        vector, slices = self.vector(digest), self._layout.slices
        return {name: vector[slice(*slices[name])].reshape(shape) for name, shape in self._layout.shapes.items()}

    def size(self, digest: str) -> int:
        """Bytes of a version's file."""
        self.vector(digest)
        return self._sizes[digest]

    def retain(self, digests: Iterable[str]) -> None:
        """Forget all versions in memory but these."""
        wanted = set(digests)
        self._vectors = {digest: vector for digest, vector in self._vectors.items() if digest in wanted}
        self._sizes = {digest: size for digest, size in self._sizes.items() if digest in wanted}

    @staticmethod
    def _path_of(folder: Path, digest: str) -> Path:
        return folder / f"{digest}.safetensors"


def read_named(path: Path, digest: str) -> bytes:
    """A file whose SHA-256 is known. Raises StorageError (``checkpoint_damaged``) for a missing or a different one."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise damaged(path, str(error)) from error
    if sha256_hex(data) != digest:
        raise damaged(path, "its content has changed since it was written")
    return data


def damaged(path: Path, why: str) -> StorageError:
    """A file of a run that cannot be used."""
    return StorageError(
        f"{path} cannot be read: {why}.",
        hint="Use another folder, or start again without resume.",
        code="checkpoint_damaged",
    )
