"""Arrays in memory that several processes of one machine see: tensor files on a memory file system, mapped.

The format is that of every other tensor file, so nothing is pickled, and a reader copies nothing.
"""

import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import StorageError
from coterie.protocol.tensors import open_tensors, tensor_chunks

_MEMORY = Path("/dev/shm")


def make_folder() -> Path:
    """A new folder, in memory where the system has a place for that, else among the temporary files."""
    memory = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None
    return Path(tempfile.mkdtemp(prefix="coterie-simulation-", dir=memory))


def write(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Put tensors into a file. One that exists is overwritten in place, which reuses its memory; whoever still maps it
    sees the new content. Raises StorageError where there is no room.
    """
    try:
        with open(path, "r+b" if path.exists() else "wb") as file:
            for chunk in tensor_chunks(tensors):
                file.write(chunk)
            file.truncate()
    except OSError as error:
        raise StorageError(
            f"Cannot write to the memory that processes share, {path}: {error.strerror}.",
            hint="Containers have little shared memory: start this one with more (--shm-size), or use "
            "engine='threads'.",
        ) from error


def read(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a file, as read-only views of the shared memory. They stay valid when the file is removed."""
    opened = open_tensors(path)
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return {
        name: np.frombuffer(view, info.dtype, info.size, info.start).reshape(info.shape)
        for name, info in opened.tensors.items()
    }
