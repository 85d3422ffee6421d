"""Recurrent layers: the GRU and the LSTM, with the formulas, order of gates and shapes of parameters of PyTorch.

Both take x[B, T, inputs]. The products of the inputs with their weights are one product for all T steps; the steps
follow one another, written out one by one (``unroll=True``: the graph grows with T) or as one ``scan``
(``unroll=False``: the graph does not grow; a file for portable providers, which have no loops, unrolls it).

``bidirectional=True`` reads the sequence a second time from its end, with weights of its own (the same names with
``_reverse``): the outputs are [B, T, 2 hidden], forward first, and a state is [2, B, hidden].
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import TypeAlias

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.control.functions import scan
from coterie.compute.gru import gru_steps
from coterie.compute.nn.initialisers import Uniform
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import (
    Module,
    Parameters,
    ParameterSpec,
    check_input,
    check_positive,
    refuse_shape,
    require,
)

State: TypeAlias = tuple[Array, ...]
Groups: TypeAlias = tuple[Array, ...]

_BACKWARD = "_reverse"  # what ends the names of the weights that read from the end


@dataclass(frozen=True)
class _Recurrent(Module):
    """What the GRU and the LSTM share: weights of parts of size ``hidden``, in groups, and the walk over time."""

    inputs: int
    hidden: int
    unroll: bool = True
    bidirectional: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_positive(self, inputs=self.inputs, hidden=self.hidden)

    @property
    @abstractmethod
    def _groups(self) -> tuple[tuple[int, bool], ...]:
        """How many parts each group has, and whether the shares of the input and of the state are merely added in it.
        Each group has products of its own, so that no step has to cut or join its parts.
        """

    @property
    def _gates(self) -> int:
        """How many parts a weight has."""
        return sum(parts for parts, _ in self._groups)

    @property
    @abstractmethod
    def _carried(self) -> int:
        """How many arrays [B, hidden] are carried from step to step; the first is the output."""

    @abstractmethod
    def _step(self, given: Groups, state: State, weight: Groups, bias: Groups) -> State:
        """The state after a step, from one array for each group. given [B, parts hidden]: the input's share, with both
        biases where the shares are merely added; weight [hidden, parts hidden] and bias: those of the state's share.
        """

    def specs(self) -> dict[str, ParameterSpec]:
        rows, init = self._gates * self.hidden, Uniform(1 / sqrt(self.hidden))
        one_way = {
            "weight_ih": ParameterSpec((rows, self.inputs), init),
            "weight_hh": ParameterSpec((rows, self.hidden), init),
            "bias_ih": ParameterSpec((rows,), init),
            "bias_hh": ParameterSpec((rows,), init),
        }
        return {f"{name}{ending}": spec for ending in self._endings for name, spec in one_way.items()}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return self._walk(params, x, None)[0]

    @property
    def _endings(self) -> tuple[str, ...]:
        """What ends the names of the weights of each direction."""
        return ("", _BACKWARD) if self.bidirectional else ("",)

    def _walk(self, params: Parameters, x: Array, state: State | None) -> tuple[Array, State]:
        """The outputs of every step and the last state, of one direction or of both."""
        if not self.bidirectional:
            return self._one_way(params, x, state, "")
        check_input(x, ("B", "T", self.inputs), self)
        shape = (2, x.shape[0], self.hidden)
        for array in state or ():
            if array.shape != shape:
                refuse_shape(self, f"a state {list(shape)}", array, hint="A state is [directions, examples, hidden].")
        ahead, back = (None if state is None else tuple(array[way] for array in state) for way in range(2))
        forward, last = self._one_way(params, x, ahead, "")
        backward, first = self._one_way(params, xp.flip(x, axis=1), back, _BACKWARD)
        both = tuple(xp.stack(pair, axis=0) for pair in zip(last, first, strict=True))
        return xp.concat([forward, xp.flip(backward, axis=1)], axis=2), both

    def _one_way(self, params: Parameters, x: Array, state: State | None, ending: str) -> tuple[Array, State]:
        """The outputs [B, T, hidden] and the last state, by the weights whose names have this ending."""
        check_input(x, ("B", "T", self.inputs), self)
        count, steps, _ = x.shape
        if not steps:
            refuse_shape(self, "sequences of at least one step", x, hint="The second axis of x is time.")
        shape = (count, self.hidden)
        zeros = tuple(xp.zeros(shape, dtype=x.dtype) for _ in range(self._carried))
        carry = zeros if state is None else state
        for array in carry:
            if array.shape != shape:
                refuse_shape(self, f"a state {list(shape)}", array, hint="A state is [examples, hidden].")
        # Time first, so that a step is a run of rows.
        rows = xp.reshape(xp.permute_dims(x, (1, 0, 2)), (steps * count, self.inputs))
        weights_in, biases_in, biases = (
            self._cut(require(params, f"{name}{ending}", self)) for name in ("weight_ih", "bias_ih", "bias_hh")
        )
        given = [
            rows @ xp.matrix_transpose(weight) + (bias + own if added else bias)
            for weight, bias, own, (_, added) in zip(weights_in, biases_in, biases, self._groups, strict=True)
        ]
        own_weight = require(params, f"weight_hh{ending}", self)
        if self.unroll:
            outputs, carry = self._unrolled(given, carry, own_weight, biases, steps)
            stacked = xp.reshape(outputs, (steps, *shape))
        else:
            weight = self._turned(own_weight)

            def step(carry: State, part: Groups) -> tuple[State, Array]:
                after = self._step(part, carry, weight, biases)
                return after, after[0]

            apart = tuple(xp.reshape(array, (steps, count, array.shape[1])) for array in given)
            carry, stacked = scan(step, carry, apart)
        return xp.permute_dims(stacked, (1, 0, 2)), carry

    def _unrolled(
        self, given: Sequence[Array], carry: State, own_weight: Array, biases: Groups, steps: int
    ) -> tuple[Array, State]:
        """The outputs of all steps, [T B, hidden] with time first, and the last state. given: [T B, parts hidden]."""
        weight, outputs = self._turned(own_weight), list[Array]()
        for part in zip(*(_by_step(array, steps) for array in given), strict=True):
            carry = self._step(part, carry, weight, biases)
            outputs.append(carry[0])
        return xp.concat(outputs, axis=0), carry

    def _turned(self, weight: Array) -> Groups:
        return tuple(xp.matrix_transpose(array) for array in self._cut(weight))

    def _cut(self, array: Array) -> Groups:
        """A weight or a bias, by groups."""
        sizes = [parts * self.hidden for parts, _ in self._groups]
        return (array,) if len(sizes) == 1 else ops.split(array, sizes, axis=0)


def _by_step(array: Array, steps: int) -> tuple[Array, ...]:
    return ops.split(array, [array.shape[0] // steps] * steps, axis=0)


@dataclass(frozen=True)
class GRU(_Recurrent):
    """Gated recurrent unit (Cho et al. 2014, in PyTorch's form): x[B, T, inputs] → h of every step, [B, T, hidden].

    r = σ(W_ir x + b_ir + W_hr h + b_hr), z = σ(W_iz x + b_iz + W_hz h + b_hz),
    n = tanh(W_in x + b_in + r (W_hn h + b_hn)), h' = (1 - z) n + z h; h starts as 0.
    weight_ih [3 hidden, inputs], weight_hh [3 hidden, hidden], bias_ih and bias_hh [3 hidden], the gates in the order
    r, z, n; uniform in ±1/sqrt(hidden).
    """

    @property
    def _groups(self) -> tuple[tuple[int, bool], ...]:
        return ((2, True), (1, False))

    @property
    def _carried(self) -> int:
        return 1

    def _step(self, given: Groups, state: State, weight: Groups, bias: Groups) -> State:
        (h,) = state
        reset, keep = ops.split(ops.sigmoid(h @ weight[0] + given[0]), [self.hidden] * 2, axis=1)
        new = ops.tanh(given[1] + reset * (h @ weight[1] + bias[1]))
        return (new + keep * (h - new),)

    def _unrolled(
        self, given: Sequence[Array], carry: State, own_weight: Array, biases: Groups, steps: int
    ) -> tuple[Array, State]:
        made = gru_steps(given[0], given[1], carry[0], own_weight, biases[1], steps=steps)
        return made, (made[-carry[0].shape[0] :],)

    def run(self, params: Parameters, x: Array, state: Array | None = None) -> tuple[Array, Array]:
        """The outputs of every step [B, T, hidden] and the last h [B, hidden], starting from h = ``state``.
        Of both directions: [B, T, 2 hidden] and [2, B, hidden].
        """
        outputs, (h,) = self._walk(params, x, None if state is None else (state,))
        return outputs, h


@dataclass(frozen=True)
class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000): x[B, T,
    inputs] → h of every step, [B, T, hidden].

    i, f, o = σ(W x + b + W h + b) each, g = tanh(the same), c' = f c + i g, h' = o tanh(c'); h and c start as 0.
    weight_ih [4 hidden, inputs], weight_hh [4 hidden, hidden], bias_ih and bias_hh [4 hidden], the gates in the order
    i, f, g, o; uniform in ±1/sqrt(hidden).
    """

    @property
    def _groups(self) -> tuple[tuple[int, bool], ...]:
        return ((4, True),)

    @property
    def _carried(self) -> int:
        return 2

    def _step(self, given: Groups, state: State, weight: Groups, bias: Groups) -> State:
        h, c = state
        size = self.hidden
        both, new, last = ops.split(h @ weight[0] + given[0], [2 * size, size, size], axis=1)
        enter, forget = ops.split(ops.sigmoid(both), [size, size], axis=1)
        c = forget * c + enter * ops.tanh(new)
        return ops.sigmoid(last) * ops.tanh(c), c

    def run(
        self, params: Parameters, x: Array, state: tuple[Array, Array] | None = None
    ) -> tuple[Array, tuple[Array, Array]]:
        """The outputs of every step [B, T, hidden] and the last (h, c), [B, hidden] each, starting from ``state``.
        Of both directions: [B, T, 2 hidden] and [2, B, hidden] each.
        """
        outputs, (h, c) = self._walk(params, x, state)
        return outputs, (h, c)
