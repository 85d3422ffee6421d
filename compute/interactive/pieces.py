"""A graph in pieces: ONNX Runtime runs what it can, and between its sessions Python makes the calls that it cannot."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from coterie.compute.dispatch import run
from coterie.compute.extension.decompose import host_only
from coterie.compute.ir import Graph, NDArray, Node, Value
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime.executable import Executable
from coterie.compute.table import PLAIN, PRIMITIVES
from coterie.errors import TraceError


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one session computes. inputs, outputs: the values by their names in its file."""

    executable: Executable
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]

    def run(self, values: dict[Value, NDArray]) -> None:
        feeds = {name: values[value].reshape(value.type.shape or (1,)) for name, value in self.inputs.items()}
        results = self.executable.run(feeds)
        values.update((value, results[name].reshape(value.type.shape)) for name, value in self.outputs.items())


@dataclass(frozen=True, slots=True)
class _HostCall:
    """One node that Python evaluates, and why."""

    node: Node
    reason: TraceError

    def run(self, values: dict[Value, NDArray]) -> None:
        operands = [values[value] for value in self.node.inputs]
        with np.errstate(all="ignore"):
            results = PRIMITIVES[self.node.primitive].evaluate(run, operands, self.node.attributes)
        for value, result in zip(self.node.outputs, results, strict=True):
            values[value] = np.asarray(result, dtype=value.type.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A graph that has been made to run. A graph that ONNX can hold is one piece."""

    graph: Graph
    constants: Mapping[Value, NDArray]
    parts: tuple[_Piece | _HostCall, ...]
    own: frozenset[Value]  # what sessions make anew in every run; anything else may be an argument, or a part of one

    def run(self, feeds: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """The outputs by name, in their shapes."""
        values = dict(self.constants)
        values.update((value, feeds[name]) for name, value in self.graph.inputs.items())
        for part in self.parts:
            part.run(values)
        found = ((name, value, values[value]) for name, value in self.graph.outputs.items())
        return {name: array if value in self.own else array.copy() for name, value, array in found}

    @property
    def host_calls(self) -> tuple[str, ...]:
        """What Python computes and why, with file and line; each place once."""
        return tuple(dict.fromkeys(str(part.reason) for part in self.parts if isinstance(part, _HostCall)))


def program(graph: Graph, *, name: str, whole: bool = False) -> Program:
    """An optimised graph, cut at the nodes that have no form in ONNX: user primitives without a lowering, choices and
    loops with one inside, functions that no provider has in double precision. Its names are those of the sessions.

    whole: refuse such nodes. Raises TraceError for them then, and where nothing is left for a session to run.
    """
    reasons = {node: reason for node in graph.nodes if (reason := _kept_in_python(node)) is not None}
    try:
        return _cut(graph, reasons, name, whole)
    except TraceError as error:
        if whole or error in reasons.values():
            raise
        unwritten = {node: reason for node in graph.nodes if (reason := _unwritten(node)) is not None}
        if not unwritten:
            raise
        return _cut(graph, reasons | unwritten, name, whole)


def _kept_in_python(node: Node) -> TraceError | None:
    return host_only(Graph({}, (node,), {}))


def _unwritten(node: Node) -> TraceError | None:
    """Why a node by itself cannot be written; None where it can."""
    if node.primitive == "constant" or node.primitive not in PLAIN:
        return None
    alone = Graph(
        {f"{index}": value for index, value in enumerate(dict.fromkeys(node.inputs))},
        (node,),
        {f"result/{index}": value for index, value in enumerate(node.outputs)},
    )
    try:
        to_onnx(alone, name="alone", target="cpu")
    except TraceError as error:
        return error
    return None


def _cut(graph: Graph, reasons: Mapping[Node, TraceError], name: str, whole: bool) -> Program:
    """The program whose n-th session computes what needs n calls of the host, one after the other, to be there."""
    if reasons and whole:
        raise next(iter(reasons.values()))
    constants = {node.output: node for node in graph.nodes if node.primitive == "constant"}
    stages: dict[Value, int] = dict.fromkeys(graph.inputs.values(), 0)
    sessions: dict[int, list[Node]] = {}
    calls: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.output in constants:
            continue
        stage = max((stages.get(value, 0) for value in node.inputs), default=0)
        called = node in reasons
        (calls if called else sessions).setdefault(stage, []).append(node)
        stages.update(dict.fromkeys(node.outputs, stage + called))
    if reasons and not sessions:
        first = next(iter(reasons.values()))
        raise TraceError(f"{first.message} Nothing else is left to compile.", hint=first.hint)
    read = _readers(graph, sessions, calls)
    parts: list[_Piece | _HostCall] = []
    for stage in range(max([*sessions, *calls], default=-1) + 1):
        if stage in sessions:
            parts.append(_piece(sessions[stage], constants, read, f"{name}_{stage}" if reasons else name))
        parts += [_HostCall(node, reasons[node]) for node in calls.get(stage, ())]
    held = {value: node.attributes["value"] for value, node in constants.items()}
    own = frozenset(value for part in parts if isinstance(part, _Piece) for value in part.outputs.values())
    return Program(graph=graph, constants=held, parts=tuple(parts), own=own)


def _readers(graph: Graph, *groups: Mapping[int, list[Node]]) -> dict[Value, set[int]]:
    """By value, what reads it: sets of nodes by the identity of their lists, and 0 for the results of the graph."""
    read: dict[Value, set[int]] = {value: {0} for value in graph.outputs.values()}
    for group in groups:
        for nodes in group.values():
            for value in (value for node in nodes for value in node.inputs):
                read.setdefault(value, set()).add(id(nodes))
    return read


def _piece(nodes: list[Node], constants: Mapping[Value, Node], read: Mapping[Value, set[int]], name: str) -> _Piece:
    operands = list(dict.fromkeys(value for node in nodes for value in node.inputs))
    made = list(dict.fromkeys(value for node in nodes for value in node.outputs))
    own = set(made)
    inputs = _named("value", (value for value in operands if value not in own and value not in constants))
    outputs = _named("result", (value for value in made if read.get(value, set()) - {id(nodes)}))
    held = [constants[value] for value in operands if value in constants]
    data = to_onnx(Graph(inputs, (*held, *nodes), outputs), name=name, target="cpu")
    return _Piece(Executable(data), inputs, outputs)


def _named(stem: str, values: Iterable[Value]) -> dict[str, Value]:
    return {f"{stem}/{index}": value for index, value in enumerate(values)}
