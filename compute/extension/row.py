"""What a user's primitive is: one row of hooks, which every node that applies it carries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, TypeAlias, cast

from coterie.compute.array_type import Array, as_array, bind_all
from coterie.compute.ir import Attribute, Attributes
from coterie.compute.source import user_source
from coterie.errors import InputError

Hook: TypeAlias = Callable[..., Any]

NODE = "user"
"""The primitive that every node of a user's primitive applies; its row reads the rules from the node."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UserPrimitive:
    """A primitive of the user's. :func:`coterie.compute.primitive` makes one and documents the hooks; calling it
    applies it, to arrays outside a trace and inside. Two are equal only when they are one.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute | EllipsisType]
    infer_shape: Hook | None = None
    infer_dtype: Hook | None = None
    kernel: Hook | None = None
    vjp: Hook | None = None
    batch: Hook | None = None
    lower: Hook | None = None
    instead: str = ""  # what to do where it cannot leave this process, for messages

    def __call__(self, *operands: Any, **named: Any) -> Any:
        """The result as an array, or a tuple of them where there are several outputs.

        Operands come by position or by name, attributes by name. Raises InputError for a wrong number of operands or
        an attribute that does not exist; ShapeError or DTypeError, with the user's line, the name of the primitive and
        the types of all operands, for operands that the hooks refuse.
        """
        arrays = [as_array(operand) for operand in self._operands(operands, named)]
        attributes = {"primitive": self, **self._static(named)}
        results = bind_all(NODE, arrays, attributes)
        return results[0] if len(self.outputs) == 1 else results

    @property
    def __name__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<primitive {self.name}({', '.join(self.inputs)}) -> {', '.join(self.outputs)}>"

    def _operands(self, operands: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
        given = dict(zip(self.inputs, operands, strict=False))
        twice = [name for name in self.inputs if name in given and name in named]
        given |= {name: named[name] for name in self.inputs if name in named}
        missing = [name for name in self.inputs if name not in given]
        if missing or twice or len(operands) > len(self.inputs):
            told = f"lacks {missing}" if missing else f"got {twice} twice" if twice else f"got {len(operands)}"
            raise InputError(
                f"{user_source()}: {self.name} takes the operands {', '.join(self.inputs)} and {told}.",
                hint="Pass each operand once; everything else is an attribute and comes by name.",
            )
        return [given[name] for name in self.inputs]

    def _static(self, named: Mapping[str, Any]) -> dict[str, Attribute]:
        found = {**self.attributes, **{name: value for name, value in named.items() if name not in self.inputs}}
        if unknown := sorted(set(found) - set(self.attributes)):
            raise InputError(
                f"{user_source()}: {self.name} has no attribute {', '.join(unknown)}.",
                hint=f"It has {sorted(self.attributes) or 'none'}.",
            )
        if missing := sorted(name for name, value in found.items() if value is ...):
            raise InputError(f"{user_source()}: {self.name} needs the attribute {', '.join(missing)}.")
        return {name: plain(self.name, name, value) for name, value in found.items()}


def plain(primitive: str, name: str, value: Any) -> Attribute:
    """An attribute as it is kept: bool, int, float, str, or a tuple of them. Raises InputError for anything else, which
    could not be written down or compared.
    """
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(plain(primitive, name, item) for item in cast("list[Any]", value))
    raise InputError(
        f"{user_source()}: the attribute {name} of {primitive} is a {type(value).__name__}.",
        hint="Attributes are numbers, strings and tuples of them; pass an array as an operand.",
    )


def static(attributes: Attributes) -> dict[str, Attribute]:
    """The attributes of a node without the primitive that it carries: what the hooks are given."""
    return {name: value for name, value in attributes.items() if name != "primitive"}


def listed(primitive: UserPrimitive, hook: str, returned: Any) -> list[Array]:
    """What a hook written in arrays returned, as one array for each output. Raises InputError for another number."""
    several = isinstance(returned, (tuple, list))
    results = list(cast("list[Any]", returned)) if several else [returned]
    if len(results) != len(primitive.outputs):
        raise broken(primitive, f"its {hook} returned {len(results)} results instead of {len(primitive.outputs)}.")
    return [as_array(result) for result in results]


def broken(primitive: UserPrimitive, what: str) -> InputError:
    """The error that a primitive breaks one of the laws that its author owes."""
    return InputError(
        f"The primitive {primitive.name!r} is broken: {what}",
        hint="Mend its hooks; check_primitive(...) tries all laws.",
        code="primitive_broken",
    )
