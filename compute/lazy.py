"""Public names of a package that are loaded when they are first asked for: importing the package costs little."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def loader(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package. homes: each public name, and the module that holds it: below the package, or
    by its full name.

    Raises AttributeError for another name, as Python does.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        return getattr(import_module(home if home.startswith("coterie.") else f"{package}.{home}"), name)

    return find
