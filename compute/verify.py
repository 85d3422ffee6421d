"""The laws of a graph, checked after every build and every pass.

1. Inputs are distinct values. 2. Every value is made once, by an input or by one node. 3. A node reads only values made
before it (so there is no cycle). 4. Every output is a made value. 5. Every node applies a primitive of the table to
operands and attributes that its shape rule accepts, and its outputs have the inferred types. 6. Every graph that a node
holds keeps these laws by itself: it reads no value of the graph around it.
"""

from collections.abc import Set
from typing import Final

from coterie.compute.ir import DTYPES, Graph, Node, Type, Value
from coterie.compute.table import PRIMITIVES
from coterie.errors import DTypeError, ShapeError, TraceError

NO_NODES: Final[Set[Node]] = frozenset()


def verify(graph: Graph) -> Graph:
    """The same graph, when it keeps every law. Raises TraceError that names the node, its source line and the broken
    law.
    """
    return _verify(graph, NO_NODES)


def verify_pass(before: Graph, after: Graph) -> Graph:
    """As `verify`, of what a pass made.

    before: the graph that the pass got, which keeps the laws. Nodes do not change, so the types of those that stand in
        both are not inferred again.
    """
    return _verify(after, {*before.nodes})


def _verify(graph: Graph, checked: Set[Node]) -> Graph:
    made: dict[
        Value, str | int
    ] = {}  # an input's name, or a node's number: this runs often, errors are put in words late
    for name, value in graph.inputs.items():
        if value in made:
            raise TraceError(
                f"The inputs {made[value]!r} and {name!r} are one value.", hint="Give every input a value of its own."
            )
        _check_type(value, name)
        made[value] = name
    for index, node in enumerate(graph.nodes):
        for operand in node.inputs:
            if operand not in made:
                raise TraceError(_unmade(graph, index, operand))
        for value in node.outputs:
            if value in made:
                maker = made[value]
                told = repr(maker) if isinstance(maker, str) else _where(maker, graph.nodes[maker])
                raise TraceError(
                    f"{_where(index, node)}: its output was already made by {told}.",
                    hint="Every value is made exactly once.",
                )
            made[value] = index
        if node not in checked:
            _check_node(node, index)
    for name, value in graph.outputs.items():
        if value not in made:
            raise TraceError(f"Output {name!r} ({value.type}) dangles: no input and no node makes it.")
    return graph


def _where(index: int, node: Node) -> str:
    return f"node {index} ({node.label}{', ' + node.source if node.source else ''})"


def _unmade(graph: Graph, index: int, operand: Value) -> str:
    later = {value: at for at, node in enumerate(graph.nodes) for value in node.outputs}
    where = _where(index, graph.nodes[index])
    maker = later.get(operand)
    if maker is None:
        return f"{where}: an operand ({operand.type}) dangles: no input and no node makes it."
    # Made later: a cycle when the maker needs this node's result, else only a wrong order.
    reader, frontier = {maker: index}, [maker]  # who first asked for a node
    for at in frontier:
        for needed in (later[value] for value in graph.nodes[at].inputs if value in later):
            if needed not in reader:
                reader[needed] = at
                frontier.append(needed)
    if index not in reader:
        return f"{where}: it stands before {_where(maker, graph.nodes[maker])}, whose result it needs."
    path = [index]
    while len(path) == 1 or path[-1] != index:
        path.append(reader[path[-1]])
    told = " → ".join(_where(at, graph.nodes[at]) for at in path)
    return f"{where}: the graph is cyclic: {told}, each of which needs the one before."


def _check_type(value: Value, name: str) -> None:
    if value.type.dtype not in DTYPES or any(n < 0 for n in value.type.shape):
        raise TraceError(
            f"input {name!r}: {value.type} is not a type of coterie.",
            hint=f"dtypes are {', '.join(DTYPES)}; sizes are at least 0.",
        )


def _check_node(node: Node, index: int) -> None:
    row = PRIMITIVES.get(node.primitive)
    if row is None:
        raise TraceError(
            f"{_where(index, node)}: there is no primitive of that name.",
            hint="One of your own needs register(...) first; load_plugins() brings those of installed packages.",
        )
    for name, held in node.attributes.items():
        if isinstance(held, Graph):
            try:
                verify(held)
            except TraceError as error:
                raise TraceError(
                    f"{_where(index, node)}, in its graph {name!r}: {error.message}", hint=error.hint
                ) from error
    try:
        inferred = row.infer([value.type for value in node.inputs], node.attributes)
    except (ShapeError, DTypeError) as error:
        raise TraceError(
            f"{_where(index, node)}: wrongly typed: ({_operands(node)}): {error.message}", hint=error.hint
        ) from error
    except (TypeError, KeyError, AttributeError, ValueError, IndexError, ArithmeticError) as error:
        raise TraceError(
            f"{_where(index, node)}: wrong number of operands or wrong attributes {sorted(node.attributes)}: {error}"
        ) from error
    if len(node.outputs) != len(inferred):
        raise TraceError(
            f"{_where(index, node)}: it has {len(node.outputs)} outputs, and the primitive makes {len(inferred)}."
        )
    made = tuple([value.type for value in node.outputs])
    if inferred != made:
        raise TraceError(
            f"{_where(index, node)}: wrongly typed: ({_operands(node)}) makes {_told(inferred)}, not {_told(made)}."
        )


def _operands(node: Node) -> str:
    return _told(tuple(value.type for value in node.inputs))


def _told(types: tuple[Type, ...]) -> str:
    return ", ".join(map(str, types))
