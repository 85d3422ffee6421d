"""Let rearrangements settle behind what is computed elementwise.

vmap keeps the axis of examples in front of every value, so a product over all examples is followed by a reshape and a
transposition, and the next one preceded by their inverses. Moved downward through the additions and scalings between,
they meet and cancel, and products stand beside the addends and transpositions that melt into them.
"""

from itertools import pairwise
from math import prod

from coterie.compute.control.row import STEPS
from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes import fixpoint
from coterie.compute.passes.algebra import simplify_differentiable
from coterie.compute.passes.cse import share_common_subexpressions
from coterie.compute.passes.dead_code import remove_dead_code
from coterie.compute.passes.rewrite import View, rewrite
from coterie.compute.table import ELEMENTWISE

Shape = tuple[int, ...]
Groups = list[tuple[list[int], list[int]]]

# How many times smaller than the result an operand must be to be transposed in its place.
_SMALL = 4


def settle(graph: Graph) -> Graph:
    """The same numbers, up to the order in which sums are taken; gradients may still be taken of it."""
    return fixpoint(graph, remove_dead_code, share_common_subexpressions, simplify_differentiable, sink)


def sink(graph: Graph) -> Graph:
    """One sweep: reshapes and transpositions one node further down."""
    return rewrite(graph, _rule)


def _rule(node: Node, view: View) -> Value | None:
    if any(STEPS in value.type.shape for value in (*node.inputs, *node.outputs)):
        return None  # a stack of a while loop has no size that could be regrouped
    if node.primitive == "transpose":
        return _with_fewer_axes(node, view)
    if node.primitive in ELEMENTWISE:
        return _before_reshape(node, view) or _before_transpose(node, view) or _squeezed(node, view)
    if node.primitive in ("sum", "max"):
        return _reduced_before_reshape(node, view) or _reduced_before_transpose(node, view)
    return None


def _with_fewer_axes(node: Node, view: View) -> Value | None:
    """A transposition in which axes of size 1 are left out, and axes that stay side by side are one."""
    shape = node.inputs[0].type.shape
    kept = [axis for axis in node.attributes["permutation"] if shape[axis] != 1]
    following = dict(pairwise(sorted(kept)))
    runs: list[list[int]] = []
    for axis in kept:
        if runs and following.get(runs[-1][-1]) == axis:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    if len(runs) == len(shape):
        return None
    before = sorted(runs)
    merged = view.emit("reshape", node.inputs[0], shape=tuple(prod(shape[axis] for axis in run) for run in before))
    moved = view.emit("transpose", merged, permutation=tuple(before.index(run) for run in runs))
    return view.emit("reshape", moved, shape=node.output.type.shape)


def _groups(a: Shape, b: Shape) -> Groups:
    """The axes (none of size 1) of two shapes of one size, matched in the smallest groups of equal products."""
    left = [axis for axis, n in enumerate(a) if n != 1]
    right = [axis for axis, n in enumerate(b) if n != 1]
    groups: Groups = []
    while left or right:
        ours, theirs = [left.pop(0)], [right.pop(0)]
        while (p := prod(a[i] for i in ours)) != (q := prod(b[i] for i in theirs)):
            (ours if p < q else theirs).append(left.pop(0) if p < q else right.pop(0))
        groups.append((ours, theirs))
    return groups


def _without_ones(shape: Shape) -> Shape:
    return tuple(n for n in shape if n != 1)


def _reshaped_small(value: Value, out: Shape, base: Shape, groups: Groups) -> Shape | None:
    """The shape in which an operand that broadcasts to ``out`` broadcasts to ``base``, the same elements; None where
    there is none.
    """
    own = (1,) * (len(out) - value.type.rank) + value.type.shape
    shape = [1] * len(base)
    for ours, theirs in groups:
        varying = [axis for axis in theirs if own[axis] != 1]
        if varying and (len(ours), len(theirs)) != (1, 1):
            return None
        if varying:
            shape[ours[0]] = own[theirs[0]]
    return tuple(shape)


def _before_reshape(node: Node, view: View) -> Value | None:
    """op(reshape(x), small) = reshape(op(x, small))."""
    out = node.output.type.shape
    if 0 in out:
        return None
    large = [view.producer(value, "reshape") for value in node.inputs if value.type.shape == out]
    bases = {None if inner is None else _without_ones(inner.inputs[0].type.shape) for inner in large}
    base = bases.pop() if len(bases) == 1 else None
    if base is None or base == out:
        return None
    groups = _groups(base, out)
    operands: list[tuple[Value, Shape]] = []
    for value in node.inputs:
        inner = view.producer(value, "reshape") if value.type.shape == out else None
        if inner is not None:
            operands.append((inner.inputs[0], base))
            continue
        small = _reshaped_small(value, out, base, groups)
        if small is None:
            return None
        operands.append((value, small))
    fitted = [x if shape == x.type.shape else view.emit("reshape", x, shape=shape) for x, shape in operands]
    return view.emit("reshape", view.emit(node.primitive, *fitted, **node.attributes), shape=out)


def _before_transpose(node: Node, view: View) -> Value | None:
    """op(transpose(x), small) = transpose(op(x, transpose(small))), where nothing else reads the transposed x."""
    out = node.output.type
    if len(node.inputs) < 2:
        return None
    large = [value for value in node.inputs if value.type.shape == out.shape]
    inner = [view.producer(value, "transpose") for value in large]
    orders = {None if each is None else each.attributes["permutation"] for each in inner}
    order: Shape | None = orders.pop() if len(orders) == 1 else None
    small = [value for value in node.inputs if value.type.shape != out.shape]
    if (
        order is None
        or any(view.uses(value) > 1 for value in large)
        or any(v.type.size * _SMALL > out.size for v in small)
    ):
        return None
    inverse = tuple(order.index(axis) for axis in range(len(order)))
    operands: list[Value] = []
    for value in node.inputs:
        if value.type.shape == out.shape:
            found = view.producer(value, "transpose")
            operands.append(value if found is None else found.inputs[0])
            continue
        full = (1,) * (out.rank - value.type.rank) + value.type.shape
        aligned = value if full == value.type.shape else view.emit("reshape", value, shape=full)
        operands.append(view.emit("transpose", aligned, permutation=inverse))
    return view.emit("transpose", view.emit(node.primitive, *operands, **node.attributes), permutation=order)


def _squeezed(node: Node, view: View) -> Value | None:
    """The same without axes of size 1, so that values which differ in those alone are one."""
    out = node.output.type.shape
    kept = [axis for axis, n in enumerate(out) if n != 1]
    if len(kept) in (0, len(out)):
        return None
    operands: list[Value] = []
    for value in node.inputs:
        own = (1,) * (len(out) - value.type.rank) + value.type.shape
        shape = tuple(own[axis] for axis in kept)
        operands.append(value if shape == value.type.shape else view.emit("reshape", value, shape=shape))
    return view.emit("reshape", view.emit(node.primitive, *operands, **node.attributes), shape=out)


def _reduced_before_reshape(node: Node, view: View) -> Value | None:
    """sum(reshape(x)) = reshape(sum(x)), where whole groups of axes are summed."""
    inner = view.producer(node.inputs[0], "reshape")
    shape, axes = node.inputs[0].type.shape, node.attributes["axes"]
    if inner is None or 0 in shape:
        return None
    base = inner.inputs[0].type.shape
    reduced: list[int] = []
    for ours, theirs in _groups(base, shape):
        chosen = {axis in axes for axis in theirs}
        if len(chosen) > 1:
            return None
        reduced += ours if chosen == {True} else []
    if base == shape:
        return None
    less = view.emit(node.primitive, inner.inputs[0], axes=tuple(reduced), keepdims=False)
    return view.emit("reshape", less, shape=node.output.type.shape)


def _reduced_before_transpose(node: Node, view: View) -> Value | None:
    """sum(transpose(x)) = transpose(sum(x)): there is less to transpose."""
    inner = view.producer(node.inputs[0], "transpose")
    if inner is None:
        return None
    order: Shape = inner.attributes["permutation"]
    axes: Shape = node.attributes["axes"]
    reduced = [order[axis] for axis in axes]
    less = view.emit(node.primitive, inner.inputs[0], axes=tuple(sorted(reduced)), keepdims=False)
    kept = [axis for axis in order if axis not in reduced]
    ranks = sorted(kept)
    moved = view.emit("transpose", less, permutation=tuple(ranks.index(axis) for axis in kept))
    return view.emit("reshape", moved, shape=node.output.type.shape)
