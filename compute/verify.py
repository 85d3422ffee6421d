"""The laws of a graph, checked after every build and every pass.

1. Inputs are distinct values. 2. Every value is made once, by an input or by one node. 3. A node reads only values made
before it (so there is no cycle). 4. Every output is a made value. 5. Every node applies a primitive of the table to
operands and attributes that its shape rule accepts, and its outputs have the inferred types. 6. Every graph that a node
holds keeps these laws by itself: it reads no value of the graph around it.
"""

from coterie.compute.control.table import STRUCTURED
from coterie.compute.ir import DTYPES, Graph, Node, Type, Value
from coterie.compute.primitives.table import PRIMITIVES
from coterie.errors import DTypeError, ShapeError, TraceError


def verify(graph: Graph) -> Graph:
    """The same graph, when it keeps every law. Raises TraceError that names the node, its source line and the broken
    law.
    """
    made: dict[Value, str] = {}
    for name, value in graph.inputs.items():
        if value in made:
            raise TraceError(
                f"The inputs {made[value]} and {name!r} are one value.", hint="Give every input a value of its own."
            )
        _check_type(value, f"input {name!r}")
        made[value] = repr(name)
    later = {value: index for index, node in enumerate(graph.nodes) for value in node.outputs}
    for index, node in enumerate(graph.nodes):
        where = _where(index, node)
        for operand in node.inputs:
            if operand not in made:
                raise TraceError(_unmade(graph, index, operand, later, where))
        for value in node.outputs:
            if value in made:
                raise TraceError(
                    f"{where}: its output was already made by {made[value]}.", hint="Every value is made exactly once."
                )
            made[value] = where
        _check_node(node, where)
    for name, value in graph.outputs.items():
        if value not in made:
            raise TraceError(f"Output {name!r} ({value.type}) dangles: no input and no node makes it.")
    return graph


def _where(index: int, node: Node) -> str:
    return f"node {index} ({node.label}{', ' + node.source if node.source else ''})"


def _unmade(graph: Graph, index: int, operand: Value, later: dict[Value, int], where: str) -> str:
    maker = later.get(operand)
    if maker is None:
        return f"{where}: an operand ({operand.type}) dangles: no input and no node makes it."
    # Made later: a cycle when the maker needs this node's result, else only a wrong order.
    needed, frontier = set[int](), [maker]
    while frontier:
        at = frontier.pop()
        if at not in needed:
            needed.add(at)
            frontier += [later[value] for value in graph.nodes[at].inputs if value in later]
    maker_text = _where(maker, graph.nodes[maker])
    if index in needed:
        return f"{where}: the graph is cyclic: it needs the result of {maker_text}, which needs its own."
    return f"{where}: it stands before {maker_text}, whose result it needs."


def _check_type(value: Value, what: str) -> None:
    if value.type.dtype not in DTYPES or any(n < 0 for n in value.type.shape):
        raise TraceError(
            f"{what}: {value.type} is not a type of coterie.",
            hint=f"dtypes are {', '.join(DTYPES)}; sizes are at least 0.",
        )


def _check_node(node: Node, where: str) -> None:
    if node.primitive not in PRIMITIVES and node.primitive not in STRUCTURED:
        raise TraceError(
            f"{where}: there is no primitive of that name.",
            hint="One of your own needs register(...) first; load_plugins() brings those of installed packages.",
        )
    for name, held in node.attributes.items():
        if isinstance(held, Graph):
            try:
                verify(held)
            except TraceError as error:
                raise TraceError(f"{where}, in its graph {name!r}: {error.message}", hint=error.hint) from error
    operands = ", ".join(str(value.type) for value in node.inputs)
    try:
        inferred = _infer(node)
    except (ShapeError, DTypeError) as error:
        raise TraceError(f"{where}: wrongly typed: ({operands}): {error.message}", hint=error.hint) from error
    except (TypeError, KeyError) as error:
        raise TraceError(
            f"{where}: wrong number of operands or wrong attributes {sorted(node.attributes)}: {error}"
        ) from error
    if len(node.outputs) != len(inferred):
        raise TraceError(f"{where}: it has {len(node.outputs)} outputs, and the primitive makes {len(inferred)}.")
    made = tuple(value.type for value in node.outputs)
    if inferred != made:
        raise TraceError(f"{where}: wrongly typed: ({operands}) makes {_told(inferred)}, not {_told(made)}.")


def _infer(node: Node) -> tuple[Type, ...]:
    types = [value.type for value in node.inputs]
    if node.primitive in STRUCTURED:
        return STRUCTURED[node.primitive].infer(types, node.attributes)
    return (PRIMITIVES[node.primitive].infer(*types, **node.attributes),)


def _told(types: tuple[Type, ...]) -> str:
    return ", ".join(map(str, types))
