"""The decorator that makes a primitive of the user's own."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import Any, cast

from coterie.compute.extension.row import Hook, UserPrimitive, plain
from coterie.compute.ir import Attribute
from coterie.compute.table import PRIMITIVES
from coterie.errors import InputError

HOOKS = ("infer_shape", "infer_dtype", "kernel", "vjp", "batch", "lower")
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def primitive(
    name: str,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str] = ("output",),
    attributes: Mapping[str, Attribute | EllipsisType] | None = None,
) -> Callable[[Any], UserPrimitive]:
    """A decorator that makes a primitive of a class of hooks, or of a function that is its lowering.

        @primitive("example.scaled_add", inputs=("x", "y"), outputs=("sum",), attributes={"scale": 1.0})
        class scaled_add:
            def infer_shape(x, y, *, scale): return x          # shapes → a shape (several outputs: one for each)
            def infer_dtype(x, y, *, scale): return x          # dtypes → a dtype
            def kernel(x, y, *, scale): return x + scale * y   # NumPy arrays → NumPy arrays
            def vjp(x, y, out, dout, *, scale): return dout, scale * dout    # one cotangent for each operand, or None
            def batch(call): ...                               # coterie.compute.primitives.row.Batched → arrays
            def lower(x, y, *, scale): return x + scale * y    # the same in array functions

    What is called works on arrays at once, inside traces, ``grad``, ``vmap``, ``jit`` and control flow, and in the text
    form. attributes: names and defaults of static parameters; ``...`` for one that must be given.

    Hooks may be left out. The types then come from the lowering (infer_dtype alone: all dtypes are the one of the
    operands), the value from a registered kernel or the lowering, gradient and batch rule from those of the lowering.
    Without a lowering the primitive runs on the host alone: ``jit`` compiles what stands before and behind it, and an
    export refuses it by name. An inference hook refuses operands by ValueError, TypeError, ShapeError or DTypeError.
    ``kernel`` may also be a class that obeys :class:`coterie.compute.extension.kernels.Kernel`.

    Nothing is registered: a graph carries its primitives, and only names in text need ``register``. Raises InputError
    for a name of the core, for hooks that do not exist or do not take the operands, and for a primitive that says
    neither its types nor its lowering.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"{name!r} is not a name for a primitive.", hint='Use letters, e.g. "package.name".')
    if name in PRIMITIVES:
        raise InputError(
            f"{name!r} is a primitive of the core, whose table is closed.",
            hint='Choose another name, e.g. "package.name".',
            code="name_taken",
        )
    defaults = dict(attributes or {})
    _check_names(name, [*inputs, *outputs, *defaults], len(inputs), len(outputs))
    static: dict[str, Attribute | EllipsisType] = {
        key: value if value is ... else plain(name, key, value) for key, value in defaults.items()
    }

    def decorate(definition: Any) -> UserPrimitive:
        hooks = _hooks(name, definition)
        for hook, count in (("infer_shape", 0), ("infer_dtype", 0), ("kernel", 0), ("lower", 0), ("vjp", 2)):
            _check_signature(name, hook, hooks.get(hook), len(inputs) + count, list(static))
        if "lower" not in hooks and "infer_shape" not in hooks:
            raise InputError(
                f"The primitive {name!r} says neither its types nor its lowering.",
                hint="Give it infer_shape (and infer_dtype), or lower.",
            )
        return UserPrimitive(
            name=name,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            attributes=static,
            **cast(Any, hooks),
        )

    return decorate


def _check_names(name: str, names: Sequence[str], inputs: int, outputs: int) -> None:
    wrong = [each for each in names if not each.isidentifier()]
    operands = [each for index, each in enumerate(names) if not inputs <= index < inputs + outputs]
    if wrong or len(set(operands)) < len(operands) or "primitive" in operands or not outputs:
        raise InputError(
            f"The primitive {name!r} cannot have the names {list(names)}.",
            hint='Operands and attributes need different identifiers, none of them "primitive", and one output.',
        )


def _hooks(name: str, definition: Any) -> dict[str, Hook]:
    if not inspect.isclass(definition):
        if not callable(definition):
            raise InputError(f"The primitive {name!r} needs a class of hooks or a function.")
        return {"lower": definition}
    classes = definition.__mro__[:-1]  # hooks may be inherited, but not from object
    found = {key for each in classes for key in vars(each) if not key.startswith("_")}
    if unknown := sorted(found - set(HOOKS)):
        raise InputError(f"The primitive {name!r} has no hook {', '.join(unknown)}.", hint=f"There are {HOOKS}.")
    hooks = {key: getattr(definition, key) for key in found}  # through the class: plain functions, static ones too
    if wrong := [key for key, hook in hooks.items() if not callable(hook)]:
        raise InputError(f"The hook {wrong[0]} of {name!r} cannot be called.", hint="Write it as a function.")
    return hooks


def _check_signature(name: str, what: str, hook: Hook | None, count: int, attributes: Sequence[str]) -> None:
    """Whether a hook can be called with so many operands and all attributes. A class is a kernel, called otherwise."""
    if hook is None or inspect.isclass(hook):
        return
    try:
        signature = inspect.signature(hook)
    except ValueError:  # a function of C without one: it is found out when it is called
        return
    try:
        signature.bind(*[None] * count, **dict.fromkeys(attributes))
    except TypeError as error:
        raise InputError(
            f"The hook {what} of {name!r} does not take {count} operands and {list(attributes)}: {error}.",
            hint=f"It is {what}{signature}.",
        ) from error
