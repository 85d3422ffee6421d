"""Memory that a parent shares with its worker processes, so that arrays are written once and never sent.

It is cut into slots of so many addresses that a batch will fit; only what is written takes memory. It has no name in
any file system: when the last process that maps it has ended, however it ended, the memory is free.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from multiprocessing import reduction
from typing import Any, cast

import numpy as np

from coterie.compute.ir import NDArray

SLOT_BYTES = 1 << 30
# Batches that a consumer may hold at a time in slots: the one that it works on, the next, and a few more.
HELD = 4
_LINE = 64  # a line of the processor's cache
# Shorter arrays are sent as quickly as found.
_SMALL = 1 << 10


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a slot an array begins, its dtype and its shape."""

    start: int
    dtype: str
    shape: tuple[int, ...]

    def view(self, slot: NDArray) -> NDArray:
        """The array, in the slot."""
        dtype = np.dtype(self.dtype)
        return slot[self.start : self.start + prod(self.shape) * dtype.itemsize].view(dtype).reshape(self.shape)


class Slots:
    """``count`` slots. Sent to a process that is being spawned they are the same memory there.

    Raises OSError where the system has no memory without a name, or refuses so many addresses.
    """

    def __init__(self, count: int) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("This system has no memory that can be shared without a name.")
        file = os.memfd_create("coterie-data")
        weakref.finalize(self, os.close, file)
        os.ftruncate(file, count * SLOT_BYTES)
        self._map(file)

    def _map(self, file: int) -> None:
        self._file = file
        self._mapped = mmap.mmap(file, 0)

    def bytes(self, number: int) -> NDArray:
        """The bytes of a slot, uint8 [SLOT_BYTES]: each time an array of its own, which its views keep alive."""
        return np.frombuffer(self._mapped, np.uint8, SLOT_BYTES, number * SLOT_BYTES)

    def __getstate__(self) -> Mapping[str, Any]:
        return {"file": reduction.DupFd(self._file)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        file: int = state["file"].detach()
        weakref.finalize(self, os.close, file)
        self._map(file)


@dataclass(frozen=True, eq=False)
class Slot:
    """A slot that was lent; or none, without number and bytes."""

    number: int | None
    bytes: NDArray


NO_SLOT = Slot(None, np.empty(0, np.uint8))


class Lender:
    """Up to ``count`` slots, of which each is lent to one borrower at a time; none, where memory cannot be shared."""

    def __init__(self, count: int) -> None:
        try:
            self.slots: Slots | None = Slots(count)
        except OSError:
            self.slots = None
        # The one that came back last is the next to be lent, so that no more of them are used than are needed.
        self.free = deque(range(count))

    def lend(self) -> Slot:
        """A slot, or none if there is none. It comes back when the last view of its bytes is gone."""
        if self.slots is None or not self.free:
            return NO_SLOT
        number = self.free.pop()
        slot = Slot(number, self.slots.bytes(number))
        weakref.finalize(slot.bytes, self.free.append, number).atexit = False
        return slot


class Room:
    """Where a worker makes the arrays of one piece: in a slot while there is room, else in memory of its own."""

    def __init__(self, slot: NDArray) -> None:
        self._slot = slot
        self._address = _address(slot)
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray:
        """An array to be filled."""
        start, size = self._used, prod(shape) * dtype.itemsize
        if start + size > len(self._slot):
            return np.empty(shape, dtype)
        self._used = -(-(start + size) // _LINE) * _LINE
        return self._slot[start : start + size].view(dtype).reshape(shape)

    def place(self, array: NDArray) -> Place | None:
        """Where the array is, or where a copy of it has been put; None where there is no room for that."""
        start = _address(array) - self._address
        if not (0 <= start < self._used and array.flags.c_contiguous):
            made = self.empty(array.shape, array.dtype)
            start = _address(made) - self._address
            if not 0 <= start < self._used:
                return None
            made[...] = array
        return Place(start, array.dtype.str, array.shape)


def pack(columns: Mapping[str, Any], room: Room) -> dict[str, Any]:
    """Columns to be sent to another process: arrays are left in the room's slot, and their places are sent."""
    return {name: _packed(values, room) for name, values in columns.items()}


def _packed(values: object, room: Room) -> object:
    if type(values) is not np.ndarray:
        return values
    array = cast(NDArray, values)
    place = room.place(array) if array.nbytes >= _SMALL and array.dtype.kind in "biufc" else None
    return values if place is None else place


def unpack(columns: Mapping[str, Any], slot: NDArray) -> dict[str, Any]:
    """The columns. Arrays are views of the slot, which nobody may write to before all of them are gone."""
    return {name: values.view(slot) if isinstance(values, Place) else values for name, values in columns.items()}


def unpack_copies(columns: Mapping[str, Any], slot: NDArray) -> dict[str, Any]:
    """The columns, with arrays of their own."""
    return {name: values.view(slot).copy() if isinstance(values, Place) else values for name, values in columns.items()}


def _address(array: NDArray) -> int:
    return array.__array_interface__["data"][0]
