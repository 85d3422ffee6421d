"""Legalisation for providers without control flow: loops of a known number of steps are written out, choices compute
both branches and select; a loop whose number of steps depends on data is refused by name.
"""

from collections.abc import Sequence

from coterie.compute.array import Array
from coterie.compute.ir import Graph, Node
from coterie.compute.passes import optimise
from coterie.compute.replay import build
from coterie.compute.table import PLAIN, PRIMITIVES
from coterie.compute.verify import verify
from coterie.compute.walk import environment_of, outputs_of, walk
from coterie.errors import TraceError


def unrolled(graph: Graph) -> Graph:
    """The graph without nodes that hold graphs; the same graph when it has none. Raises TraceError for a while loop."""
    if all(node.primitive in PLAIN for node in graph.nodes):
        return graph
    flat = build([value.type for value in graph.inputs.values()], lambda arrays: _replay(graph, arrays))
    named = Graph(
        dict(zip(graph.inputs, flat.inputs.values(), strict=True)),
        flat.nodes,
        dict(zip(graph.outputs, flat.outputs.values(), strict=True)),
    )
    return optimise(verify(named))


def _replay(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    return outputs_of(graph, walk(graph, environment_of(graph, inputs), _written_out))


def _written_out(node: Node, operands: list[Array]) -> Sequence[Array]:
    results = PRIMITIVES[node.primitive].inline(operands, node.attributes, _replay)
    if results is None:
        raise TraceError(
            f"{node.source}: the number of steps of {node.primitive} depends on data, and the portable target has no "
            "loops.",
            hint="Use scan with a fixed length and where(), or export for CPU-class providers.",
        )
    return results
