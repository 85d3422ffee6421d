"""Memory of step loops: of the host, or of the device that makes the steps, where state stays between them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.runtime.session import MEMORIES, OrtValue, ortvalue_in, ortvalue_over
from coterie.compute.runtime.tensors import TensorInfo


class Slot(Protocol):
    """Memory of one tensor, which ONNX Runtime reads and writes in every step."""

    @property
    def info(self) -> TensorInfo: ...

    @property
    def value(self) -> OrtValue: ...

    def write(self, array: NDArray) -> None:
        """Copy an array of the tensor's dtype and shape into it."""
        ...

    def read(self) -> NDArray:
        """A copy in an array of its own."""
        ...


Memory: TypeAlias = Callable[[TensorInfo], Slot]
"""Makes a zeroed slot for a tensor."""


@dataclass(frozen=True)
class HostSlot:
    """Memory of the host, seen from NumPy and from ONNX Runtime: both share one buffer."""

    info: TensorInfo
    array: NDArray
    value: OrtValue

    @staticmethod
    def make(info: TensorInfo) -> "HostSlot":
        """A zeroed slot."""
        array = info.zeros()
        return HostSlot(info, array, ortvalue_over(array))

    def write(self, array: NDArray) -> None:
        """Copy into the shared buffer."""
        np.copyto(self.array, array)

    def read(self) -> NDArray:
        """A copy of the shared buffer."""
        return self.array.copy()


@dataclass(frozen=True)
class DeviceSlot:
    """Memory of a device. Each write and each read is one copy between the host and the device."""

    info: TensorInfo
    value: OrtValue

    @staticmethod
    def make(info: TensorInfo, memory: str) -> "DeviceSlot":
        """A zeroed slot. memory: ONNX Runtime's name for the device's memory."""
        slot = DeviceSlot(info, ortvalue_in(memory, info))
        slot.write(info.zeros())
        return slot

    def write(self, array: NDArray) -> None:
        """Copy to the device."""
        if self.info.nbytes:
            self.value.update_inplace(np.ascontiguousarray(array).reshape(self.info.shape))

    def read(self) -> NDArray:
        """Copy to the host."""
        return self.value.numpy().copy() if self.info.nbytes else self.info.zeros()


def memory_of(provider: str) -> Memory:
    """Where tensors of a provider lie between steps: on its device for those of ``MEMORIES``, else on the host.

    A version of ONNX Runtime that cannot allocate there gives the host's memory, which every provider can read.
    """
    name = MEMORIES.get(provider)
    if name is None:
        return HostSlot.make
    try:
        DeviceSlot.make(TensorInfo("probe", "float32", (1,)), name)
    except Exception:  # the binding raises classes of its own, with no common base but Exception
        return HostSlot.make
    return lambda info: DeviceSlot.make(info, name)
