"""bfloat16 on any provider: float32 tensors whose values are rounded to the significant bits of bfloat16."""

from collections.abc import Callable, Sequence
from typing import Any

from coterie.compute import tree
from coterie.compute.array import Array, as_array
from coterie.compute.control.derived import custom_vjp
from coterie.compute.data.batches import WEIGHT
from coterie.compute.ir import Node
from coterie.compute.replay import applied
from coterie.compute.table import PRIMITIVES
from coterie.compute.trace import is_array, trace_flat
from coterie.compute.walk import environment_of, outputs_of, walk

# float32 has 24 significant bits, bfloat16 has 8.
_SPLIT = float(2**16 + 1)


def _split(x: Array) -> Array:
    """The leading 8 bits of each number: Dekker's split (1971), three operations that every provider has. A cast to
    bfloat16 and back says the same, but few providers have it.
    """
    spread = x * _SPLIT
    return spread - (spread - x)


def _round_cotangent(x: Array, y: Array, dy: Array) -> Array:
    return _split(dy)


@custom_vjp(_round_cotangent)
def round_bfloat16(x: Array) -> Array:
    """x float32 of any shape, rounded to the nearest number of bfloat16 (a tie may go either way); its cotangent is
    rounded too. Numbers beyond 5e33 overflow, where bfloat16 reaches 3e38.
    """
    return _split(x)


def rounded(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its float32 inputs (``sample_weight`` apart), constants and every result in it rounded to
    bfloat16, and with every cotangent on the way back. The insides of loops and branches stay float32; what they
    return is rounded.
    """

    def computed(*arguments: Any) -> Any:
        traced = trace_flat(fn, arguments, ())
        leaves, structure = tree.flatten(tuple(arguments))
        inputs = [
            as_array(leaf) if path.rpartition(".")[2] == WEIGHT else _round(as_array(leaf))
            for path, leaf in zip(structure.paths(), leaves, strict=True)
            if is_array(leaf)
        ]
        inputs += [_round(array) for array in traced.captures]
        results = outputs_of(traced.graph, walk(traced.graph, environment_of(traced.graph, inputs), _rounded))
        return tree.unflatten(traced.out_structure, results)

    return computed


def _rounded(node: Node, operands: list[Array]) -> Sequence[Array]:
    results = applied(node, operands)
    return tuple(map(_round, results)) if PRIMITIVES[node.primitive].facts.rounds else results


def _round(x: Array) -> Array:
    return round_bfloat16(x) if x.type.dtype == "float32" else x
