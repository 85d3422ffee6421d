"""The recurrent operators RNN, GRU and LSTM.

The products of the inputs with their weights are one product for all steps. The steps follow one another, written out
one by one up to ``MOST_WRITTEN_OUT`` of them (portable providers have no loops), beyond that as one ``scan``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.control.functions import scan
from coterie.compute.gru import gru_steps
from coterie.compute.onnx.importer import activations
from coterie.compute.onnx.importer.operation import Operation, Rule, is_known

MOST_WRITTEN_OUT = 512
State: TypeAlias = tuple[Array, ...]
Function: TypeAlias = Callable[[Array], Array]
Groups: TypeAlias = tuple[Array, ...]
Cell: TypeAlias = Callable[["_Weights", Groups, State], State]


@dataclass(frozen=True, slots=True)
class _Activation:
    """A function of x with numbers alpha and beta; their values where the node gives none, as far as it takes any."""

    apply: Callable[[Array, float, float], Array]
    alpha: float | None = None
    beta: float | None = None


_ACTIVATIONS: Mapping[str, _Activation] = {
    "affine": _Activation(lambda x, a, b: x * a + b, 1.0, 0.0),
    "elu": _Activation(lambda x, a, b: activations.elu(x, a), 1.0),
    "hardsigmoid": _Activation(activations.hard_sigmoid, 0.2, 0.5),
    "leakyrelu": _Activation(lambda x, a, b: activations.leaky(x, a), 0.01),
    "relu": _Activation(lambda x, a, b: ops.relu(x)),
    "scaledtanh": _Activation(lambda x, a, b: ops.tanh(x * b) * a, 1.0, 1.0),
    "sigmoid": _Activation(lambda x, a, b: ops.sigmoid(x)),
    "softplus": _Activation(lambda x, a, b: ops.softplus(x)),
    "softsign": _Activation(lambda x, a, b: activations.softsign(x)),
    "tanh": _Activation(lambda x, a, b: ops.tanh(x)),
    "thresholdedrelu": _Activation(lambda x, a, b: activations.thresholded(x, a), 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """An operator. groups: how many gates each product of its weights makes, so that no step has to cut them apart.
    states: arrays carried from step to step, the output first.
    """

    groups: tuple[int, ...]
    states: int
    activations: tuple[str, ...]
    cell: Cell

    @property
    def gates(self) -> int:
        """Parts of its weights."""
        return sum(self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """Of one direction. size: of the state. given [inputs, gates size]: factor of the input. own [size, parts size]:
    those of the state, by groups. offset [gates size]: added once for all steps. own_offset [size]: of the state's
    share in a GRU's new state, where it cannot be. peephole: [3, size] or None. functions: activations, clipped before.
    """

    size: int
    given: Array
    own: Groups
    offset: Array | None
    own_offset: Array | None
    peephole: Array | None
    functions: tuple[Function, ...]
    node: Operation

    def parts(self, x: Array, *counts: int) -> tuple[Array, ...]:
        """The gates of x [..., gates size], so many together."""
        return (x,) if len(counts) == 1 else ops.split(x, [count * self.size for count in counts], axis=-1)


def _rnn_cell(weights: _Weights, given: Groups, state: State) -> State:
    (h,) = state
    return (weights.functions[0](given[0] + h @ weights.own[0]),)


def _gru_cell(weights: _Weights, given: Groups, state: State) -> State:
    """Gates in the order update, reset, new."""
    (h,) = state
    gate, new = weights.functions
    keep, reset = weights.parts(gate(given[0] + h @ weights.own[0]), 1, 1)
    if weights.node.option("linear_before_reset", 0):
        own = h @ weights.own[1]
        own = reset * (own if weights.own_offset is None else own + weights.own_offset)
    else:
        own = (reset * h) @ weights.own[1]
    made = new(given[1] + own)
    return (made + keep * (h - made),)


def _lstm_cell(weights: _Weights, given: Groups, state: State) -> State:
    """Gates in the order input, output, forget, cell; peepholes in the order input, output, forget."""
    h, c = state
    gate, new, last = weights.functions
    enter, leave, forget, made = weights.parts(given[0] + h @ weights.own[0], 1, 1, 1, 1)
    if weights.peephole is not None:
        enter, forget = enter + weights.peephole[0] * c, forget + weights.peephole[2] * c
    enter = gate(enter)
    kept = 1.0 - enter if weights.node.option("input_forget", 0) else gate(forget)
    c = kept * c + enter * new(made)
    if weights.peephole is not None:
        leave = leave + weights.peephole[1] * c
    return gate(leave) * last(c), c


def _recurrent(kind: _Kind) -> Rule:
    def walked(node: Operation) -> list[Array]:
        batch_first = bool(node.option("layout", 0))
        x = cnp.permute_dims(node[0], (1, 0, 2)) if batch_first else node[0]
        _check(node, kind, x)
        backward = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[_direction(node)]
        runs = [_run(node, kind, x, index, reverse) for index, reverse in enumerate(backward)]
        outputs = cnp.stack([h for h, _ in runs], axis=1)
        last = [cnp.stack([state[part] for _, state in runs], axis=0) for part in range(kind.states)]
        if batch_first:
            outputs = cnp.permute_dims(outputs, (2, 0, 1, 3))
            last = [cnp.permute_dims(array, (1, 0, 2)) for array in last]
        return [outputs, *last]

    return walked


def _direction(node: Operation) -> str:
    direction = node.option("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        node.refuse(f"its direction is {direction!r}", "The file is damaged: export it again.")
    return direction


def _check(node: Operation, kind: _Kind, x: Array) -> None:
    """Shapes that fit one another: x [T, B, inputs], W [D, gates size, inputs], R [D, gates size, size], and so on."""
    count = 2 if _direction(node) == "bidirectional" else 1
    size = node[2].shape[-1] if node[2].ndim else 0
    rows = kind.gates * size
    wanted: list[tuple[int, tuple[int, ...]]] = [(1, (count, rows, x.shape[-1] if x.ndim else 0))]
    wanted += [(2, (count, rows, size)), (3, (count, 2 * rows)), (7, (count, 3 * size))]
    fits = x.ndim == 3 and all(node.get(i) is None or node[i].shape == shape for i, shape in wanted)
    if not fits or not size or node.option("hidden_size", size) != size:
        shapes = ", ".join(str(list(array.shape)) for array in node.inputs if array is not None)
        node.refuse(f"its inputs {shapes} do not fit one another", "The file is damaged: export it again.")
    if not x.shape[0]:
        node.refuse("it is given sequences of no step", "Give sequences of at least one step.")
    node.held(x.shape[0] * x.shape[1] * rows * count)


def _run(node: Operation, kind: _Kind, x: Array, index: int, reverse: bool) -> tuple[Array, State]:
    """The outputs of one direction [T, B, size], and its last state, [B, size] each."""
    steps, rows, inputs = x.shape
    weights = _weights_of(node, kind, index)
    given = cnp.reshape(x, (steps * rows, inputs)) @ weights.given
    given = given if weights.offset is None else given + weights.offset
    state = tuple(_start(node, 5 + part, index, (rows, weights.size), x) for part in range(kind.states))
    active = _active(node, steps, rows)
    parts = tuple(cnp.reshape(part, (steps, rows, part.shape[1])) for part in weights.parts(given, *kind.groups))

    def step(state: State, part: tuple[Array, ...]) -> tuple[State, Array]:
        after = kind.cell(weights, part[: len(kind.groups)], state)
        if active is None:
            return after, after[0]
        # A sequence that has ended keeps its state, and its outputs are zeros.
        goes_on = part[-1]
        kept = tuple(cnp.where(goes_on, new, old) for new, old in zip(after, state, strict=True))
        return kept, cnp.where(goes_on, after[0], cnp.zeros_like(after[0]))

    if active is None and steps <= MOST_WRITTEN_OUT and _is_common(node, kind):
        outputs = _common(weights, node[2][index], given, state[0], steps, reverse)
        return outputs, (outputs[0 if reverse else -1],)
    stacks = parts if active is None else (*parts, active)
    if steps > MOST_WRITTEN_OUT:
        state, outputs = scan(step, state, stacks, reverse=reverse)
        return outputs, state
    made: list[Array] = []
    each = list(zip(*(_single(stack) for stack in stacks), strict=True))
    for part in reversed(each) if reverse else each:
        state, output = step(state, part)
        made.append(output)
    return cnp.stack(made[::-1] if reverse else made, axis=0), state


def _is_common(node: Operation, kind: _Kind) -> bool:
    """Whether it is the GRU of most frameworks, whose steps have a gradient by hand."""
    plain = not node.attributes.keys() & {"activations", "clip"}
    return kind.cell is _gru_cell and plain and bool(node.option("linear_before_reset", 0))


def _common(weights: _Weights, own: Array, given: Array, start: Array, steps: int, reverse: bool) -> Array:
    """The outputs of such a GRU, [T, B, size]; its gates change places, since ONNX has the update before the reset."""
    rows, size = start.shape
    update, reset, new = weights.parts(given, 1, 1, 1)
    gates = cnp.concat([reset, update], axis=1)
    update_own, reset_own, new_own = ops.split(own, [size] * 3, axis=0)
    factors = cnp.concat([reset_own, update_own, new_own], axis=0)
    offset = cnp.zeros((size,), dtype=given.dtype) if weights.own_offset is None else weights.own_offset

    def in_order(x: Array) -> Array:
        return cnp.reshape(cnp.reshape(x, (steps, rows, x.shape[1]))[::-1], x.shape) if reverse else x

    made = in_order(gru_steps(in_order(gates), in_order(new), start, factors, offset, steps=steps))
    return cnp.reshape(made, (steps, rows, size))


def _single(stack: Array) -> list[Array]:
    steps = stack.shape[0]
    return [cnp.squeeze(part, 0) for part in ops.split(stack, [1] * steps, axis=0)]


def _weights_of(node: Operation, kind: _Kind, index: int) -> _Weights:
    size = node[2].shape[-1]
    offset = own_offset = None
    if (both := node.get(3)) is not None:
        offset, own = ops.split(both[index], [kind.gates * size] * 2, axis=0)
        if kind.cell is _gru_cell and node.option("linear_before_reset", 0):
            # The reset gate acts on the last part of it.
            gates, own_offset = ops.split(own, [2 * size, size], axis=0)
            own = cnp.concat([gates, cnp.zeros((size,), dtype=gates.dtype)], axis=0)
        offset = offset + own
    peephole = None if node.get(7) is None else cnp.reshape(node[7][index], (3, size))
    return _Weights(
        size=size,
        given=cnp.matrix_transpose(node[1][index]),
        own=tuple(cnp.matrix_transpose(part) for part in _by_groups(node[2][index], kind, size)),
        offset=offset,
        own_offset=own_offset,
        peephole=peephole,
        functions=tuple(_functions(node, kind))[index * len(kind.activations) :][: len(kind.activations)],
        node=node,
    )


def _by_groups(weight: Array, kind: _Kind, size: int) -> Groups:
    return (weight,) if len(kind.groups) == 1 else ops.split(weight, [count * size for count in kind.groups], axis=0)


def _functions(node: Operation, kind: _Kind) -> Iterator[Function]:
    """The activations of all directions. Those that take numbers take them from the attributes in their order."""
    count = 2 if _direction(node) == "bidirectional" else 1
    names: Sequence[str] = node.option("activations", kind.activations * count)
    alphas, betas = iter(node.option("activation_alpha", ())), iter(node.option("activation_beta", ()))
    bound = node.option("clip", 0.0)
    if len(names) != len(kind.activations) * count:
        node.refuse(f"{len(names)} activations are not {len(kind.activations) * count}", "Export it again.")
    for given in names:
        name = given.decode("utf-8", "replace") if isinstance(given, bytes) else str(given)
        found = _ACTIVATIONS.get(name.lower())
        if found is None:
            node.refuse(f"its activation is {name!r}", f"There are {', '.join(_ACTIVATIONS)}.")
        alpha = 0.0 if found.alpha is None else float(next(alphas, found.alpha))
        beta = 0.0 if found.beta is None else float(next(betas, found.beta))
        yield _clipped(found, alpha, beta, bound)


def _clipped(activation: _Activation, alpha: float, beta: float, bound: float) -> Function:
    if bound <= 0:
        return lambda x: activation.apply(x, alpha, beta)
    return lambda x: activation.apply(cnp.clip(x, -bound, bound), alpha, beta)


def _start(node: Operation, place: int, index: int, shape: tuple[int, int], like: Array) -> Array:
    """The first state [B, size] of one direction: zeros unless the node gives it, [D, B, size] (with layout 1, [B, D,
    size]).
    """
    given = node.get(place)
    if given is None:
        return cnp.zeros(shape, dtype=like.dtype)
    directions = cnp.permute_dims(given, (1, 0, 2)) if node.option("layout", 0) and given.ndim == 3 else given
    if directions.ndim != 3 or directions.shape[0] <= index or directions.shape[1:] != shape:
        node.refuse(f"its first state {list(given.shape)} does not fit {list(shape)}", "Export it again.")
    return cnp.astype(directions[index], like.dtype)  # zeros out of sizes are float32 in any model


def _active(node: Operation, steps: int, rows: int) -> Array | None:
    """Whether each sequence goes on at each step [T, B, 1]; None where all have full length."""
    lengths = node.get(4)
    if lengths is None or (is_known(lengths) and bool(np.all(lengths.numpy() >= steps))):
        return None
    if lengths.shape != (rows,):
        node.refuse(f"its lengths {list(lengths.shape)} are not those of {rows} sequences", "Export it again.")
    time = cnp.astype(cnp.arange(steps), lengths.dtype)
    return cnp.reshape(cnp.reshape(time, (steps, 1)) < cnp.reshape(lengths, (1, rows)), (steps, rows, 1))


RULES: dict[str, Rule] = {
    "GRU": _recurrent(_Kind(groups=(2, 1), states=1, activations=("Sigmoid", "Tanh"), cell=_gru_cell)),
    "LSTM": _recurrent(_Kind(groups=(4,), states=2, activations=("Sigmoid", "Tanh", "Tanh"), cell=_lstm_cell)),
    "RNN": _recurrent(_Kind(groups=(1,), states=1, activations=("Tanh",), cell=_rnn_cell)),
}
