"""httpx without its command line.

``import httpx`` also imports the ``httpx`` command (click, pygments, rich) wherever those happen to be installed, which
is a third of its import time. The package itself treats that command as optional, so while it loads, the module that
holds it is declared absent. Every other module of the SDK takes httpx from here.
"""

import importlib
import sys
from types import ModuleType
from typing import cast

_COMMAND = "httpx._main"


def _load() -> None:
    if "httpx" in sys.modules:
        return
    # None in sys.modules is how Python spells "importing this fails"; it is taken away again so that the command still
    # works for those who want it.
    sys.modules[_COMMAND] = cast(ModuleType, None)
    try:
        importlib.import_module("httpx")
    finally:
        del sys.modules[_COMMAND]


_load()

import httpx  # noqa: E402

__all__ = ["httpx"]
