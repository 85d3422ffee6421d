"""A loop of a known number of steps over stacked inputs: scan(*carries, *constants, *stacks).

The graph ``body`` takes the carries, the constants and one element of each stack, and gives the new carries and the
elements of the stacked results. ``length`` is the number of steps, or STEPS where the stacks come from a while loop.

The gradient is a scan in the other direction over the carries that stood before each step, which the forward scan
stacks up; every step computes the body again. So its size does not depend on the number of steps.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.compute.array_type import Array, bind, bind_all
from coterie.compute.control.row import STEPS, copies, in_file, input_types, types_of
from coterie.compute.ir import Attributes, Graph, NDArray, Node, Type
from coterie.compute.primitives import rules
from coterie.compute.primitives.facts import holding
from coterie.compute.primitives.row import Batched, Call, Emitter, Lanes, Primitive, Pullback, Replay, Run
from coterie.compute.replay import apply, build
from coterie.errors import ShapeError


class _Parts(NamedTuple):
    """How the operands divide."""

    body: Graph
    carries: int
    consts: int
    length: int
    reverse: bool

    @property
    def head(self) -> int:
        """How many operands are no stacks."""
        return self.carries + self.consts


def _parts(attributes: Attributes) -> _Parts:
    return _Parts(*(attributes[name] for name in _Parts._fields))


def check_carries(before: Sequence[Type], after: Sequence[Type]) -> None:
    """Raises ShapeError when a step changes the type of a carry."""
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        if old != new:
            raise ShapeError(
                f"a step turns carry {index} from {old} into {new}.",
                hint="A carry keeps its shape and dtype: convert the initial value or the result of the step.",
            )


def _infer(types: Sequence[Type], attributes: Attributes) -> tuple[Type, ...]:
    p = _parts(attributes)
    stacks = types[p.head :]
    for stack in stacks:
        if not stack.shape or (STEPS != p.length != stack.shape[0]):
            raise ShapeError(f"{stack} is no stack of {p.length} elements.", hint="All xs have one leading size.")
    elements = [Type(stack.dtype, stack.shape[1:]) for stack in stacks]
    if input_types(p.body) != (*types[: p.head], *elements):
        raise ShapeError("the body does not take these operands.", hint="Pass what it was traced with.")
    results = types_of(p.body)
    check_carries(types[: p.carries], results)
    length = stacks[0].shape[0] if p.length == STEPS else p.length
    return (*results[: p.carries], *(Type(y.dtype, (length, *y.shape)) for y in results[p.carries :]))


def _evaluate(run: Run, arrays: Sequence[NDArray], attributes: Attributes) -> list[NDArray]:
    p = _parts(attributes)
    carries, consts, stacks = list(arrays[: p.carries]), list(arrays[p.carries : p.head]), arrays[p.head :]
    length = len(stacks[0]) if p.length == STEPS else p.length
    rows: list[list[NDArray]] = []
    for step in reversed(range(length)) if p.reverse else range(length):
        results = run(p.body, [*carries, *consts, *(stack[step] for stack in stacks)])
        carries = results[: p.carries]
        rows.append(results[p.carries :])
    return carries + stacked(rows[::-1] if p.reverse else rows, types_of(p.body)[p.carries :])


def stacked(rows: Sequence[Sequence[NDArray]], types: Sequence[Type]) -> list[NDArray]:
    """Rows of results as stacks, also when there are none."""
    return [
        np.stack([row[index] for row in rows]) if rows else np.zeros((0, *type_.shape), type_.dtype)
        for index, type_ in enumerate(types)
    ]


def _saving(attributes: Attributes) -> Attributes:
    p = _parts(attributes)
    body = build(input_types(p.body), lambda xs: [*apply(p.body, xs), *xs[: p.carries]])
    return {**attributes, "body": body}


def _gradient(
    call: Call, cotangents: Sequence[Array | None], wanted: Sequence[bool], pullback: Pullback
) -> list[Array | None]:
    p = _parts(call.attributes)
    types = input_types(p.body)
    floats = [type_.is_float for type_ in types[: p.carries]]
    given = [g for g in cotangents[p.carries :] if g is not None]
    seeded = [*floats, *(g is not None for g in cotangents[p.carries :])]
    pulled = pullback(p.body, [*floats, *wanted[p.carries :]], seeded)
    accumulated = [t for t, want in zip(types[p.carries : p.head], wanted[p.carries : p.head], strict=True) if want]
    moving = [type_ for type_ in types[: p.carries] if type_.is_float]
    count = len(moving) + len(accumulated)

    def step(xs: list[Array]) -> list[Array]:
        back, total, rest = xs[: len(moving)], xs[len(moving) : count], xs[count:]
        consts, saved = rest[: p.consts], rest[p.consts : p.consts + p.carries]
        elements, seeds = rest[p.head : len(types)], rest[len(types) :]
        found = apply(pulled, [*saved, *consts, *elements, *back, *seeds])
        sums = [a + b for a, b in zip(total, found[len(moving) : count], strict=True)]
        return [*found[: len(moving)], *sums, *found[count:]]

    body = build(
        [
            *moving,
            *accumulated,
            *types[p.carries : p.head],
            *types[: p.carries],
            *types[p.head :],
            *(Type(g.type.dtype, g.shape[1:]) for g in given),
        ],
        step,
    )
    start = [
        rules.zeros(type_) if g is None else g
        for g, type_ in zip(cotangents[: p.carries], types[: p.carries], strict=True)
        if type_.is_float
    ]
    saved = call.outputs[len(cotangents) :]
    sums, consts = map(rules.zeros, accumulated), call.inputs[p.carries : p.head]
    operands = [*start, *sums, *consts, *saved, *call.inputs[p.head :], *given]
    attributes = scan_attributes(body, count, p.consts, p.length, not p.reverse)
    found = bind_all("scan", operands, attributes)
    first, others = iter(found[: len(moving)]), iter(found[len(moving) :])
    return [
        *(next(first) if is_float else None for is_float in floats),
        *(next(others) if want else None for want in wanted[p.carries :]),
    ]


def scan_attributes(body: Graph, carries: int, consts: int, length: int, reverse: bool) -> Attributes:
    """The attributes of a scan."""
    return {"body": body, "carries": carries, "consts": consts, "length": length, "reverse": reverse}


def examples_first(stack: Array) -> Array:
    """[steps, examples, ...] as [examples, steps, ...], and back."""
    return rules.transpose(stack, (1, 0, *range(2, stack.ndim)))


def _batch(call: Batched) -> Lanes:
    p = _parts(call.attributes)
    flags, rest = list(call.mapped[: p.carries]), list(call.mapped[p.carries :])
    ys = [False] * (len(p.body.outputs) - p.carries)
    body, mapped = call.graph(p.body, [*flags, *rest], call.size, [*flags, *ys])
    while mapped[: p.carries] != flags:  # a carry that becomes mapped may make another one mapped
        flags = mapped[: p.carries]
        body, mapped = call.graph(p.body, [*flags, *rest], call.size, [*flags, *ys])
    carries = [
        x if was or not now else rules.broadcast_to(x, (call.size, *x.shape))
        for x, was, now in zip(call.inputs, call.mapped, flags, strict=False)
    ]
    stacks = [
        examples_first(x) if is_mapped else x
        for x, is_mapped in zip(call.inputs[p.head :], call.mapped[p.head :], strict=True)
    ]
    results = bind_all("scan", [*carries, *call.inputs[p.carries : p.head], *stacks], {**call.attributes, "body": body})
    return [
        (examples_first(y) if is_mapped and index >= p.carries else y, is_mapped)
        for index, (y, is_mapped) in enumerate(zip(results, mapped, strict=True))
    ]


def _lower(emit: Emitter, node: Node, names: Sequence[str]) -> list[str]:
    p = _parts(node.attributes)
    if p.length == 0:  # the operator wants one step at least
        return [
            *names[: p.carries],
            *(emit.constant(np.zeros(y.type.shape, y.type.dtype)) for y in node.outputs[p.carries :]),
        ]
    write = _lower_dynamic if p.length == STEPS else _lower_static
    outputs = write(emit, p, names)
    return outputs[: p.carries] + flat_stacks(emit, outputs[p.carries :], types_of(p.body)[p.carries :])


def _lower_static(emit: Emitter, p: _Parts, names: Sequence[str]) -> list[str]:
    types, results = input_types(p.body), types_of(p.body)
    stacks = [
        name if type_.shape else emit.op("Reshape", name, emit.integers([-1, 1]))
        for name, type_ in zip(names[p.head :], types[p.head :], strict=True)
    ]
    inputs = [(emit.fresh("scan"), in_file(type_)) for type_ in (*types[: p.carries], *types[p.head :])]
    inner = [name for name, _ in inputs]
    if not stacks:  # the operator needs one: it tells the number of steps
        stacks = [emit.constant(np.zeros((p.length, 1), np.float32))]
        inputs.append((emit.fresh("scan"), Type("float32", (1,))))

    def write() -> list[tuple[str, Type]]:
        operands = [*inner[: p.carries], *names[p.carries : p.head], *inner[p.carries :]]
        return copies(emit, emit.inline(p.body, operands), results)

    direction, ys = int(p.reverse), len(results) - p.carries
    directions = {"scan_input_directions": [direction] * len(stacks)}
    if ys:
        directions["scan_output_directions"] = [direction] * ys
    body = emit.subgraph(inputs, write)
    operands = [*names[: p.carries], *stacks]
    return emit.ops("Scan", len(results), *operands, body=body, num_scan_inputs=len(stacks), **directions)


def _lower_dynamic(emit: Emitter, p: _Parts, names: Sequence[str]) -> list[str]:
    """A Loop over the stacks of a while loop: Scan refuses stacks of no elements, and a loop may take no step."""
    types, results = input_types(p.body), types_of(p.body)
    scalar = emit.integers([])
    shape = emit.op("Shape", names[p.head])
    steps = emit.op("Slice", shape, emit.integers([0]), emit.integers([1]))
    last = emit.op("Sub", steps, emit.integers([1]))
    at = (emit.fresh("loop"), Type("int64", ()))
    go = (emit.fresh("loop"), Type("bool", ()))
    inner = [(emit.fresh("loop"), in_file(type_)) for type_ in types[: p.carries]]

    def write() -> list[tuple[str, Type]]:
        index = emit.op("Reshape", at[0], emit.integers([1]))
        index = emit.op("Sub", last, index) if p.reverse else index
        place = emit.op("Reshape", index, scalar)
        elements = [
            emit.op("Gather", stack, place if type_.shape else index, axis=0)
            for stack, type_ in zip(names[p.head :], types[p.head :], strict=True)
        ]
        made = emit.inline(p.body, [*(name for name, _ in inner), *names[p.carries : p.head], *elements])
        return [(emit.op("Identity", go[0]), go[1]), *copies(emit, made, results)]

    body = emit.subgraph([at, go, *inner], write)
    outputs = emit.ops("Loop", len(results), emit.op("Reshape", steps, scalar), "", *names[: p.carries], body=body)
    if not p.reverse:
        return outputs
    backwards = [emit.integers([n]) for n in (-1, np.iinfo(np.int64).min, 0, -1)]
    return [*outputs[: p.carries], *(emit.op("Slice", y, *backwards) for y in outputs[p.carries :])]


def flat_stacks(emit: Emitter, names: Sequence[str], elements: Sequence[Type]) -> list[str]:
    """Stacks of [1] as stacks of numbers."""
    return [
        name if type_.shape else emit.op("Reshape", name, emit.integers([-1]))
        for name, type_ in zip(names, elements, strict=True)
    ]


def _inline(inputs: Sequence[Array], attributes: Attributes, replay: Replay) -> list[Array] | None:
    p = _parts(attributes)
    if p.length == STEPS:
        return None
    carries, rows = list(inputs[: p.carries]), list[list[Array]]()
    for step in reversed(range(p.length)) if p.reverse else range(p.length):
        elements = [_element(stack, step) for stack in inputs[p.head :]]
        results = replay(p.body, [*carries, *inputs[p.carries : p.head], *elements])
        carries = results[: p.carries]
        rows.append(results[p.carries :])
    if not rows:
        return carries + [rules.zeros(Type(y.dtype, (0, *y.shape))) for y in types_of(p.body)[p.carries :]]
    rows = rows[::-1] if p.reverse else rows
    columns = zip(*rows, strict=True)
    return carries + [bind("concat", *(rules.reshape(y, (1, *y.shape)) for y in column), axis=0) for column in columns]


def _element(stack: Array, step: int) -> Array:
    rest = stack.shape[1:]
    one = bind("slice", stack, starts=(step, *(0 for _ in rest)), stops=(step + 1, *rest))
    return rules.reshape(one, rest)


ROWS = (
    Primitive(
        name="scan",
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
