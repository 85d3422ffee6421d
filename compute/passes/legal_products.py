"""Matrix products and convolutions in the forms that a provider takes."""

import numpy as np

from coterie.compute.array import Array, bind
from coterie.compute.passes.site import Site
from coterie.compute.primitives import rules

Pair = tuple[int, int]


def matrix_product(site: Site) -> Array | None:
    """gemm of operands that are no constants: a plain product, and a sum."""
    node = site.node
    fixed = all(site.constant(index) is not None for index in range(1, len(node.inputs)))
    if fixed and not node.attributes["transpose_a"]:
        return None
    a, b, *addend = site.inputs
    left = rules.swap_last(a) if node.attributes["transpose_a"] else a
    right = rules.swap_last(b) if node.attributes["transpose_b"] else b
    product = bind("matmul", left, right)
    return product + addend[0] if addend else product


def added_afterwards(site: Site) -> Array | None:
    """gemm with an addend of more than one axis: the addend by a sum."""
    if len(site.node.inputs) == 2 or site.node.inputs[2].type.rank <= 1:
        return None
    a, b, addend = site.inputs
    return bind("gemm", a, b, **site.node.attributes) + addend


def bias_afterwards(site: Site) -> Array | None:
    """conv with a bias that is no constant: the bias by a sum."""
    if len(site.node.inputs) == 2 or site.constant(2) is not None:
        return None
    x, w, bias = site.inputs
    return bind("conv", x, w, **site.node.attributes) + rules.reshape(bias, (1, bias.size, 1, 1))


def two_outputs_a_group(site: Site) -> Array | None:
    """conv_input_gradient in groups of an even number of inputs and one output: a second output of zeros for each
    group, which is cut off again.
    """
    g, w = site.inputs
    groups: int = site.node.attributes["groups"]
    if groups == 1 or w.shape[1] != 1 or (w.shape[0] // groups) % 2:
        return None
    wide = bind("pad", w, before=(0, 0, 0, 0), after=(0, 1, 0, 0), value=0.0)
    both = bind("conv_input_gradient", g, wide, **site.node.attributes)
    n, _, *size = both.shape
    split = rules.reshape(both, (n * groups, 2, *size))
    first = bind("slice", split, starts=(0, 0, 0, 0), stops=(n * groups, 1, *size))
    return rules.reshape(first, (n, groups, *size))


def transpose_as_convolution(site: Site) -> Array:
    """conv_input_gradient as a convolution: zeros between the elements of g for the stride, and the kernel turned."""
    g, w = site.inputs
    a = site.node.attributes
    stride: Pair = a["stride"]
    dilation: Pair = a["dilation"]
    size: Pair = a["size"]
    kernel = (w.shape[2], w.shape[3])
    spread = _spread(g, stride)
    reach = [dilation[i] * (kernel[i] - 1) for i in (0, 1)]
    before = [reach[i] - a["padding"][i][0] for i in (0, 1)]
    after = [size[i] - spread.shape[2 + i] - before[i] + reach[i] for i in (0, 1)]
    # A padding beyond the kernel cuts elements off instead of adding some.
    if min(*before, *after) < 0:
        shape = spread.shape
        starts = (0, 0, *(max(-n, 0) for n in before))
        stops = (*shape[:2], *(shape[2 + i] - max(-after[i], 0) for i in (0, 1)))
        spread = bind("slice", spread, starts=starts, stops=stops)
    padding = tuple((max(before[i], 0), max(after[i], 0)) for i in (0, 1))
    window = {"stride": (1, 1), "padding": padding, "dilation": dilation, "groups": a["groups"]}
    return bind("conv", spread, _turned(w, a["groups"]), **window)


def _spread(g: Array, stride: Pair) -> Array:
    """[N, C, H, W] with stride - 1 zeros between rows and between columns."""
    if stride == (1, 1):
        return g
    n, c, h, w = g.shape
    rows, columns = (h - 1) * stride[0] + 1, (w - 1) * stride[1] + 1
    x = rules.reshape(g, (n * c, h, 1, w))
    x = bind("pad", x, before=(0, 0, 0, 0), after=(0, 0, stride[0] - 1, 0), value=0.0)
    x = rules.reshape(x, (n * c, h * stride[0], w))
    x = bind("slice", x, starts=(0, 0, 0), stops=(n * c, rows, w))
    x = rules.reshape(x, (n * c, rows, w, 1))
    x = bind("pad", x, before=(0, 0, 0, 0), after=(0, 0, 0, stride[1] - 1), value=0.0)
    x = rules.reshape(x, (n * c, rows, w * stride[1]))
    x = bind("slice", x, starts=(0, 0, 0), stops=(n * c, rows, columns))
    return rules.reshape(x, (n, c, rows, columns))


def _turned(w: Array, groups: int) -> Array:
    """w[O, I / groups, kh, kw] as [I, O / groups, kh, kw], turned by half a circle: a product with the reversed unit
    matrix, which is exact.
    """
    o, i, kh, kw = w.shape
    x = rules.reshape(w, (groups, o // groups, i, kh * kw))
    x = rules.transpose(x, (0, 2, 1, 3))
    if kh * kw > 1:
        backwards = Array(np.ascontiguousarray(np.eye(kh * kw, dtype=w.dtype)[::-1]))
        x = bind("matmul", rules.reshape(x, (groups * i * (o // groups), kh * kw)), backwards)
    return rules.reshape(x, (groups * i, o // groups, kh, kw))
