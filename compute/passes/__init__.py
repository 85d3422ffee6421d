"""Passes: graph → graph of the same meaning. Each is verified after it ran, and running it again changes nothing."""

from collections.abc import Callable

from coterie.compute.extension.decompose import decompose
from coterie.compute.ir import Graph, require_graph
from coterie.compute.passes.algebra import simplify
from coterie.compute.passes.constants import fold_constants
from coterie.compute.passes.cse import share_common_subexpressions
from coterie.compute.passes.dead_code import remove_dead_code
from coterie.compute.passes.shared_weights import join_uses
from coterie.compute.passes.subgraphs import drop_unread_results, inline_calls, inside
from coterie.compute.passes.update_fusion import fuse_products
from coterie.errors import InternalError

PASSES: dict[str, Callable[[Graph], Graph]] = {
    "user_primitives": decompose,
    "calls": inline_calls,
    "unread_results": drop_unread_results,
    "dead_code": remove_dead_code,
    "constants": fold_constants,
    "common_subexpressions": share_common_subexpressions,
    "algebra": simplify,
    "update_fusion": fuse_products,
    "shared_weights": join_uses,
}


def optimise(graph: Graph) -> Graph:
    """Run all passes until none changes anything. Take gradients first: stop_gradient is removed here."""
    require_graph("optimise", graph)
    return fixpoint(graph, *PASSES.values(), inside(optimise))


def fixpoint(graph: Graph, *passes: Callable[[Graph], Graph]) -> Graph:
    """Run passes in turn until none changes anything."""
    # Every rule makes the graph smaller or moves work to a smaller tensor: a chain of n nodes needs at most n sweeps.
    most = 100 + len(graph.nodes)
    unchanged = 0  # how many passes in a row left the graph as it is
    for _ in range(most):
        for run in passes:
            before = graph
            graph = run(graph)
            unchanged = unchanged + 1 if graph is before else 0
            if unchanged == len(passes):
                return graph
    raise InternalError(f"The passes still change the graph after {most} sweeps.")
