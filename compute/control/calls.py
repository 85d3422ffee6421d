"""Graphs that are applied as they are, and differ in how they are differentiated.

``call``: by the rules of its nodes. ``checkpoint``: so too, but computed again in the gradient, which then reads the
operands alone. ``custom``: by a graph ``rule`` of its own, from operands, results and the cotangents of the results to
the cotangents of those operands that are floats. Passes replace all three by their nodes; gradients are taken before.
"""

from collections.abc import Sequence
from dataclasses import replace

from coterie.compute.array_type import Array, bind, bind_all
from coterie.compute.control.row import input_types, types_of
from coterie.compute.ir import Attributes, NDArray, Node, Type
from coterie.compute.primitives import rules
from coterie.compute.primitives.facts import holding
from coterie.compute.primitives.row import Batched, Call, Emitter, Lanes, Primitive, Pullback, Replay, Run, same
from coterie.errors import ShapeError


def _infer(types: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    if input_types(attributes["graph"]) != tuple(types):
        raise ShapeError("the graph does not take these operands.", hint="Pass what it was traced with.")
    return types_of(attributes["graph"])


def _evaluate(run: Run, arrays: Sequence[NDArray], attributes: Attributes) -> list[NDArray]:
    return run(attributes["graph"], arrays)


def _gradient(
    call: Call, cotangents: Sequence[Array | None], wanted: Sequence[bool], pullback: Pullback
) -> list[Array | None]:
    return _pulled(call.inputs, call, cotangents, wanted, pullback)


def _again(
    call: Call, cotangents: Sequence[Array | None], wanted: Sequence[bool], pullback: Pullback
) -> list[Array | None]:
    # Without a barrier the second computation would be recognised as the first, and its values kept after all. What the
    # function takes from around it, weights mostly, needs none where there are arguments: a runtime copies them for it.
    count = call.attributes["arguments"] or len(call.inputs)
    told = [g for g in cotangents if g is not None and g.size]
    inputs = [*(_after(told[:1], x) for x in call.inputs[:count]), *call.inputs[count:]]
    found = _pulled(inputs, call, cotangents, wanted, pullback)
    others = [g for g in found[count:] if g is not None and g.size]
    if others:
        found[:count] = [None if g is None else _after(others, g) for g in found[:count]]
    return found


def _after(before: Sequence[Array], x: Array) -> Array:
    """x behind a barrier, which is there only when all of ``before`` are: they choose between two readings of it.

    Runtimes order nodes by what these need alone. Without it they compute again what nothing reads for long, and put
    off what only the end reads, gradients of weights, and with them the freeing of all that these need.
    """
    again = bind("barrier", x)
    if not x.type.is_float:
        return again
    total: Array | None = None
    for array in before:
        # Behind a barrier, so that nobody computes the first element alone.
        whole = bind("barrier", array)
        first = rules.reshape(bind("slice", whole, starts=(0,) * whole.ndim, stops=(1,) * whole.ndim), ())
        first = rules.cast(first, x.type.dtype)
        total = first if total is None else total + first
    if total is None:
        return again
    return bind("where", bind("greater", total, rules.number(0.0, total)), x, again)


def _pulled(
    inputs: Sequence[Array],
    call: Call,
    cotangents: Sequence[Array | None],
    wanted: Sequence[bool],
    pullback: Pullback,
) -> list[Array | None]:
    graph = pullback(call.attributes["graph"], wanted, [g is not None for g in cotangents])
    operands = [*inputs, *(g for g in cotangents if g is not None)]
    found = iter(bind_all("call", operands, {"graph": graph}))
    return [next(found) if want else None for want in wanted]


def _own(
    call: Call, cotangents: Sequence[Array | None], wanted: Sequence[bool], pullback: Pullback
) -> list[Array | None]:
    told = [
        (rules.zeros(y.type) if g is None else g)
        for y, g in zip(call.outputs, cotangents, strict=True)
        if y.type.is_float
    ]
    found = iter(bind_all("call", [*call.inputs, *call.outputs, *told], {"graph": call.attributes["rule"]}))
    return [next(found) if x.type.is_float else None for x in call.inputs]


def _batch(call: Batched) -> Lanes:
    graph = call.attributes["graph"]
    batched, mapped = call.graph(graph, call.mapped, call.size, [False] * len(graph.outputs))
    return list(zip(bind_all("call", call.inputs, {"graph": batched}), mapped, strict=True))


def _batch_again(call: Batched) -> Lanes:
    graph = call.attributes["graph"]
    batched, mapped = call.graph(graph, call.mapped, call.size, [False] * len(graph.outputs))
    attributes = {"graph": batched, "arguments": call.attributes["arguments"]}
    return list(zip(bind_all("checkpoint", call.inputs, attributes), mapped, strict=True))


def _batch_own(call: Batched) -> Lanes:
    """The rule is mapped too, with every operand and every result as an example's own."""
    graph, rule = call.attributes["graph"], call.attributes["rule"]
    inputs = [
        array if mapped else bind("broadcast_to", array, shape=(call.size, *array.shape))
        for array, mapped in zip(call.inputs, call.mapped, strict=True)
    ]
    forward, _ = call.graph(graph, [True] * len(inputs), call.size, [True] * len(graph.outputs))
    backward, _ = call.graph(rule, [True] * len(rule.inputs), call.size, [True] * len(rule.outputs))
    return [(array, True) for array in bind_all("custom", inputs, {"graph": forward, "rule": backward})]


def _lower(emit: Emitter, node: Node, names: Sequence[str]) -> list[str]:
    return emit.inline(node.attributes["graph"], names)


def _inline(inputs: Sequence[Array], attributes: Attributes, replay: Replay) -> list[Array]:
    return replay(attributes["graph"], inputs)


_CALL = Primitive(
    name="call",
    infer=_infer,
    evaluate=_evaluate,
    saving=same,
    gradient=_gradient,
    batch=_batch,
    lower=_lower,
    inline=_inline,
    facts=holding("call", "graph"),
)
ROWS = (
    _CALL,
    replace(_CALL, name="checkpoint", gradient=_again, batch=_batch_again),
    replace(_CALL, name="custom", gradient=_own, batch=_batch_own),
)
