"""A loop whose number of steps depends on data: while(*carries, *constants).

The graph ``cond`` says of carries and constants whether to take another step, the graph ``body`` makes the new carries
and the elements of stacked results, as many as there were steps.

The gradient is a scan backward over the carries that stood before each step, which the forward loop stacks up: no bound
on the number of steps is needed, and its size does not depend on it. With the carries the loop stacks the condition:
of many examples at once, some stop earlier than others, and the scan must leave those alone until their own last step.
"""

from collections.abc import Sequence

from coterie.compute.array_type import Array, bind, bind_all
from coterie.compute.control.cond import select
from coterie.compute.control.row import STEPS, copies, in_file, input_types, types_of
from coterie.compute.control.scan import check_carries, examples_first, flat_stacks, scan_attributes, stacked
from coterie.compute.ir import Attributes, Graph, NDArray, Node, Type
from coterie.compute.primitives import rules
from coterie.compute.primitives.facts import holding
from coterie.compute.primitives.row import Batched, Call, Emitter, Lanes, Primitive, Pullback, Replay, Run
from coterie.compute.replay import apply, build
from coterie.errors import DTypeError, ShapeError


def _infer(types: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    cond, body, carries = attributes["cond"], attributes["body"], attributes["carries"]
    if not input_types(cond) == input_types(body) == tuple(types):
        raise ShapeError("condition and body do not take these operands.", hint="Both take all carries.")
    if types_of(cond) != (Type("bool", ()),):
        raise DTypeError(
            f"the condition is {', '.join(map(str, types_of(cond)))} and not one bool.",
            hint="Compare and reduce, e.g. cnp.sum(x) > 0.",
        )
    results = types_of(body)
    check_carries(types[:carries], results)
    return (*results[:carries], *(Type(y.dtype, (STEPS, *y.shape)) for y in results[carries:]))


def _evaluate(run: Run, arrays: Sequence[NDArray], attributes: Attributes) -> list[NDArray]:
    cond, body, count = attributes["cond"], attributes["body"], attributes["carries"]
    carries, consts = list(arrays[:count]), list(arrays[count:])
    rows: list[list[NDArray]] = []
    while run(cond, [*carries, *consts])[0]:
        results = run(body, [*carries, *consts])
        carries = results[:count]
        rows.append(results[count:])
    return carries + stacked(rows, types_of(body)[count:])


def _saving(attributes: Attributes) -> Attributes:
    cond, body, count = attributes["cond"], attributes["body"], attributes["carries"]
    saving = build(input_types(body), lambda xs: [*apply(body, xs), *xs[:count], *apply(cond, xs)])
    return {**attributes, "body": saving}


def _gradient(
    call: Call, cotangents: Sequence[Array | None], wanted: Sequence[bool], pullback: Pullback
) -> list[Array | None]:
    body: Graph = call.attributes["body"]
    count: int = call.attributes["carries"]
    types = input_types(body)
    floats = [type_.is_float for type_ in types[:count]]
    given = [g for g in cotangents[count:] if g is not None]
    pulled = pullback(body, [*floats, *wanted[count:]], [*floats, *(g is not None for g in cotangents[count:])])
    moving = [type_ for type_ in types[:count] if type_.is_float]
    accumulated = [type_ for type_, want in zip(types[count:], wanted[count:], strict=True) if want]
    held = len(moving) + len(accumulated)

    def step(xs: list[Array]) -> list[Array]:
        back, total, rest = xs[: len(moving)], xs[len(moving) : held], xs[held:]
        consts, saved = rest[: len(types) - count], rest[len(types) - count : len(types)]
        taken, seeds = rest[len(types)], rest[len(types) + 1 :]
        found = apply(pulled, [*saved, *consts, *back, *seeds])
        moved = [bind("where", taken, new, old) for new, old in zip(found, back, strict=False)]
        sums = [
            a + bind("where", taken, b, rules.zeros(b.type)) for a, b in zip(total, found[len(moving) :], strict=True)
        ]
        return [*moved, *sums]

    elements = [Type(g.type.dtype, g.shape[1:]) for g in given]
    graph = build([*moving, *accumulated, *types[count:], *types[:count], Type("bool", ()), *elements], step)
    start = [
        rules.zeros(type_) if g is None else g
        for g, type_ in zip(cotangents[:count], types[:count], strict=True)
        if type_.is_float
    ]
    saved = call.outputs[len(cotangents) :]
    operands = [*start, *map(rules.zeros, accumulated), *call.inputs[count:], *saved, *given]
    attributes = scan_attributes(graph, held, len(types) - count, STEPS, True)
    found = iter(bind_all("scan", operands, attributes))
    return [next(found) if want else None for want in (*floats, *wanted[count:])]


def _batch(call: Batched) -> Lanes:
    cond, body, count = call.attributes["cond"], call.attributes["body"], call.attributes["carries"]
    flags, consts = list(call.mapped[:count]), list(call.mapped[count:])
    ys = [False] * (len(body.outputs) - count)
    while True:
        step, mapped = call.graph(body, [*flags, *consts], call.size, [*flags, *ys])
        test, (differs,) = call.graph(cond, [*flags, *consts], call.size, [False])
        found = [True] * count if differs else mapped[:count]
        if found == flags:
            break
        flags = found
    inputs = [
        x if was or not now else rules.broadcast_to(x, (call.size, *x.shape))
        for x, was, now in zip(call.inputs, call.mapped, [*flags, *consts], strict=True)
    ]
    if differs:
        test, step = _until_the_last(test, step, count)
    results = bind_all("while", inputs, {"cond": test, "body": step, "carries": count})
    return [
        (examples_first(y) if is_mapped and index >= count else y, is_mapped)
        for index, (y, is_mapped) in enumerate(zip(results, mapped, strict=True))
    ]


def _until_the_last(test: Graph, step: Graph, count: int) -> tuple[Graph, Graph]:
    """The loop that runs while some example wants to, and leaves the others as they are."""

    def some(xs: list[Array]) -> list[Array]:
        going = rules.cast(apply(test, xs)[0], "float32")
        most = bind("max", going, axes=(0,), keepdims=False)
        return [bind("greater", most, rules.number(0.0, most))]

    def masked(xs: list[Array]) -> list[Array]:
        going, results = apply(test, xs)[0], apply(step, xs)
        kept = [select(going, new, old) for new, old in zip(results, xs[:count], strict=False)]
        return [*kept, *results[count:]]

    return build(input_types(test), some), build(input_types(step), masked)


def _lower(emit: Emitter, node: Node, names: Sequence[str]) -> list[str]:
    cond, body, count = node.attributes["cond"], node.attributes["body"], node.attributes["carries"]
    types = types_of(body)
    consts = list(names[count:])
    scalar = emit.integers([])
    start = emit.op("Reshape", emit.inline(cond, names)[0], scalar)
    inner = [(emit.fresh("loop"), in_file(type_)) for type_ in types[:count]]
    inputs = [(emit.fresh("loop"), Type("int64", ())), (emit.fresh("loop"), Type("bool", ())), *inner]

    def write() -> list[tuple[str, Type]]:
        results = emit.inline(body, [*(name for name, _ in inner), *consts])
        again = emit.inline(cond, [*results[:count], *consts])[0]
        return [(emit.op("Reshape", again, scalar), Type("bool", ())), *copies(emit, results, types)]

    outputs = emit.ops("Loop", len(node.outputs), "", start, *names[:count], body=emit.subgraph(inputs, write))
    return outputs[:count] + flat_stacks(emit, outputs[count:], types[count:])


def _inline(inputs: Sequence[Array], attributes: Attributes, replay: Replay) -> None:
    return None


ROWS = (
    Primitive(
        name="while",
        infer=_infer,
        evaluate=_evaluate,
        saving=_saving,
        gradient=_gradient,
        batch=_batch,
        lower=_lower,
        inline=_inline,
        facts=holding("loop", "body"),
    ),
)
