"""User primitives written out in the core: what differentiates, maps and exports those that say only that."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from coterie.compute.extension.inference import infer_by_hooks
from coterie.compute.extension.row import NODE, UserPrimitive, broken, listed, static
from coterie.compute.ir import Attributes, Graph, Node, Type
from coterie.compute.recorder import RECORDER
from coterie.compute.replay import build
from coterie.compute.source import replaying
from coterie.errors import TraceError

_DEEPEST = 32

_Step: TypeAlias = tuple[UserPrimitive, tuple[Type, ...], str]

_path: ContextVar[tuple[_Step, ...]] = ContextVar("coterie_lowerings", default=())
"""The lowerings that are being traced in this context, one inside the other."""


def types_of_results(primitive: UserPrimitive, types: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    """The types of all outputs, by the hooks or by the lowering. Raises as the hooks do."""
    inferred = infer_by_hooks(primitive, types, attributes)
    if primitive.lower is not None and RECORDER.get() is not None and not _path.get():
        # Inside a trace: an array that a lowering takes from around must be found out while it is known for one.
        made = decomposed(primitive, types, attributes)
    elif inferred is None:
        made = _lowered(primitive, types, attributes)
    else:
        return inferred
    return tuple(value.type for value in made.outputs.values())


def decomposed(primitive: UserPrimitive, types: Sequence[Type], attributes: Attributes) -> Graph:
    """The primitive for operands of these types, in the core alone (but for inner primitives that have no lowering).

    Raises TraceError "lowering_missing" where it has none, "lowering_recursive" where it comes back to itself with the
    same operands and attributes, or goes too deep; a lowering may use itself on smaller ones.
    """
    graph = _lowered(primitive, types, attributes)
    with _entered(primitive, types, attributes):
        return written_out(graph)


def written_out(graph: Graph) -> Graph:
    """The graph with calls of lowerings in place of user primitives; those without a lowering stay, for the host."""
    nodes = [_written_out(node) for node in graph.nodes]
    if all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
        return graph
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def missing(primitive: UserPrimitive, source: str = "") -> TraceError:
    """The error that a primitive cannot be exported."""
    where = f"{source}: " if source else ""
    return TraceError(
        f"{where}primitive {primitive.name!r} has no lowering, so it cannot leave this process.",
        hint=primitive.instead or "Give it a lower(...) hook written in array functions.",
        code="lowering_missing",
    )


@contextmanager
def _entered(primitive: UserPrimitive, types: Sequence[Type], attributes: Attributes) -> Generator[None]:
    path = _path.get()
    step = (primitive, tuple(types), repr(sorted(attributes.items())))  # as text: 1 and True are equal, not the same
    if step in path or len(path) >= _DEEPEST:
        names = " → ".join(str(name) for name, _, _ in (*path[-3:], step))
        operands = ", ".join(map(str, types))
        raise TraceError(
            f"The lowering of {primitive.name!r} never ends: {names}, for operands ({operands}).",
            hint=f"A lowering may use itself only on smaller operands, and {_DEEPEST} deep at most.",
            code="lowering_recursive",
        )
    token = _path.set((*path, step))
    try:
        yield
    finally:
        _path.reset(token)


def _lowered(primitive: UserPrimitive, types: Sequence[Type], attributes: Attributes) -> Graph:
    """One step of lowering."""
    lower = primitive.lower
    if lower is None:
        raise missing(primitive)
    with _entered(primitive, types, attributes):
        graph = build(types, lambda arrays: listed(primitive, "lowering", lower(*arrays, **attributes)), RECORDER.get())
    if len(graph.inputs) > len(types):
        raise broken(
            primitive,
            "its lowering uses an array of a trace that is not among its operands, so gradients would miss it.",
        )
    made = tuple(value.type for value in graph.outputs.values())
    inferred = infer_by_hooks(primitive, types, attributes)
    if inferred is not None and inferred != made:
        told = [", ".join(map(str, found)) for found in (made, inferred)]
        raise broken(primitive, f"its lowering makes ({told[0]}), and its inference says ({told[1]}).")
    return graph


def _written_out(node: Node) -> Node:
    """A call of the lowering in place of a primitive; other nodes with that done to the graphs that they hold."""
    if node.primitive == NODE and node.attributes["primitive"].lower is not None:
        types = tuple(value.type for value in node.inputs)
        with replaying(node.source):
            inner = decomposed(node.attributes["primitive"], types, static(node.attributes))
        return Node("call", node.inputs, node.outputs, {"graph": inner}, node.source)
    held = {name: value for name, value in node.attributes.items() if isinstance(value, Graph)}
    if not held:
        return node
    after = {name: written_out(graph) for name, graph in held.items()}
    if all(after[name] is graph for name, graph in held.items()):
        return node
    return Node(node.primitive, node.inputs, node.outputs, {**node.attributes, **after}, node.source)
