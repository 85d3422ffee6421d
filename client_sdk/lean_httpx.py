"""httpx without its command line.

``import httpx`` also imports the ``httpx`` command (click, pygments, rich) wherever those happen to be installed, which
is a third of its import time. The package itself treats that command as optional, so while it loads, the module that
holds it is declared absent. Every other module of the SDK takes httpx from here.

Its transport asks ``sniffio``, for each of its locks, several a request, which library runs the event loop. Where that
is not installed, Python looks through its whole path for it each time, and the answer is asyncio: so it is looked for
once, and the process remembers that it is absent.

This holds for the whole process, since the transport makes these locks itself, and asks by an import that no argument
reaches. To replace its function would be no narrower, and would leave trio out; to depend on the package would change
what every process of the environment does. What others see stays: the import fails with the same error, ``find_spec``
finds nothing, and one that is installed, or loaded already, is left as it is. Only who installs it into the environment
of a running process has to start that anew.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import cast

_COMMAND = "httpx._main"
_LOOP_NAMER = "sniffio"


def _look_once() -> None:
    if _LOOP_NAMER not in sys.modules and importlib.util.find_spec(_LOOP_NAMER) is None:
        sys.modules[_LOOP_NAMER] = cast(ModuleType, None)


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
_look_once()

import httpx  # noqa: E402

__all__ = ["httpx"]
