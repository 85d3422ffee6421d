"""A choice between two graphs by one bool: cond(predicate, *operands), with the graphs ``true`` and ``false``.

Its gradient is the choice between the two gradients, each computing its own branch again. For examples that choose
differently both branches are computed.
"""

from collections.abc import Sequence

from coterie.compute.array_type import Array, bind, bind_all
from coterie.compute.control.row import copies, input_types, types_of
from coterie.compute.ir import Attributes, Graph, NDArray, Node, Type
from coterie.compute.primitives import rules
from coterie.compute.primitives.facts import holding
from coterie.compute.primitives.row import Batched, Call, Emitter, Lanes, Primitive, Pullback, Replay, Run, same
from coterie.errors import DTypeError, ShapeError


def _infer(types: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    true, false = attributes["true"], attributes["false"]
    if types[0] != Type("bool", ()):
        raise DTypeError("the predicate must be one bool.", hint="Compare first, e.g. cnp.sum(x) > 0.")
    if not input_types(true) == input_types(false) == tuple(types[1:]):
        raise ShapeError("the branches do not take these operands.", hint="Both take all operands.")
    if types_of(true) != types_of(false):
        told = [", ".join(map(str, types_of(branch))) for branch in (true, false)]
        raise ShapeError(
            f"the branches return different types: ({told[0]}) if true, ({told[1]}) if false.",
            hint="Make both return the same shapes and dtypes.",
        )
    return types_of(true)


def _evaluate(run: Run, arrays: Sequence[NDArray], attributes: Attributes) -> list[NDArray]:
    return run(attributes["true" if arrays[0] else "false"], arrays[1:])


def _gradient(
    call: Call, cotangents: Sequence[Array | None], wanted: Sequence[bool], pullback: Pullback
) -> list[Array | None]:
    seeded = [g is not None for g in cotangents]
    branches: dict[str, Graph] = {
        name: pullback(call.attributes[name], wanted[1:], seeded) for name in ("true", "false")
    }
    operands = [*call.inputs, *(g for g in cotangents if g is not None)]
    found = iter(bind_all("cond", operands, branches))
    return [None, *(next(found) if want else None for want in wanted[1:])]


def _batch(call: Batched) -> Lanes:
    true, false = call.attributes["true"], call.attributes["false"]
    mapped = call.mapped[1:]
    wanted = [call.mapped[0]] * len(true.outputs)
    _, first = call.graph(true, mapped, call.size, wanted)
    _, second = call.graph(false, mapped, call.size, wanted)
    either = [a or b for a, b in zip(first, second, strict=True)]
    true, _ = call.graph(true, mapped, call.size, either)
    false, _ = call.graph(false, mapped, call.size, either)
    if not call.mapped[0]:
        outputs = bind_all("cond", call.inputs, {"true": true, "false": false})
        return list(zip(outputs, either, strict=True))
    chosen, operands = call.inputs[0], call.inputs[1:]
    results = [bind_all("call", operands, {"graph": branch}) for branch in (true, false)]
    return [(select(chosen, a, b), True) for a, b in zip(*results, strict=True)]


def select(chosen: Array, a: Array, b: Array) -> Array:
    """a or b for each example; one bool for each leading axis that it has."""
    return bind("where", rules.reshape(chosen, (*chosen.shape, *(1,) * (a.ndim - chosen.ndim))), a, b)


def _lower(emit: Emitter, node: Node, names: Sequence[str]) -> list[str]:
    def branch(graph: Graph) -> object:
        return emit.subgraph((), lambda: copies(emit, emit.inline(graph, names[1:]), types_of(graph)))

    true, false = branch(node.attributes["true"]), branch(node.attributes["false"])
    return emit.ops("If", len(node.outputs), names[0], then_branch=true, else_branch=false)


def _inline(inputs: Sequence[Array], attributes: Attributes, replay: Replay) -> list[Array]:
    true, false = (replay(attributes[name], inputs[1:]) for name in ("true", "false"))
    return [bind("where", inputs[0], a, b) for a, b in zip(true, false, strict=True)]


ROWS = (
    Primitive(
        name="cond",
        infer=_infer,
        evaluate=_evaluate,
        saving=same,
        gradient=_gradient,
        batch=_batch,
        lower=_lower,
        inline=_inline,
        facts=holding("choice", "true", "false"),
    ),
)
