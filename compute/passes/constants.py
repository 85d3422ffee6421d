"""Evaluate what depends on constants only."""

import numpy as np

from coterie.compute.interpret import run
from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes.rewrite import View, rewrite
from coterie.compute.table import PRIMITIVES, having
from coterie.errors import InputError

_SMALL = 1024  # elements; a larger result is folded only when it is no larger than what it is made of
_FOLDED = having(lambda facts: facts.folds)


def fold_constants(graph: Graph) -> Graph:
    """The graph in which constant nodes stand for everything that they determine, unless that would make the file
    larger.
    """

    def rule(node: Node, view: View) -> Value | None:
        if node.primitive not in _FOLDED:
            return None
        operands = [view.constant(view.mapping.get(value, value)) for value in node.inputs]
        known = [operand for operand in operands if operand is not None]
        if not known or len(known) < len(operands):
            return None
        if node.output.type.size > max(_SMALL, sum(operand.size for operand in known)):
            return None
        try:
            with np.errstate(all="ignore"):
                (value,) = PRIMITIVES[node.primitive].evaluate(run, known, node.attributes)
        except InputError:  # an index outside its table: an error only where it is reached, and that may be never
            return None
        return view.emit_constant(np.asarray(value, dtype=node.output.type.dtype))

    return rewrite(graph, rule)
