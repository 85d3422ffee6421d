"""Methods of a user's own by name, beside the table of coterie's: registered in this process, or brought by a package.

    [project.entry-points."coterie.methods"]
    fedlc = "example_package.fedlc:FedLC"        # a function of numbers that gives an Algorithm of the same name

A coordinator aggregates in processes of its own, so it takes the methods of installed packages. Loading one runs its
code, as importing it would, and happens when a plan names it.
"""

import threading
from collections.abc import Callable
from typing import TypeAlias, cast

from coterie import errors
from coterie.aggregation.horizontal import Algorithm

MakeMethod: TypeAlias = Callable[..., Algorithm]


class OwnMethods:
    """Methods by name. May be used from several threads."""

    def __init__(self) -> None:
        self._made: dict[str, MakeMethod] = {}
        self._lock = threading.Lock()

    def add(self, name: str, make: MakeMethod) -> None:
        """Know a method; the newest of a name counts, as where a cell of a notebook is run again."""
        with self._lock:
            self._made[name] = make

    def find(self, name: str) -> MakeMethod | None:
        """The method of this name: one that was added, else an installed package's. Raises ConfigurationError
        (``plugin_broken``) for a package that offers something else.
        """
        with self._lock:
            known = self._made.get(name)
        if known is not None:
            return known
        # Packages are looked through with the compiler, which servers and devices otherwise never load.
        from coterie.compute.extension.plugins import broken_plugin, installed, loaded

        for point in installed("coterie.methods"):
            if point.name == name:
                found = loaded(point)
                if not callable(found):
                    raise broken_plugin(point, f"{point.value} is a {type(found).__name__}, not a function.")
                make = cast(MakeMethod, found)
                self.add(name, make)
                return make
        return None

    def names(self) -> tuple[str, ...]:
        """All of them, those of packages too."""
        from coterie.compute.extension.plugins import installed

        with self._lock:
            added = set(self._made)
        return tuple(sorted(added | {point.name for point in installed("coterie.methods")}))


_PROCESS = OwnMethods()


def own_methods() -> OwnMethods:
    """Those that this process knows."""
    return _PROCESS


def check_name(name: str, taken: bool) -> None:
    """Raise errors.ExperimentError (``algorithm_parameter``) for a name that is none, or one of coterie's."""
    if not isinstance(cast(object, name), str) or not name.isidentifier() or len(name) > 64:
        raise errors.ExperimentError(
            f"A method's name must be a Python identifier of at most 64 characters, not {name!r}.",
            hint="Write register('fedlc', FedLC).",
            code="algorithm_parameter",
        )
    if taken:
        raise errors.ExperimentError(
            f"{name!r} is a method of coterie's own.", hint="Choose another name.", code="algorithm_parameter"
        )
