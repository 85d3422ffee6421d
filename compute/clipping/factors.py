"""What the gradient of each parameter is made of, read from the graph of one unit (an example, or a microbatch).

The gradient of a weight is, nearly always, a sum of products left[o, t] @ right[t, i] of something that flowed forward
and something that flowed back, or a convolution of the two. Seen so, its norm and its weighted sum over units need no
gradient tensor for each unit (Goodfellow, arXiv 1510.01799; Li et al., arXiv 2110.05679; Bu et al., arXiv 2205.10683).
Whatever has another form is :class:`Whole` and is computed unit by unit, which is what vmap(grad) does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from coterie.compute.ir import Graph, Node, Value


@dataclass(frozen=True, slots=True)
class Factor:
    """One matrix of a product: a value of the graph, transposed or not."""

    value: Value
    transposed: bool

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.value.type.shape
        return (columns, rows) if self.transposed else (rows, columns)

    @property
    def flipped(self) -> "Factor":
        return Factor(self.value, not self.transposed)


@dataclass(frozen=True, slots=True)
class View:
    """A rearrangement of elements, as a primitive and its attributes."""

    primitive: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """That a matrix [t, count] is one-hot: row r is 1 at ids[r] and 0 elsewhere, or all 0 for an id out of range. ids:
    a value of t elements. left: whether it is, transposed, the left matrix of a product; otherwise it is the right one.
    """

    ids: Value
    count: int
    left: bool


@dataclass(frozen=True, slots=True)
class Products:
    """left[0] @ right[0] + left[1] @ right[1] + ..., rearranged by ``views``. sign: 1 or -1 for each product. choice:
    what is known of the only product, where one matrix of it picks rows of an embedding.
    """

    left: tuple[Factor, ...]
    right: tuple[Factor, ...]
    signs: tuple[int, ...]
    views: tuple[View, ...] = ()
    choice: Choice | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(o, t, i) of the one product that they are together, inner axes side by side."""
        return self.left[0].shape[0], sum(factor.shape[1] for factor in self.left), self.right[0].shape[1]


@dataclass(frozen=True, slots=True)
class Convolution:
    """The gradient of convolution weights [O, C / groups, kh, kw]: ``node`` is a conv_weight_gradient(images,
    cotangents).
    """

    node: Node

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(o, t, i) of the product of cotangents [o, t] and image windows [t, i] in each group."""
        o, channels, kh, kw = self.node.output.type.shape
        images, _, rows, columns = self.node.inputs[1].type.shape
        return o // self.node.attributes["groups"], images * rows * columns, channels * kh * kw


@dataclass(frozen=True, slots=True)
class Whole:
    """A gradient of any other form."""

    value: Value


Gradient: TypeAlias = Products | Convolution | Whole


def read(graph: Graph, gradients: Sequence[Value]) -> list[Gradient]:
    """The forms of gradients, which are values of the graph."""
    uses = Counter(operand for node in graph.nodes for operand in node.inputs)
    uses.update(graph.outputs.values())
    producers = graph.producers()
    return [_read(producers, uses, gradient) for gradient in gradients]


def _read(producers: Mapping[Value, Node], uses: Mapping[Value, int], value: Value) -> Gradient:
    # Values still to be taken apart, each with the rearrangements and the sign between it and the gradient. A list, not
    # recursion: an unrolled loop adds one term for each of its steps.
    pending: list[tuple[Value, tuple[View, ...], int]] = [(value, (), 1)]
    found: list[Products | Convolution | None] = []
    while pending:
        part, views, sign = pending.pop()
        node = producers.get(part)
        if node is None or uses[part] > 1:  # what something else reads exists for each unit anyway
            found.append(None)
        elif node.primitive == "add" and all(operand.type == part.type for operand in node.inputs):
            pending += [(operand, views, sign) for operand in reversed(node.inputs)]
        elif node.primitive == "negative":
            pending.append((node.inputs[0], views, -sign))
        elif node.primitive in ("reshape", "transpose"):
            view = () if _keeps(node) else (View(node.primitive, node.attributes),)
            pending.append((node.inputs[0], view + views, sign))
        elif node.primitive in ("matmul", "gemm") and len(node.inputs) == 2:
            found.append(_product(node, views, sign))
        elif node.primitive == "conv_weight_gradient" and not views and sign == 1:
            found.append(Convolution(node))
        else:
            found.append(None)
    products = [part for part in found if isinstance(part, Products)]
    if len(products) == len(found) and _one_product(products):
        left = tuple(factor for part in products for factor in part.left)
        right = tuple(factor for part in products for factor in part.right)
        signs = tuple(sign for part in products for sign in part.signs)
        choice = _choice(producers, left[0].flipped, True) or _choice(producers, right[0], False)
        return Products(left, right, signs, products[0].views, choice if len(products) == 1 else None)
    return found[0] if len(found) == 1 and isinstance(found[0], Convolution) else Whole(value)


def _keeps(node: Node) -> bool:
    """Whether a rearrangement leaves everything in its place."""
    if node.primitive == "reshape":
        return node.attributes["shape"] == node.inputs[0].type.shape
    return node.attributes["permutation"] == tuple(range(node.output.type.rank))


def _product(node: Node, views: tuple[View, ...], sign: int) -> Products | None:
    if any(operand.type.rank != 2 for operand in node.inputs):
        return None
    left = Factor(node.inputs[0], node.attributes.get("transpose_a", False))
    right = Factor(node.inputs[1], node.attributes.get("transpose_b", False))
    if views and views[0].primitive == "transpose" and views[0].attributes["permutation"] == (1, 0):
        left, right, views = right.flipped, left.flipped, views[1:]
    return Products((left,), (right,), (sign,), views)


def _choice(producers: Mapping[Value, Node], factor: Factor, left: bool) -> Choice | None:
    """What a one-hot matrix picks: astype(equal(ids [..., 1], 0 .. count - 1)), with its rows in one axis."""
    rows, count = factor.shape
    node, transposed = producers.get(factor.value), factor.transposed
    while node is not None and node.primitive == "transpose" and node.attributes["permutation"] == (1, 0):
        node, transposed = producers.get(node.inputs[0]), not transposed
    if node is not None and node.primitive == "reshape" and node.inputs[0].type.shape[-1:] == (count,):
        node = producers.get(node.inputs[0])
    if node is None or node.primitive != "astype" or transposed:
        return None
    equal = producers.get(node.inputs[0])
    if equal is None or equal.primitive != "equal" or equal.output.type.shape[-1] != count:
        return None
    for ids, steps in (equal.inputs, equal.inputs[::-1]):
        constant = producers.get(steps)
        if constant is None or constant.primitive != "constant" or steps.type.size != count:
            continue
        if (
            ids.type.shape[-1:] == (1,)
            and ids.type.size == rows
            and np.array_equal(constant.attributes["value"].reshape(-1), np.arange(count))
        ):
            return Choice(ids, count, left)
    return None


def _one_product(products: Sequence[Products]) -> bool:
    """Whether products of one parameter add up to one: same matrices, rearranged in the same way."""
    first = products[0] if products else None
    return first is not None and all(
        (part.left[0].shape[0], part.right[0].shape[1]) == (first.left[0].shape[0], first.right[0].shape[1])
        and part.views == first.views
        for part in products
    )


def needed(gradient: Gradient) -> tuple[Value, ...]:
    """The values of the graph from which a gradient is made."""
    match gradient:
        case Products():
            ids = () if gradient.choice is None else (gradient.choice.ids,)
            return (*(factor.value for factor in (*gradient.left, *gradient.right)), *ids)
        case Convolution():
            return gradient.node.inputs
        case Whole():
            return (gradient.value,)
