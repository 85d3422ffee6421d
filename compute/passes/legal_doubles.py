"""Functions of float64 for ONNX Runtime's CPU provider, which has few kernels of it. Its optimiser joins operators into
ones that it has in single precision alone; what is written here it leaves apart. Seen in version 1.24, which is the
oldest that is run; later versions take the same forms. And a softmax for CUDA's provider.
"""

import numpy as np

from coterie.compute.array import Array, bind
from coterie.compute.passes.site import Site
from coterie.compute.primitives import rules


def product(site: Site) -> Array | None:
    """A product that no transposition is joined to: of two matrices a Gemm, of stacks a MatMul behind Gather, which
    transpositions are not moved through.
    """
    a, b = site.inputs
    if b.ndim == 2:
        rows = rules.reshape(a, (a.size // a.shape[-1], a.shape[-1]))
        made = bind("gemm", rows, b, transpose_a=False, transpose_b=False)
        return rules.reshape(made, site.node.output.type.shape)
    if all(site.producer(index, "gather") is not None for index in (0, 1)):
        return None
    return bind("matmul", _behind_gather(a), _behind_gather(b))


def _behind_gather(x: Array) -> Array:
    return bind("gather", x, Array(np.arange(x.shape[0])), axis=0)


def sigmoid(site: Site) -> Array:
    """1 / (1 + exp(-x)) without the operator, which is joined to a product with x; no exponential overflows."""
    (x,) = site.inputs
    small, one = bind("exp", -bind("maximum", x, -x)), rules.number(1.0, x)
    below = bind("greater", rules.number(0.0, x), x)
    return bind("where", below, small, one) / (one + small)


def softmax(site: Site) -> Array:
    """exp(x - max x) over its sum, in the precision of x."""
    (x,) = site.inputs
    axes = (site.node.attributes["axis"] % x.ndim,)
    exponentials = bind("exp", x - bind("max", x, axes=axes, keepdims=True))
    return exponentials / bind("sum", exponentials, axes=axes, keepdims=True)


def cosine(site: Site) -> Array:
    """Of sines: sin 2x / (2 sin x) has the precision of a sine where the cosine crosses 0, 1 - 2 sin² (x/2) where the
    sine does. Halves and doubles are exact, unless the double overflows.
    """
    (x,) = site.inputs
    sine, half, double = bind("sin", x), bind("sin", x * 0.5), x * 2.0
    by_half = 1.0 - half * half * 2.0
    steep = bind("greater", sine * sine, rules.number(0.25, x))
    finite = bind("greater", rules.number(float("inf"), x), bind("maximum", double, -double))
    by_double = bind("where", finite, bind("sin", double) / (sine * 2.0), by_half)
    return bind("where", steep, by_double, by_half)
