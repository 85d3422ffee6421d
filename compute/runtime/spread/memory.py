"""Memory that several processes see, without a name in any file system: when the last of them ends it is gone."""

import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from coterie.compute.ir import NDArray

ALIGNMENT = 64


@dataclass(frozen=True)
class View:
    """A tensor in shared memory: where it begins, in bytes, and what it is."""

    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


class SharedMemory:
    """An anonymous file, mapped. descriptor: what another process maps it by; see `opened`."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor, self.size = descriptor, size
        self._map = mmap.mmap(descriptor, size)

    @staticmethod
    def made(size: int) -> "SharedMemory":
        """New memory, all zeros."""
        size = max(size, mmap.PAGESIZE)
        if sys.platform == "linux":
            descriptor = os.memfd_create("coterie")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, size)
        return SharedMemory(descriptor, size)

    def array(self, view: View) -> NDArray:
        """The tensor as an array over this memory."""
        return np.ndarray(view.shape, view.dtype, buffer=self._map, offset=view.offset)

    def release(self) -> None:
        """Give up what this process has read and written of it: the memory is as it was, and no longer counted as this
        process's until it is touched again.
        """
        if sys.platform == "linux":
            self._map.madvise(mmap.MADV_DONTNEED)

    def forget(self) -> None:
        """Close the descriptor. The memory stays mapped as long as somebody holds an array of it."""
        os.close(self.descriptor)


class Places:
    """Hands out places in memory that is made later, each at a multiple of ``ALIGNMENT`` bytes."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, shape: Sequence[int], dtype: str) -> View:
        """A place for a tensor."""
        view = View(self.size, tuple(shape), dtype)
        self.size += -(-view.nbytes // ALIGNMENT) * ALIGNMENT
        return view
