"""Legalisation for providers without control flow: loops of a known number of steps are written out, choices compute
both branches and select; a loop whose number of steps depends on data is refused by name.
"""

from collections.abc import Sequence

from coterie.compute.array import Array, bind
from coterie.compute.control.table import STRUCTURED
from coterie.compute.ir import Graph
from coterie.compute.passes import optimise
from coterie.compute.replay import build
from coterie.compute.source import replaying
from coterie.compute.verify import verify
from coterie.errors import TraceError


def unrolled(graph: Graph) -> Graph:
    """The graph without structured nodes; the same graph when it has none. Raises TraceError for a while loop."""
    if all(node.primitive not in STRUCTURED for node in graph.nodes):
        return graph
    flat = build([value.type for value in graph.inputs.values()], lambda arrays: _replay(graph, arrays))
    named = Graph(
        dict(zip(graph.inputs, flat.inputs.values(), strict=True)),
        flat.nodes,
        dict(zip(graph.outputs, flat.outputs.values(), strict=True)),
    )
    return optimise(verify(named))


def _replay(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    environment = dict(zip(graph.inputs.values(), inputs, strict=True))
    for node in graph.nodes:
        with replaying(node.source):
            operands = [environment[value] for value in node.inputs]
            if node.primitive == "constant":
                environment[node.output] = Array(node.attributes["value"])
                continue
            if node.primitive not in STRUCTURED:
                environment[node.output] = bind(node.primitive, *operands, **node.attributes)
                continue
            results = STRUCTURED[node.primitive].inline(operands, node.attributes, _replay)
            if results is None:
                raise TraceError(
                    f"{node.source}: the number of steps of {node.primitive} depends on data, and the portable "
                    "target has no loops.",
                    hint="Use scan with a fixed length and where(), or export for CPU-class providers.",
                )
            environment.update(zip(node.outputs, results, strict=True))
    return [environment[value] for value in graph.outputs.values()]
