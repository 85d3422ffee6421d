"""What lies under an execution provider: the part of it that no package's version tells.

A provider that was tried is tried again when its driver is another one. What is told here need not name the driver's
makers; it must change when the driver does.
"""

import platform
from collections.abc import Callable, Mapping
from pathlib import Path

from coterie.compute.runtime.vulkan import vulkan_devices


def driver_of(provider: str) -> str:
    """What a provider of ONNX Runtime runs on here: the processor, the GPU's driver, the Vulkan device; the operating
    system's kernel, with which drivers come, for a provider that is not in the table.
    """
    return _DRIVERS.get(provider, _kernel)()


def _processor() -> str:
    """The processor's model: kernels of the CPU are chosen by what instructions it has."""
    found = _line_of(Path("/proc/cpuinfo"), "model name") or platform.processor()
    return f"{found.partition(':')[2].strip() or found} ({platform.machine()})".strip()


def _nvidia() -> str:
    return _line_of(Path("/proc/driver/nvidia/version"), "NVRM version").partition(":")[2].strip() or _kernel()


def _vulkan() -> str:
    return "; ".join(map(str, vulkan_devices())) or _kernel()


def _kernel() -> str:
    return f"{platform.system()} {platform.release()} ({platform.machine()})"


def _line_of(path: Path, start: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(start)), "")


_DRIVERS: Mapping[str, Callable[[], str]] = {
    "CPUExecutionProvider": _processor,
    "OpenVINOExecutionProvider": _processor,
    "CUDAExecutionProvider": _nvidia,
    "TensorrtExecutionProvider": _nvidia,
    "NvTensorRTRTXExecutionProvider": _nvidia,
    "WebGpuExecutionProvider": _vulkan,
}
