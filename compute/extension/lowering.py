"""User primitives written out in the core: what differentiates, maps and exports those that say only that."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from coterie.compute.array import Array
from coterie.compute.extension.inference import infer_by_hooks
from coterie.compute.extension.row import NODE, UserPrimitive, broken, listed, static
from coterie.compute.ir import Attributes, Graph, Node, Type
from coterie.compute.replay import build
from coterie.compute.source import replaying
from coterie.errors import TraceError

_DEEPEST = 32

_Path: TypeAlias = tuple[tuple[UserPrimitive, tuple[Type, ...], tuple[Any, ...]], ...]


def types_of_results(primitive: UserPrimitive, types: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """The types of all outputs, by the hooks or by the lowering. Raises as the hooks do."""
    inferred = infer_by_hooks(primitive, types, attributes)
    if inferred is not None:
        return inferred
    return tuple(value.type for value in _lowered(primitive, types, attributes).outputs.values())


def decomposed(primitive: UserPrimitive, types: Sequence[Type], attributes: Attributes) -> Graph:
    """The primitive for operands of these types, in the core alone (but for inner primitives that have no lowering).

    Raises TraceError "lowering_missing" where it has none, "lowering_recursive" where it comes back to itself with the
    same operands and attributes; a lowering may use itself on smaller ones.
    """
    return _decomposed(primitive, tuple(types), attributes, ())


def written_out(graph: Graph) -> Graph:
    """The graph with calls of lowerings in place of user primitives; those without a lowering stay, for the host."""
    return _expanded(graph, ())


def missing(primitive: UserPrimitive, source: str = "") -> TraceError:
    """The error that a primitive cannot be exported."""
    where = f"{source}: " if source else ""
    return TraceError(
        f"{where}primitive {primitive.name!r} has no lowering, so it cannot leave this process.",
        hint="Give it a lower(...) hook written in array functions.",
        code="lowering_missing",
    )


def _decomposed(primitive: UserPrimitive, types: tuple[Type, ...], attributes: Attributes, path: _Path) -> Graph:
    step = (primitive, types, tuple(sorted(attributes.items())))
    if step in path or len(path) >= _DEEPEST:
        names = " → ".join(str(name) for name, _, _ in (*path[-3:], step))
        operands = ", ".join(map(str, types))
        raise TraceError(
            f"The lowering of {primitive.name!r} never ends: {names}, for operands ({operands}).",
            hint=f"A lowering may use itself only on smaller operands, and {_DEEPEST} deep at most.",
            code="lowering_recursive",
        )
    return _expanded(_lowered(primitive, types, attributes), (*path, step))


def _lowered(primitive: UserPrimitive, types: Sequence[Type], attributes: Attributes) -> Graph:
    """One step of lowering."""
    lower = primitive.lower
    if lower is None:
        raise missing(primitive)
    graph = build(types, lambda arrays: _called(primitive, lower(*arrays, **attributes)))
    made = tuple(value.type for value in graph.outputs.values())
    inferred = infer_by_hooks(primitive, types, attributes)
    if inferred is not None and inferred != made:
        told = [", ".join(map(str, found)) for found in (made, inferred)]
        raise broken(primitive, f"its lowering makes ({told[0]}), and its inference says ({told[1]}).")
    return graph


def _called(primitive: UserPrimitive, returned: Any) -> list[Array]:
    return listed(primitive, "lowering", returned)


def _expanded(graph: Graph, path: _Path) -> Graph:
    nodes = [_written_out(node, path) for node in graph.nodes]
    if all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
        return graph
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _written_out(node: Node, path: _Path) -> Node:
    """A call of the lowering in place of a primitive; other nodes with that done to the graphs that they hold."""
    if node.primitive == NODE and node.attributes["primitive"].lower is not None:
        types = tuple(value.type for value in node.inputs)
        with replaying(node.source):
            inner = _decomposed(node.attributes["primitive"], types, static(node.attributes), path)
        return Node("call", node.inputs, node.outputs, {"graph": inner}, node.source)
    after = {name: _expanded(held, path) if isinstance(held, Graph) else held for name, held in node.attributes.items()}
    if all(after[name] is held for name, held in node.attributes.items()):
        return node
    return Node(node.primitive, node.inputs, node.outputs, after, node.source)
