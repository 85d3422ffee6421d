"""Names that a package does not have: what was most likely meant, and what to write instead."""

import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from coterie.errors import nearest


def refuser(package: str, elsewhere: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """The ``__getattr__`` of a package, for names that it does not have.

    package: its full name. elsewhere: names of other frameworks, and what does that here.
    Raises AttributeError that says what to write.
    """

    def refuse(name: str) -> NoReturn:
        near = nearest(name, _functions(package))
        told = f" Here that is {elsewhere[name]}." if name in elsewhere else f" Did you mean {near}?" if near else ""
        raise AttributeError(f"{package} has no {name!r}.{told}", name=name)

    return refuse


def _functions(package: str) -> list[str]:
    """The public functions and classes of a package: its own, and those that it loads on first use."""
    found = vars(sys.modules[package])
    own = [
        name
        for name, value in found.items()
        if not name.startswith("_") and callable(value) and str(getattr(value, "__module__", "")).startswith(package)
    ]
    return sorted({*own, *found.get("_HOMES", ())})
