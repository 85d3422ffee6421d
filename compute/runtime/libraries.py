"""Execution providers that come as libraries of their own: plug-ins of ONNX Runtime in packages beside it.

Such a package (``onnxruntime-ep-webgpu``, ``onnxruntime-qnn``) brings a shared library and a module that tells its
path. The library is registered once a process, when somebody first asks for what is not built into ONNX Runtime; its
code runs from then on. A process of its own does so before, which a library that is no such thing may end:
``python -m coterie.compute.runtime.libraries PACKAGE``.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import distributions
from typing import Any, Final, cast

import onnxruntime  # pyright: ignore[reportMissingTypeStubs]

from coterie.compute.runtime.apart import leave, teller, told_apart

# Packages of plug-ins are called onnxruntime-ep-NAME; this one is older than the custom.
_PREFIX, _OTHERS = "onnxruntime-ep-", frozenset({"onnxruntime-qnn"})
_ERRORS_ONLY = 3
REGISTERED_S: Final = 60.0


@dataclass(frozen=True)
class Library:
    """A package with a plug-in. providers: the names of those that work on this machine. fault: why there are none; ""
    where there are some.
    """

    package: str
    version: str
    providers: tuple[str, ...] = ()
    fault: str = ""


def plugin_devices(provider: str) -> list[Any]:
    """ONNX Runtime's devices for the provider of a plug-in; none where no installed plug-in brings it."""
    if not any(provider in library.providers for library in plugin_libraries()):
        return []
    return [device for device in cast(Any, onnxruntime).get_ep_devices() if device.ep_name == provider]


@cache
def plugin_libraries() -> tuple[Library, ...]:
    """The installed packages with plug-ins, by name, each registered with ONNX Runtime.

    A package that is broken, or that finds no device here, is listed with its fault and hides no other one.
    """
    found = {
        name: str(package.version)
        for package in distributions()
        if (name := str(package.name).lower().replace("_", "-")).startswith(_PREFIX) or name in _OTHERS
    }
    return tuple(_registered(name, found[name]) for name in sorted(found))


def _registered(package: str, version: str) -> Library:
    _, ending = told_apart(__name__, package, limit_s=REGISTERED_S)
    if ending:
        return Library(package, version, fault=f"the process that registered it {ending}")
    try:
        usable = register(package)
    except Exception as error:  # foreign code: whatever it raises is told as its fault
        return Library(package, version, fault=_said(error))
    if usable:
        return Library(package, version, usable)
    return Library(package, version, fault="it finds no device on this machine")


def register(package: str) -> tuple[str, ...]:
    """Register a package's library in this process; gives the names of its providers that have a device here. Raises
    whatever the package raises.
    """
    runtime = cast(Any, onnxruntime)
    module = import_module(package.replace("-", "_"))
    # Told by ONNX Runtime's own logger otherwise, for every device that a plug-in only may use.
    runtime.set_default_logger_severity(_ERRORS_ONLY)
    runtime.register_execution_provider_library(package, str(module.get_library_path()))
    present = {str(device.ep_name) for device in runtime.get_ep_devices()}
    return tuple(sorted(set(map(str, _names(module))) & present))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _names(module: Any) -> list[str]:
    return list(module.get_ep_names()) if hasattr(module, "get_ep_names") else [str(module.get_ep_name())]


def library_versions() -> Mapping[str, str]:
    """Provider → version of the plug-in that brings it."""
    return {name: library.version for library in plugin_libraries() for name in library.providers}


def main() -> None:
    """Register one package's library, and tell nothing: the process ends well, or it does not."""
    teller(REGISTERED_S)
    try:
        register(sys.argv[1])
    except Exception as error:  # see _registered
        sys.exit(_said(error))
    leave()


if __name__ == "__main__":
    main()
