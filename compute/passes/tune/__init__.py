"""Tuning: forms of a graph that run faster on one kind of target, with the same meaning. One row a target.

Layers, gradients and the passes of ``optimise`` say what is computed. What a runtime's kernels make of it is known here
alone: each choice is a pass, each target names those that were measured to pay there, and a target without a row gets
none. ``to_onnx`` tunes first, then legalises, then writes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from coterie.compute.ir import Graph, require_graph
from coterie.compute.passes.tune.examples_beside import examples_beside
from coterie.compute.passes.tune.kernel_gradients import kernel_gradients
from coterie.compute.passes.tune.look_ups import rows_in_place
from coterie.compute.passes.tune.pooling import pool_first
from coterie.compute.passes.tune.ranks import equal_ranks
from coterie.compute.passes.tune.turn import smaller_right


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What pays on a target.

    traced: passes over a function whose gradient is about to be taken, in their order.
    written: passes over a graph that is about to be written, in their order. Gradients are part of it.
    """

    traced: tuple[Callable[[Graph], Graph], ...] = ()
    written: tuple[Callable[[Graph], Graph], ...] = ()


# Measured with ONNX Runtime's CPU provider, which is what most runtimes of portable files use.
_CPU = Tuning(
    traced=(pool_first,), written=(rows_in_place, smaller_right, equal_ranks, examples_beside, kernel_gradients)
)
_NONE = Tuning()

TUNING: Mapping[str, Tuning] = {"portable": _CPU, "cpu": _CPU, "wasm": _CPU}


def tune(graph: Graph, target: str) -> Graph:
    """The graph in the forms that are fast on a target; the same graph where there is nothing to do.

    target: a target of ``to_onnx``.
    """
    require_graph("tune", graph)
    return _run(TUNING.get(target, _NONE).written, graph)


def before_gradients(target: str) -> Callable[[Graph], Graph]:
    """The pass that a target wants over a function before its gradient is taken: ``before`` of ``value_and_grad``.

    target: a target of ``to_onnx``, for which the step is meant. The step may be written for another one too: it
        computes the same there.
    """
    return partial(_run, TUNING.get(target, _NONE).traced)


def _run(passes: Iterable[Callable[[Graph], Graph]], graph: Graph) -> Graph:
    for run in passes:
        graph = run(graph)
    return graph
