"""Which user primitives have a name here, and which kernels run them.

A graph needs no registry: its nodes carry the rules of what they apply. A registry answers where only a name is known,
in text and files, and where a kernel is chosen by dtypes. It is a value; nothing is registered by importing.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from coterie.compute.extension.row import UserPrimitive
from coterie.compute.ir import DTYPES
from coterie.compute.source import user_source
from coterie.errors import InputError

Signature = tuple[str, ...]


class Registry:
    """Primitives by name, and kernels by primitive and dtypes of the operands."""

    def __init__(self) -> None:
        self._primitives: dict[str, UserPrimitive] = {}
        self._origins: dict[str, str] = {}
        self._kernels: dict[tuple[UserPrimitive, Signature], Callable[..., Any]] = {}

    @property
    def primitives(self) -> dict[str, UserPrimitive]:
        """All primitives by name (a copy)."""
        return dict(self._primitives)

    @property
    def kernels(self) -> dict[tuple[UserPrimitive, Signature], Callable[..., Any]]:
        """All kernels (a copy)."""
        return dict(self._kernels)

    def register(self, primitive: UserPrimitive, *, origin: str | None = None) -> UserPrimitive:
        """Give a primitive its name here, and return it. Registering it again changes nothing.

        origin: who registers it, for messages; the caller's line when absent. Raises InputError for a name that another
        primitive has.
        """
        held = self._primitives.get(primitive.name)
        if held is not None and held is not primitive:
            raise InputError(
                f"The primitive {primitive.name!r} is already registered by {self._origins[primitive.name]}.",
                hint='Choose another name, e.g. "package.name".',
                code="name_taken",
            )
        if held is None:
            self._primitives[primitive.name] = primitive
            self._origins[primitive.name] = origin or user_source()
        return primitive

    def register_kernel(
        self, primitive: UserPrimitive | str, dtypes: str | Signature, implementation: Callable[..., Any]
    ) -> None:
        """Say what runs a primitive for operands of these dtypes in eager mode and in `interpret`, which are NumPy's.
        Files hold the primitive's lowering instead, also those that `jit` and devices run.

        dtypes: one for each operand, or one for all. implementation: a NumPy function, or a class that obeys
        :class:`coterie.compute.extension.kernels.Kernel`. Raises InputError for a primitive or dtype that does not
        exist, and for a combination that already has a kernel.
        """
        found = self.find(primitive) if isinstance(primitive, str) else primitive
        if found is None:
            raise InputError(f"No primitive {primitive!r} is registered.", hint="register(...) it first.")
        signature = (dtypes,) * len(found.inputs) if isinstance(dtypes, str) else tuple(dtypes)
        if len(signature) != len(found.inputs) or not set(signature) <= set(DTYPES):
            raise InputError(
                f"{found.name} has the operands {', '.join(found.inputs)}, and a kernel cannot take {signature}.",
                hint=f"Give one dtype for each, out of {', '.join(DTYPES)}.",
            )
        if not callable(implementation):
            raise InputError(
                f"The kernel of {found.name} is an object of {type(implementation).__name__}.",
                hint="Pass the class: it is made anew for every signature.",
            )
        key = (found, signature)
        if self._kernels.setdefault(key, implementation) is not implementation:
            raise InputError(f"{found.name} already has a kernel for ({', '.join(signature)}).", code="name_taken")

    def merge(self, other: "Registry", *, origin: str) -> None:
        """Take everything of another registry, or raise InputError and take nothing."""
        taken = [name for name, row in other._primitives.items() if self._primitives.get(name, row) is not row]
        for name in taken[:1]:
            self.register(other._primitives[name])  # raises
        double = [key for key, kernel in other._kernels.items() if self._kernels.get(key, kernel) is not kernel]
        for row, signature in double[:1]:
            self.register_kernel(row, signature, other._kernels[(row, signature)])  # raises
        for row in other._primitives.values():
            self.register(row, origin=origin)
        self._kernels |= other._kernels

    def find(self, name: str) -> UserPrimitive | None:
        """The primitive of a name, if there is one."""
        return self._primitives.get(name)

    def kernel(self, primitive: UserPrimitive, dtypes: Signature) -> Callable[..., Any] | None:
        """The kernel for a combination, if there is one."""
        return self._kernels.get((primitive, dtypes))

    def combinations(self, primitive: UserPrimitive) -> list[str]:
        """Which kernels a primitive has, in words."""
        return [f"({', '.join(dtypes)})" for row, dtypes in self._kernels if row is primitive]


_PROCESS = Registry()
_ACTIVE: ContextVar[Registry] = ContextVar("coterie_registry", default=_PROCESS)


def active_registry() -> Registry:
    """The registry of this context: the process's own, unless :func:`use_registry` chose another."""
    return _ACTIVE.get()


@contextmanager
def use_registry(registry: Registry) -> Generator[Registry]:
    """Look names and kernels up in this registry for the lines inside."""
    token = _ACTIVE.set(registry)
    try:
        yield registry
    finally:
        _ACTIVE.reset(token)


def register(primitive: UserPrimitive) -> UserPrimitive:
    """Give a primitive its name in the registry of this context (:meth:`Registry.register`); also a decorator."""
    return active_registry().register(primitive)


def register_kernel(
    primitive: UserPrimitive | str, dtypes: str | Signature, implementation: Callable[..., Any]
) -> None:
    """Say what runs a primitive, in the registry of this context (:meth:`Registry.register_kernel`)."""
    active_registry().register_kernel(primitive, dtypes, implementation)
