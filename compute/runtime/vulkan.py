"""The graphics devices that the machine's Vulkan loader knows, asked of the loader itself.

What WebGPU computes on Linux it computes through Vulkan, so a driver is known by what Vulkan says of it. Numbers of
structures and places of fields are those of the Vulkan 1.0 specification (vkCreateInstance,
vkGetPhysicalDeviceProperties), which later versions keep.
"""

import ctypes
import struct
from ctypes import POINTER, byref, c_char, c_uint32, c_void_p
from dataclasses import dataclass

_LOADERS = ("libvulkan.so.1", "libvulkan.1.dylib", "vulkan-1.dll")
_INSTANCE_CREATE_INFO = 1
# More than the structure has in any version: a driver that is newer than this table writes no further.
_PROPERTY_BYTES, _NAME, _NAME_BYTES, _CACHE_BYTES = 4096, 20, 256, 16


@dataclass(frozen=True)
class VulkanDevice:
    """name: as its driver says it. api: the packed version of Vulkan that it speaks. build: what marks the pipelines
    that this very driver compiled, in hexadecimal digits; another build of the driver has another mark.
    """

    name: str
    api: int
    build: str

    def __str__(self) -> str:
        api = f"{self.api >> 22 & 0x7F}.{self.api >> 12 & 0x3FF}.{self.api & 0xFFF}"
        return f"{self.name}, Vulkan {api}, build {self.build[:8]}"


class _InstanceCreateInfo(ctypes.Structure):
    _fields_ = (
        ("sType", c_uint32),
        ("pNext", c_void_p),
        ("flags", c_uint32),
        ("pApplicationInfo", c_void_p),
        ("enabledLayerCount", c_uint32),
        ("ppEnabledLayerNames", c_void_p),
        ("enabledExtensionCount", c_uint32),
        ("ppEnabledExtensionNames", c_void_p),
    )


def vulkan_devices() -> tuple[VulkanDevice, ...]:
    """The devices in the loader's order; none where there is no loader, no driver or no device."""
    library = _loader()
    if library is None:
        return ()
    instance, count = c_void_p(), c_uint32()
    if library.vkCreateInstance(byref(_InstanceCreateInfo(sType=_INSTANCE_CREATE_INFO)), None, byref(instance)):
        return ()
    try:
        if library.vkEnumeratePhysicalDevices(instance, byref(count), None):
            return ()
        handles = (c_void_p * count.value)()
        # What is beyond zero only says that there are fewer by now.
        if library.vkEnumeratePhysicalDevices(instance, byref(count), handles) < 0:
            return ()
        return tuple(_described(library, c_void_p(handle)) for handle in handles[: count.value])
    finally:
        library.vkDestroyInstance(instance, None)


def _loader() -> ctypes.CDLL | None:
    for name in _LOADERS:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.vkEnumeratePhysicalDevices.argtypes = (c_void_p, POINTER(c_uint32), c_void_p)
        library.vkGetPhysicalDeviceProperties.argtypes = (c_void_p, c_void_p)
        library.vkGetPhysicalDeviceProperties.restype = None
        library.vkDestroyInstance.argtypes = (c_void_p, c_void_p)
        library.vkDestroyInstance.restype = None
        return library
    return None


def _described(library: ctypes.CDLL, handle: c_void_p) -> VulkanDevice:
    properties = (c_char * _PROPERTY_BYTES)()
    library.vkGetPhysicalDeviceProperties(handle, properties)
    (api,) = struct.unpack_from("=I", properties.raw)
    name, rest = properties.raw[_NAME : _NAME + _NAME_BYTES], properties.raw[_NAME + _NAME_BYTES :]
    return VulkanDevice(name.split(b"\0", 1)[0].decode("utf-8", "replace"), api, rest[:_CACHE_BYTES].hex())
