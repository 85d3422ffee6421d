"""The pass that writes user primitives out in the core."""

from coterie.compute.extension.lowering import missing, written_out
from coterie.compute.extension.row import NODE
from coterie.compute.ir import Graph
from coterie.compute.verify import verify
from coterie.errors import TraceError


def decompose(graph: Graph) -> Graph:
    """The graph with calls of their lowerings in place of user primitives; those without a lowering stay. Take
    gradients first. Raises TraceError for a lowering that never ends.
    """
    after = written_out(graph)
    return graph if after is graph else verify(after)


def host_only(graph: Graph) -> TraceError | None:
    """Why a graph cannot leave this process: the first user primitive without a lowering, in lowerings and in graphs
    inside nodes too. None when it can.
    """
    for node in written_out(graph).nodes:
        if node.primitive == NODE:
            return missing(node.attributes["primitive"], node.source)
        for held in node.attributes.values():
            if isinstance(held, Graph) and (found := host_only(held)) is not None:
                return found
    return None
