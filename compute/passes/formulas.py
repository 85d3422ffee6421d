"""Identities of real numbers, which the chain rule leaves behind: log(exp x) = x, exp a exp b = exp(a + b), and so on.

In floating point each holds up to rounding, and where no intermediate value overflows; so this pass is not part of
``optimise``, whose ``algebra`` has those identities that are exact.
"""

from collections.abc import Callable, Mapping

import numpy as np

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes import fixpoint
from coterie.compute.passes.dead_code import remove_dead_code
from coterie.compute.passes.rewrite import View, rewrite
from coterie.compute.passes.subgraphs import inside

Rule = Callable[[Node, View], Value | None]


def simplify_formulas(graph: Graph) -> Graph:
    """The graph with every identity applied; the same graph when none fits."""
    return fixpoint(graph, _sweep, remove_dead_code, inside(simplify_formulas))


def _sweep(graph: Graph) -> Graph:
    return rewrite(graph, _rule)


def _rule(node: Node, view: View) -> Value | None:
    if not node.output.type.is_float:
        return None
    for rule in _RULES.get(node.primitive, ()):
        found = rule(node, view)
        if found is not None and found.type == node.output.type:
            return found
    return None


def _log(node: Node, view: View) -> Value | None:
    """log(exp x) = x; log(sigmoid x) = -softplus(-x); log(sqrt x) = log(x) / 2."""
    (value,) = node.inputs
    if inner := view.producer(value, "exp"):
        return inner.inputs[0]
    if inner := view.producer(value, "sigmoid"):
        return view.emit("negative", view.emit("softplus", view.emit("negative", inner.inputs[0])))
    if inner := view.producer(value, "sqrt"):
        half = view.emit_constant(np.asarray(0.5, value.type.dtype))
        return view.emit("multiply", view.emit("log", inner.inputs[0]), half)
    return None


def _sqrt(node: Node, view: View) -> Value | None:
    """sqrt(x x) = |x|."""
    inner = view.producer(node.inputs[0], "multiply")
    if inner is None or inner.inputs[0] is not inner.inputs[1]:
        return None
    x = inner.inputs[0]
    return view.emit("maximum", x, view.emit("negative", x))


def _product(node: Node, view: View) -> Value | None:
    """exp a exp b = exp(a + b), where nothing else reads the two; (-a)(-b) = a b."""
    a, b = node.inputs
    for primitive, combine in (("exp", "add"), ("negative", "multiply")):
        left, right = view.producer(a, primitive), view.producer(b, primitive)
        if left is None or right is None or (primitive == "exp" and (view.uses(a) > 1 or view.uses(b) > 1 or a is b)):
            continue
        both = view.emit(combine, left.inputs[0], right.inputs[0])
        return view.emit("exp", both) if primitive == "exp" else both
    return None


def _quotient(node: Node, view: View) -> Value | None:
    """x / number = x (1 / number); a / (b / c) = (a c) / b where c is a number."""
    a, b = node.inputs
    number = view.constant(b)
    if number is not None and number.size == 1 and bool(np.isfinite(number).all()) and number.all():
        with np.errstate(over="ignore"):
            reciprocal = np.asarray(1, number.dtype) / number
        if bool(np.isfinite(reciprocal).all()):
            return view.emit("multiply", a, view.emit_constant(np.asarray(reciprocal, number.dtype)))
    inner = view.producer(b, "divide")
    if inner is not None and view.uses(b) == 1 and inner.inputs[1].type.size == 1 < b.type.size:
        return view.emit("divide", view.emit("multiply", a, inner.inputs[1]), inner.inputs[0])
    return None


def _difference(node: Node, view: View) -> Value | None:
    """x - x = 0; a b - a c = a (b - c)."""
    a, b = node.inputs
    if a is b:
        zero = view.emit_constant(np.zeros((), a.type.dtype))
        return view.emit("broadcast_to", zero, shape=a.type.shape) if a.type.shape else zero
    return _factored(node, view)


def _factored(node: Node, view: View) -> Value | None:
    """a b + a c = a (b + c), where nothing else reads the two products."""
    left, right = (view.producer(value, "multiply") for value in node.inputs)
    if left is None or right is None or left is right or any(view.uses(value) > 1 for value in node.inputs):
        return None
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        if left.inputs[i] is right.inputs[j]:
            inner = view.emit(node.primitive, left.inputs[1 - i], right.inputs[1 - j])
            return view.emit("multiply", left.inputs[i], inner)
    return None


_RULES: Mapping[str, tuple[Rule, ...]] = {
    "log": (_log,),
    "sqrt": (_sqrt,),
    "multiply": (_product,),
    "divide": (_quotient,),
    "subtract": (_difference,),
    "add": (_factored,),
}
