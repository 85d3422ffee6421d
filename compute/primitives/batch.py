"""Batch rules that several families share. The examples of a mapped operand lie along its axis 0, and so do those of
every result.
"""

from typing import Any

from coterie.compute.array_type import Array, bind
from coterie.compute.primitives import rules
from coterie.compute.primitives.row import Batch, Batched


def unary(call: Batched) -> Array:
    """A function of every element: it does not see the axis."""
    return bind(call.name, *call.inputs, **call.attributes)


def elementwise(call: Batched) -> Array:
    """Operands that broadcast against each other: the axis of examples must stand in front of all of theirs."""
    return bind(call.name, *aligned(call), **call.attributes)


def aligned(call: Batched) -> list[Array]:
    """The operands, the mapped ones with axes of size 1 behind the examples, so that all examples have one rank."""
    pairs = list(zip(call.inputs, call.mapped, strict=True))
    rank = max(array.ndim - mapped for array, mapped in pairs)
    return [
        rules.reshape(array, (call.size, *(1,) * (rank + 1 - array.ndim), *array.shape[1:])) if mapped else array
        for array, mapped in pairs
    ]


def shifted(*names: str) -> Batch:
    """A function along axes that these attributes name, each an axis or a tuple of axes."""

    def rule(call: Batched) -> Array:
        moved: dict[str, Any] = {}
        for name in names:
            axes = call.attributes[name]
            moved[name] = axes + 1 if isinstance(axes, int) else tuple(axis + 1 for axis in axes)
        return bind(call.name, *call.inputs, **{**call.attributes, **moved})

    return rule


def all_mapped(call: Batched) -> list[Array]:
    """The operands, those that all examples share repeated for each."""
    return [
        array if mapped else rules.broadcast_to(array, (call.size, *array.shape))
        for array, mapped in zip(call.inputs, call.mapped, strict=True)
    ]


def folded(x: Array) -> Array:
    """[examples, images, ...] as [examples * images, ...]."""
    return rules.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def unfolded(x: Array, size: int) -> Array:
    """The inverse of :func:`folded`."""
    return rules.reshape(x, (size, x.shape[0] // size, *x.shape[1:]))


def images(call: Batched) -> Array:
    """A function of images one by one, with operands that all examples share: examples are only more images."""
    return unfolded(bind(call.name, folded(call.inputs[0]), *call.inputs[1:], **call.attributes), call.size)
