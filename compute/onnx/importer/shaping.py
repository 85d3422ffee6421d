"""Operators on shapes and on the order of elements, and what is computed from shapes."""

from math import prod
from typing import Any

import numpy as np

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.onnx.importer.operation import Operation, Rule, is_known


def _axes(node: Operation, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    if any(not -rank <= axis < rank for axis in axes):
        node.refuse(f"the axes {list(axes)} do not exist in {rank} axes", "The file is damaged: export it again.")
    if len({axis % rank for axis in axes}) < len(axes):
        node.refuse(f"the axes {list(axes)} are not different", "The file is damaged: export it again.")
    return tuple(sorted(axis % rank for axis in axes))


def _reshape(node: Operation) -> Array:
    x = node[0]
    sizes = [int(n) for n in node.known(1)]
    if not node.option("allowzero", 0):
        sizes = [x.shape[index] if n == 0 else n for index, n in enumerate(sizes)]
    return cnp.reshape(x, sizes)


def _flatten(node: Operation) -> Array:
    x = node[0]
    axis = node.option("axis", 1)
    if not -x.ndim <= axis <= x.ndim:
        node.refuse(f"axis {axis} does not exist in {x.ndim} axes", "The file is damaged: export it again.")
    axis = axis + x.ndim if axis < 0 else axis
    return cnp.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def _transpose(node: Operation) -> Array:
    return cnp.permute_dims(node[0], node.option("perm", tuple(reversed(range(node[0].ndim)))))


def _unsqueeze(node: Operation) -> Array:
    x, axes = node[0], node.integers(1, "axes") or ()
    sizes = list(x.shape)
    for axis in _axes(node, axes, x.ndim + len(axes)):
        sizes.insert(axis, 1)
    return cnp.reshape(x, sizes)


def _squeeze(node: Operation) -> Array:
    x, axes = node[0], node.integers(1, "axes")
    given = tuple(i for i, n in enumerate(x.shape) if n == 1) if axes is None else _axes(node, axes, x.ndim)
    return cnp.squeeze(x, given)


def _expand(node: Operation) -> Array:
    x = node[0]
    shape = np.broadcast_shapes(x.shape, tuple(int(n) for n in node.known(1)))
    node.held(prod(shape))
    # A known array stays known: shapes are computed with it.
    return Array(np.broadcast_to(x.numpy(), shape).copy()) if is_known(x) else cnp.broadcast_to(x, shape)


def _shape(node: Operation) -> Array:
    start, end = node.option("start", 0), node.option("end", None)
    return Array(np.asarray(node[0].shape[start:end], np.int64))


def _filled(node: Operation) -> Array:
    value = np.asarray(node.option("value", np.zeros(1, np.float32)))
    shape = tuple(int(n) for n in node.known(0))
    node.held(prod(shape))
    return Array(np.full(shape, value.reshape(-1)[0], value.dtype))


def _slice(node: Operation) -> Array:
    x = node[0]
    starts, ends = (np.asarray(node.known(index)).reshape(-1).tolist() for index in (1, 2))
    axes = node.integers(3, "axes") or tuple(range(len(starts)))
    steps = node.integers(4, "steps") or (1,) * len(starts)
    _axes(node, axes, x.ndim)
    parts: list[Any] = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = axis % x.ndim
        size = x.shape[place]
        # Going down, an end before the first element means "to the first element", which Python writes as None.
        # A start before it is the first element.
        bounds = (max(start, -size), None if end < -size else end) if step < 0 else (start, end)
        parts[place] = slice(*bounds, step)
    return x[tuple(parts)]


def _concat(node: Operation) -> Array:
    return cnp.concat([node[index] for index in range(len(node.inputs))], axis=int(node.attributes["axis"]))


def _split(node: Operation) -> tuple[Array, ...]:
    x, axis = node[0], int(node.option("axis", 0))
    sizes = node.integers(1, "split")
    if sizes is None:
        count = int(node.option("num_outputs", node.outputs))
        if node.opset < 18 and x.shape[axis] % count:
            node.refuse(f"{x.shape[axis]} elements are no {count} equal parts", "The file is damaged: export it again.")
        most = -(-x.shape[axis] // count)
        sizes = (*(most,) * (count - 1), x.shape[axis] - most * (count - 1))
    return tuple(ops.split(x, sizes, axis=axis))


def _part_of_sequence(node: Operation) -> Array:
    """One of the parts that SplitToSequence cuts an array into: the array, how it is cut, which part."""
    x, axis = node[0], int(node.option("axis", 0))
    if not -x.ndim <= axis < x.ndim:
        node.refuse(f"axis {axis} does not exist in {x.ndim} axes", "The file is damaged: export it again.")
    size = x.shape[axis]
    cut = None if node.get(1) is None else np.asarray(node.known(1))
    if cut is None:
        ends = list(range(1, size + 1))
    elif cut.ndim == 0:
        ends = [*range(int(cut), size, int(cut)), size] if cut > 0 else []
    else:
        ends = np.cumsum(cut).tolist()
    index = int(np.asarray(node.known(2)).reshape(-1)[0])
    if not ends or ends[-1] != size or not -len(ends) <= index < len(ends):
        node.refuse(f"{size} elements have no part {index} of these", "The file is damaged: export it again.")
    place = index % len(ends)
    parts: list[Any] = [slice(None)] * x.ndim
    parts[axis % x.ndim] = slice(ends[place - 1] if place else 0, ends[place])
    part = x[tuple(parts)]
    return cnp.squeeze(part, (axis % x.ndim,)) if cut is None and not node.option("keepdims", 1) else part


def _pad(node: Operation) -> Array:
    x = node[0]
    if (how := node.option("mode", "constant")) not in ("constant", "edge", "reflect", "wrap"):
        node.refuse(f"it pads by {how!r}", "The file is damaged: export it again.")
    pads = [int(n) for n in node.known(1)]
    axes = node.integers(3, "axes") or tuple(range(x.ndim))
    value = 0.0 if node.get(2) is None else float(np.asarray(node.known(2)).reshape(-1)[0])
    if len(pads) != 2 * len(axes):
        node.refuse(f"{len(pads)} widths do not fit {len(axes)} axes", "The file is damaged: export it again.")
    _axes(node, axes, x.ndim)
    widths = [(0, 0)] * x.ndim
    for index, axis in enumerate(axes):
        widths[axis % x.ndim] = (pads[index], pads[index + len(axes)])
    node.held(prod(n + a + b for (a, b), n in zip(widths, x.shape, strict=True)))
    # A negative width takes elements away.
    kept = tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(widths, x.shape, strict=True))
    x, widths = x[kept], [(max(a, 0), max(b, 0)) for a, b in widths]
    if how == "constant":
        return cnp.pad(x, widths, value=value)
    for axis, width in enumerate(widths):  # elements that are there already, again
        x = cnp.take(x, Array(np.pad(np.arange(x.shape[axis]), width, how)), axis=axis) if any(width) else x
    return x


def _range(node: Operation) -> Array:
    first, last, step = (node.known(index) for index in range(3))
    node.held(abs(int((last.item() - first.item()) / step.item())))
    return Array(np.arange(first.item(), last.item(), step.item(), dtype=first.dtype))


def _tile(node: Operation) -> Array:
    x, repeats = node[0], [int(n) for n in node.known(1)]
    if len(repeats) != x.ndim:
        node.refuse(f"{len(repeats)} repeats do not fit {x.ndim} axes", "The file is damaged: export it again.")
    node.held(x.size * prod(repeats))
    return cnp.tile(x, repeats)


def _blocks(node: Operation) -> int:
    if node[0].ndim != 4 or (size := int(node.attributes["blocksize"])) < 1:
        node.refuse("its input is no [N, C, H, W], or its blocks have no size", "Export images with four axes.")
    return size


def _depth_to_space(node: Operation) -> Array:
    size = _blocks(node)
    count, channels, height, width = node[0].shape
    if node.option("mode", "DCR") == "DCR":
        x = cnp.reshape(node[0], (count, size, size, channels // size**2, height, width))
        x = cnp.permute_dims(x, (0, 3, 4, 1, 5, 2))
    else:
        x = cnp.reshape(node[0], (count, channels // size**2, size, size, height, width))
        x = cnp.permute_dims(x, (0, 1, 4, 2, 5, 3))
    return cnp.reshape(x, (count, channels // size**2, height * size, width * size))


def _space_to_depth(node: Operation) -> Array:
    size = _blocks(node)
    count, channels, height, width = node[0].shape
    x = cnp.reshape(node[0], (count, channels, height // size, size, width // size, size))
    return cnp.reshape(cnp.permute_dims(x, (0, 3, 5, 1, 2, 4)), (count, -1, height // size, width // size))


def _triangle(node: Operation) -> Array:
    k = 0 if node.get(1) is None else int(node.known(1).item())
    return cnp.triu(node[0], k=k) if node.option("upper", 1) else cnp.tril(node[0], k=k)


def _identity(node: Operation) -> Array:
    return node[0]


def _dropout(node: Operation) -> Array:
    if node.get(2) is not None and bool(np.asarray(node.known(2)).item()):
        node.refuse("it is in training mode", "Export the model in evaluation mode.")
    if node.outputs > 1:
        node.refuse("its mask is used", "Export the model in evaluation mode.")
    return node[0]


RULES: dict[str, Rule] = {
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "DepthToSpace": _depth_to_space,
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Identity": _identity,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": lambda node: Array(np.asarray(node[0].size, np.int64)),
    "SequenceAt": _part_of_sequence,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _triangle,
    "Unsqueeze": _unsqueeze,
}
