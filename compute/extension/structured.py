"""The row behind every user primitive: it asks the primitive that the node carries.

So whatever evaluates, differentiates, maps, verifies or writes graphs takes user primitives without knowing of them.
"""

from collections.abc import Sequence
from typing import Any, cast

from coterie.compute.array_type import Array, as_array, bind_all
from coterie.compute.control import calls
from coterie.compute.extension.kernels import choose, launch
from coterie.compute.extension.lowering import decomposed, missing, types_of_results
from coterie.compute.extension.row import NODE, UserPrimitive, broken, listed, static
from coterie.compute.ir import Attributes, NDArray, Node, Type
from coterie.compute.primitives import rules
from coterie.compute.primitives.facts import holding
from coterie.compute.primitives.row import Batched, Call, Emitter, Lanes, Primitive, Pullback, Replay, Run, same
from coterie.compute.source import user_source
from coterie.errors import TraceError

_CALL = next(row for row in calls.ROWS if row.name == "call")


def _primitive(attributes: Attributes) -> UserPrimitive:
    return attributes["primitive"]


def _graph(attributes: Attributes, operands: Sequence[Array]) -> dict[str, Any]:
    """The attributes of a call of the lowering."""
    return {"graph": decomposed(_primitive(attributes), [array.type for array in operands], static(attributes))}


def _infer(types: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    return types_of_results(_primitive(attributes), types, static(attributes))


def _evaluate(run: Run, arrays: Sequence[NDArray], attributes: Attributes) -> Sequence[NDArray]:
    primitive, hints = _primitive(attributes), static(attributes)
    types = [Type(array.dtype.name, array.shape) for array in arrays]
    implementation = choose(primitive, types)
    if implementation is None:
        return run(decomposed(primitive, types, hints), arrays)
    return launch(primitive, implementation, arrays, types_of_results(primitive, types, hints), hints)


def _gradient(
    call: Call, cotangents: Sequence[Array | None], wanted: Sequence[bool], pullback: Pullback
) -> Sequence[Array | None]:
    primitive = _primitive(call.attributes)
    if primitive.vjp is None:
        if primitive.lower is None:
            raise _no_rule(primitive, "gradient", "vjp")
        inner = Call(call.inputs, call.outputs, _graph(call.attributes, call.inputs))
        return _CALL.gradient(inner, cotangents, wanted, pullback)
    told = [
        rules.zeros(y.type) if g is None and y.type.is_float else g
        for y, g in zip(call.outputs, cotangents, strict=True)
    ]
    out, dout = (call.outputs[0], told[0]) if len(told) == 1 else (call.outputs, tuple(told))
    returned = primitive.vjp(*call.inputs, out, dout, **static(call.attributes))
    found: list[Any] = list(cast("list[Any]", returned)) if isinstance(returned, (tuple, list)) else [returned]
    if len(found) != len(call.inputs):
        raise broken(primitive, f"its vjp returned {len(found)} cotangents for {len(call.inputs)} operands.")
    return [
        _cotangent(primitive, name, x, g) if want else None
        for name, x, g, want in zip(primitive.inputs, call.inputs, found, wanted, strict=True)
    ]


def _cotangent(primitive: UserPrimitive, name: str, x: Array, g: Any) -> Array | None:
    if g is None:
        return None
    cotangent = as_array(g)
    if cotangent.type != x.type:
        raise broken(primitive, f"its vjp returned {cotangent.type} for the operand {name}, which is {x.type}.")
    return cotangent


def _batch(call: Batched) -> Lanes:
    primitive, hints = _primitive(call.attributes), static(call.attributes)
    example = [
        x.type if not m else Type(x.type.dtype, x.shape[1:]) for x, m in zip(call.inputs, call.mapped, strict=True)
    ]
    if primitive.batch is None:
        if primitive.lower is None:
            raise _no_rule(primitive, "batch rule", "batch")
        attributes = {"graph": decomposed(primitive, example, hints)}
        return _CALL.batch(Batched("call", call.inputs, call.mapped, call.size, attributes, call.graph))
    told = Batched(primitive.name, call.inputs, call.mapped, call.size, hints, call.graph)
    results = listed(primitive, "batch rule", primitive.batch(told))
    expected = tuple(Type(t.dtype, (call.size, *t.shape)) for t in types_of_results(primitive, example, hints))
    for result, type_ in zip(results, expected, strict=True):
        if result.type != type_:
            raise broken(primitive, f"its batch rule returned {result.type} where {type_} is due.")
    return [(result, True) for result in results]


def _no_rule(primitive: UserPrimitive, what: str, hook: str) -> TraceError:
    return TraceError(
        f"{user_source()}: primitive {primitive.name!r} has no {what} and no lowering to take it from.",
        hint=f"Give it a {hook}(...) or a lower(...) hook.",
        code="rule_missing",
    )


def _lower(emit: Emitter, node: Node, names: Sequence[str]) -> list[str]:
    primitive = _primitive(node.attributes)
    if primitive.lower is None:
        raise missing(primitive, node.source)
    return emit.inline(decomposed(primitive, [value.type for value in node.inputs], static(node.attributes)), names)


def _inline(inputs: Sequence[Array], attributes: Attributes, replay: Replay) -> list[Array]:
    if _primitive(attributes).lower is None:
        return list(bind_all(NODE, inputs, attributes))  # it stays, for the host or to be refused where it is written
    return replay(_graph(attributes, inputs)["graph"], inputs)


ROWS = (
    Primitive(
        name=NODE,
        infer=_infer,
        evaluate=_evaluate,
        saving=same,
        gradient=_gradient,
        batch=_batch,
        lower=_lower,
        inline=_inline,
        facts=holding("user"),
    ),
)
