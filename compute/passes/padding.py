"""Rules on padding: what is cut off again is never added, and what is only added to zeros is laid beside them."""

import numpy as np

from coterie.compute.ir import Node, Value
from coterie.compute.passes.rewrite import View

Shape = tuple[int, ...]


def sliced(node: Node, view: View) -> Value | None:
    """A slice of a padding: a padding of a slice, with less of both. A slice inside one part of a concatenation: a
    slice of that part.
    """
    starts: Shape = node.attributes["starts"]
    stops: Shape = node.attributes["stops"]
    if inner := view.producer(node.inputs[0], "concat"):
        return _of_one_part(inner, view, starts, stops)
    inner = view.producer(node.inputs[0], "pad")
    if inner is None:
        return None
    x, before = inner.inputs[0], inner.attributes["before"]
    low = tuple(max(a, b) for a, b in zip(starts, before, strict=True))
    high = tuple(min(stop, b + n) for stop, b, n in zip(stops, before, x.type.shape, strict=True))
    if any(b <= a for a, b in zip(low, high, strict=True)):
        number = view.emit_constant(np.asarray(inner.attributes["value"], x.type.dtype))
        return view.emit("broadcast_to", number, shape=node.output.type.shape)
    front = tuple(a - start for a, start in zip(low, starts, strict=True))
    back = tuple(stop - b for b, stop in zip(high, stops, strict=True))
    if any((*front, *back)) and view.uses(node.inputs[0]) > 1:
        return None
    part = _slice(
        view,
        x,
        tuple(a - b for a, b in zip(low, before, strict=True)),
        tuple(a - b for a, b in zip(high, before, strict=True)),
    )
    return _pad(view, part, front, back, inner.attributes["value"])


def _of_one_part(inner: Node, view: View, starts: Shape, stops: Shape) -> Value | None:
    axis: int = inner.attributes["axis"]
    begin = 0
    for part in inner.inputs:
        end = begin + part.type.shape[axis]
        if begin <= starts[axis] and stops[axis] <= end:
            shifted = [
                tuple(n - begin if i == axis else n for i, n in enumerate(numbers)) for numbers in (starts, stops)
            ]
            return _slice(view, part, *shifted)
        begin = end
    return None


def padded(node: Node, view: View) -> Value | None:
    """A padding of a padding with the same number: one padding."""
    inner = view.producer(node.inputs[0], "pad")
    if inner is None or inner.attributes["value"] != node.attributes["value"]:
        return None
    before, after = (
        tuple(a + b for a, b in zip(node.attributes[side], inner.attributes[side], strict=True))
        for side in ("before", "after")
    )
    return _pad(view, inner.inputs[0], before, after, node.attributes["value"])


def summed(node: Node, view: View) -> Value | None:
    """The sum over an axis that was padded with zeros: the sum without them."""
    inner = _zero_pad(view, node.inputs[0])
    if inner is None:
        return None
    axes: Shape = node.attributes["axes"]
    before, after = inner.attributes["before"], inner.attributes["after"]
    if any((before[i] or after[i]) and i not in axes for i in range(len(before))):
        return None
    return view.emit("sum", inner.inputs[0], **node.attributes)


def multiplied(node: Node, view: View) -> Value | None:
    """A product with what was padded with zeros: the padding of the product without them."""
    for index in (0, 1):
        value, other = node.inputs[index], node.inputs[1 - index]
        inner = _zero_pad(view, value)
        if inner is None or view.uses(value) > 1 or value.type != node.output.type:
            continue
        before, x = inner.attributes["before"], inner.inputs[0]
        if other.type.shape == value.type.shape:
            stops = tuple(b + n for b, n in zip(before, x.type.shape, strict=True))
            other = _slice(view, other, before, stops)
        elif other.type.size != 1 or other.type.rank > x.type.rank:
            continue
        return _pad(view, view.emit("multiply", x, other), before, inner.attributes["after"], 0.0)
    return None


def added(node: Node, view: View) -> Value | None:
    """The sum of two tensors that were padded with zeros so that they do not meet: both beside each other."""
    pads = [_zero_pad(view, value) for value in node.inputs]
    if pads[0] is None or pads[1] is None or any(view.uses(value) > 1 for value in node.inputs):
        return None
    if node.inputs[0].type != node.inputs[1].type:
        return None
    moved = [_padded_axes(pad) for pad in pads if pad is not None]
    if len(moved[0]) != 1 or moved[0] != moved[1]:
        return None
    (axis,) = moved[0]
    first, second = sorted((pads[0], pads[1]), key=lambda pad: pad.attributes["before"][axis])
    begin, end = first.attributes["before"][axis], first.attributes["before"][axis] + first.inputs[0].type.shape[axis]
    gap = second.attributes["before"][axis] - end
    if gap < 0:
        return None
    rank = node.output.type.rank
    left = _pad(view, first.inputs[0], (0,) * rank, _at(rank, axis, gap), 0.0)
    both = view.emit("concat", left, second.inputs[0], axis=axis)
    return _pad(view, both, _at(rank, axis, begin), second.attributes["after"], 0.0)


def _zero_pad(view: View, value: Value) -> Node | None:
    inner = view.producer(value, "pad")
    return inner if inner is not None and inner.attributes["value"] == 0.0 else None


def _padded_axes(pad: Node) -> list[int]:
    sides = zip(pad.attributes["before"], pad.attributes["after"], strict=True)
    return [axis for axis, (before, after) in enumerate(sides) if before or after]


def _at(rank: int, axis: int, count: int) -> Shape:
    return tuple(count if i == axis else 0 for i in range(rank))


def _slice(view: View, x: Value, starts: Shape, stops: Shape) -> Value:
    if (starts, stops) == ((0,) * x.type.rank, x.type.shape):
        return x
    return view.emit("slice", x, starts=starts, stops=stops)


def _pad(view: View, x: Value, before: Shape, after: Shape, value: float) -> Value:
    return view.emit("pad", x, before=before, after=after, value=value) if any((*before, *after)) else x
