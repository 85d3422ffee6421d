"""Scales and shifts of channels melted into the weights beside them: how BatchNorm disappears from an inference graph.

In evaluation BatchNorm is x * s + t with a number for each channel, so conv(x, W, b) * s + t = conv(x, W s, b s + t),
and the same for matrix products (Jacob et al. 2018, section 3.2). One that stands before the product goes into the
weights of its inputs; a shift only where no padding, which would not be shifted, lies between.
"""

import numpy as np

from coterie.compute.ir import Graph, NDArray, Node, Value
from coterie.compute.passes.inference.channels import PRODUCTS, addend_of, by_channel, emit_product, weights_of
from coterie.compute.passes.rewrite import View, rewrite


def fold_scales_behind(graph: Graph) -> Graph:
    """One sweep over the scales and shifts of what a product makes. Results change by rounding alone; where folded
    weights would leave their dtype's range, nothing is folded.
    """
    return rewrite(graph, _rule_behind)


def fold_scales_before(graph: Graph) -> Graph:
    """One sweep over the scales and shifts of what a product reads.

    Not for what is to be quantised: they bring the channels of an activation, which share one range of integers, to one
    size, and without them the small ones would lose their digits.
    """
    return rewrite(graph, lambda node, view: _before(node, view) if node.primitive in PRODUCTS else None)


def _rule_behind(node: Node, view: View) -> Value | None:
    if node.primitive in ("multiply", "add") and node.output.type.is_float:
        for value, other in (node.inputs, node.inputs[::-1]):
            if (found := _behind(node, view, value, view.constant(other))) is not None:
                return found
    return None


def _behind(node: Node, view: View, value: Value, constant: NDArray | None) -> Value | None:
    """A constant that scales or shifts the channels of a product which nothing else reads."""
    made = view.producer(value, *PRODUCTS)
    if made is None or constant is None or view.uses(value) != 1 or value.type != node.output.type:
        return None
    if made.primitive == "conv_input_gradient" and node.primitive == "add":
        return None  # it has no bias: a shift stays what it is
    if node.primitive == "add" and made.primitive == "matmul" and value.type.rank > 2:
        return None
    row = PRODUCTS[made.primitive]
    weights, bias, numbers = (
        weights_of(made, view),
        addend_of(made, view),
        by_channel(constant, value.type, row.axis),
    )
    if weights is None or bias is None or numbers is None:
        return None
    if node.primitive == "add":
        return emit_product(view, made, made.inputs[0], weights, bias + numbers)
    scaled = row.outputs(weights.astype(np.float64), numbers, made.attributes)
    return emit_product(view, made, made.inputs[0], scaled, bias * numbers)


def _before(node: Node, view: View) -> Value | None:
    """A constant that scales or shifts the channels that a product alone reads."""
    made = view.producer(node.inputs[0], "multiply", "add")
    weights, bias = weights_of(node, view), addend_of(node, view)
    if made is None or weights is None or bias is None or view.uses(node.inputs[0]) != 1:
        return None
    row = PRODUCTS[node.primitive]
    for x, other in (made.inputs, made.inputs[::-1]):
        constant = view.constant(other)
        if constant is None or x.type != made.output.type:
            continue
        numbers = by_channel(constant, x.type, row.axis)
        if numbers is None:
            continue
        wide = weights.astype(np.float64)
        if made.primitive == "multiply":
            return emit_product(view, node, x, row.inputs(wide, numbers, node.attributes), bias)
        shift = row.shifts(wide, numbers, node.attributes)
        if shift is None or (node.primitive == "matmul" and x.type.rank > 2):
            return None
        return emit_product(view, node, x, weights, bias + shift)
    return None
