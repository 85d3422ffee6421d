"""Which results may be written over an operand that nothing reads any more."""

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.memory.lifetimes import VIEWS
from coterie.compute.table import ELEMENTWISE


def in_place(graph: Graph) -> dict[Value, Value]:
    """The operand over which each result may be written: of an elementwise node, of the same type, made by a node of
    this graph, read here for the last time and no output. Other operands live elsewhere, so they are not harmed.
    """
    last: dict[Value, Node] = {}
    homes: dict[Value, Value] = {}  # a view shares the memory of its operand
    made: set[Value] = set()
    for node in graph.nodes:
        if node.primitive in VIEWS:
            homes[node.output] = homes.get(node.inputs[0], node.inputs[0])
        elif node.primitive != "constant":
            made.update(node.outputs)
        for value in node.inputs:
            last[homes.get(value, value)] = node
    kept = {homes.get(value, value) for value in graph.outputs.values()}
    found: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.primitive not in ELEMENTWISE:
            continue
        for operand in node.inputs:
            home = homes.get(operand, operand)
            if (
                operand.type == node.output.type
                and home in made
                and home not in kept
                and last[home] is node
                and all(homes.get(other, other) is not home or other is operand for other in node.inputs)
            ):
                found[node.output] = operand
                break
    return found
