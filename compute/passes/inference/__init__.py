"""Passes for graphs that only answer: graph → cheaper graph of the same meaning, up to rounding.

Each takes a graph whose weights are constants (``bind_weights``), and is refused on graphs that train.
"""

from collections.abc import Callable, Mapping

from coterie.compute.ir import Graph
from coterie.compute.passes import PASSES, fixpoint
from coterie.compute.passes.inference.examples_apart import put_examples_apart
from coterie.compute.passes.inference.fold import fold_scales_before, fold_scales_behind
from coterie.compute.passes.inference.half import in_float16 as in_float16
from coterie.compute.passes.inference.layout import move_transpositions
from coterie.compute.passes.inference.products import turn_products
from coterie.compute.passes.inference.refusal import inference_only
from coterie.compute.passes.inference.refusal import require_inference as require_inference
from coterie.compute.passes.inference.reorder import reorder_operators as _reorder
from coterie.compute.passes.inference.replace import replace_operators as _replace
from coterie.compute.passes.inference.weights import bind_weights as bind_weights
from coterie.compute.passes.subgraphs import inside

Pass = Callable[[Graph], Graph]

# Those of every graph, but for the two that serve gradients: they turn products the other way round.
_BASE = tuple(run for name, run in PASSES.items() if name not in ("update_fusion", "shared_weights"))


def _repeated(name: str, *sweeps: Pass) -> Pass:
    """The pass that sweeps until nothing changes, and is refused on graphs that train."""

    def run(graph: Graph) -> Graph:
        return fixpoint(graph, *_BASE, *sweeps, inside(run))

    return inference_only(name, run)


fold_constants = _repeated("fold_constants")
"""Whatever depends on constants alone is computed now."""
fold_batch_norm = _repeated("fold_batch_norm", turn_products, _replace, fold_scales_behind, fold_scales_before)
"""Scales and shifts of channels, and so BatchNorm, go into the convolution or matrix product beside them."""
replace_operators = _repeated("replace_operators", turn_products, _replace)
"""Operators become cheaper ones of the same meaning."""
reorder_operators = _repeated("reorder_operators", _reorder)
"""Operators change places where that leaves fewer operations."""
choose_layout = _repeated("choose_layout", put_examples_apart, turn_products, move_transpositions)
"""Transpositions of images cancel, or go into weights."""

INFERENCE_PASSES: Mapping[str, Pass] = {
    "constants": fold_constants,
    "batch_norm": fold_batch_norm,
    "replace": replace_operators,
    "reorder": reorder_operators,
    "layout": choose_layout,
}


def optimise_for_inference(graph: Graph) -> Graph:
    """The graph after all passes for inference, and those for every graph, until none changes anything. Raises
    GraphRefused (code ``training_graph``) for a graph that trains.
    """
    folded = _folded(graph)  # scales first: a pooling that has moved in between would keep them from the weights
    return _moved(folded)


def optimise_for_integers(graph: Graph) -> Graph:
    """As :func:`optimise_for_inference`, for a graph that is to be quantised: scales and shifts before a product stay,
    since an activation is quantised better behind them (see ``fold_scales_before``).
    """
    return _moved_for_integers(_folded_for_integers(graph))


_SWEEPS = (put_examples_apart, turn_products, move_transpositions, _replace, fold_scales_behind)
_folded = _repeated("optimise_for_inference", *_SWEEPS, fold_scales_before)
_moved = _repeated("optimise_for_inference", *_SWEEPS, fold_scales_before, _reorder)
_folded_for_integers = _repeated("optimise_for_integers", *_SWEEPS)
_moved_for_integers = _repeated("optimise_for_integers", *_SWEEPS, _reorder)
