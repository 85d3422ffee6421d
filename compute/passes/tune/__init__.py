"""Tuning: forms of a graph that run faster on one kind of target, with the same meaning. One row a target.

Layers, gradients and the passes of ``optimise`` say what is computed. What a runtime's kernels make of it is known here
alone: each choice is a pass, each target names those that were measured to pay there, and a target without a row gets
none. ``to_onnx`` tunes first, then legalises, then writes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coterie.compute.ir import Graph, require_graph
from coterie.compute.passes.tune.ranks import equal_ranks
from coterie.compute.passes.tune.turn import smaller_right


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What pays on a target.

    written: passes over a graph that is about to be written, in their order. Gradients are part of it.
    """

    written: tuple[Callable[[Graph], Graph], ...] = ()


# Measured with ONNX Runtime's CPU provider, which is what most runtimes of portable files use.
_CPU = Tuning(written=(smaller_right, equal_ranks))
_NONE = Tuning()

TUNING: Mapping[str, Tuning] = {"portable": _CPU, "cpu": _CPU, "wasm": _CPU}


def tune(graph: Graph, target: str) -> Graph:
    """The graph in the forms that are fast on a target; the same graph where there is nothing to do.

    target: a target of ``to_onnx``.
    """
    require_graph("tune", graph)
    for run in TUNING.get(target, _NONE).written:
        graph = run(graph)
    return graph
