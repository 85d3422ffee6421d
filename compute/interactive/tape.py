"""Gradients by a tape: operations are evaluated at once and noted, and ``loss.backward()`` goes through the notes.
``backward(loss)`` is the same, and type checkers know it.

The gradient rules are those of ``grad``, from the same table, so the numbers are the same. Prefer ``grad``: it can be
compiled, mapped and exported, and drops what it does not need, where a tape evaluates operation by operation on NumPy
and keeps every intermediate value. A tape is for looking around: Python's own control flow on real numbers, a debugger.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np

from coterie.compute.array import Array, ArrayLike, as_array, refuse
from coterie.compute.autodiff import Forward
from coterie.compute.ir import Graph, NDArray, Value
from coterie.compute.recorder import RECORDER, Recorded, Recorder
from coterie.compute.source import user_source
from coterie.errors import DTypeError, InputError, ShapeError


class Variable(Array):
    """An array with respect to which a tape can differentiate, or what was computed from one under a tape."""

    __slots__ = ("grad",)

    def __init__(self, x: ArrayLike, *, value: Value | None = None, recorder: Recorder | None = None) -> None:
        super().__init__(as_array(x).numpy(), value=value, recorder=recorder)
        self.grad: Array | None = None

    def backward(self, cotangent: ArrayLike | None = None) -> None:
        """See :func:`backward`."""
        backward(self, cotangent)


@contextmanager
def tape() -> Generator[None]:
    """Note what is computed from Variables inside of the ``with``. Raises InputError inside of a trace or a tape.

    w = Variable([1.0, 2.0])
    with tape():
        loss = cnp.sum(w * w)
    loss.backward()  # w.grad is [2, 4]
    """
    if RECORDER.get() is not None:
        raise InputError(f"{user_source()}: a tape cannot be opened inside of a trace.", hint="Use grad here.")
    token = RECORDER.set(_Tape())
    try:
        yield
    finally:
        RECORDER.reset(token)


def backward(result: Array, cotangent: ArrayLike | None = None) -> None:
    """Add to ``grad`` of every Variable that a result was computed from the gradient of it. Set ``grad`` to None to
    begin anew.

    cotangent: like the result; not needed for a scalar. Inside of the tape's ``with`` the gradients are Variables
    too and can be differentiated again. Raises InputError for what no tape has noted, ShapeError for a result that
    is not a scalar, DTypeError for one that is not a float.
    """
    tape = result.recorder
    if not isinstance(tape, _Tape) or result.value is None:
        raise InputError(
            f"{user_source()}: backward: this array ({result.type}) was not computed under a tape.",
            hint="Compute it from a Variable inside of `with tape():`.",
        )
    if not result.type.is_float:
        refuse(DTypeError, "backward", (result,), "only floats have gradients.", 'Convert with astype(x, "float32").')
    if cotangent is None and result.size != 1:
        refuse(
            ShapeError,
            "backward",
            (result,),
            "the result to differentiate is not a scalar.",
            "Reduce it, e.g. with mean(loss), or give a cotangent.",
        )
    seed = Array(np.ones(result.shape, result.dtype)) if cotangent is None else as_array(cotangent)
    if seed.type != result.type:
        refuse(ShapeError, "backward", (seed,), f"the cotangent must be like the result, {result.type}.")
    cotangents = _Notes(tape).pull({result.value: seed})
    for variable, value in tape.variables.values():
        if value in cotangents:
            found = cotangents[value]
            variable.grad = found if variable.grad is None else variable.grad + found


class _Tape(Recorder):
    """A trace that also evaluates. Variables are met, not declared; what is no Variable is kept as it is."""

    evaluates = True

    def __init__(self) -> None:
        super().__init__(None)
        self.environment: dict[Value, Array] = {}
        self.variables: dict[int, tuple[Variable, Value]] = {}
        self._others: dict[int, tuple[Recorded, Value]] = {}

    def claims(self, array: Recorded) -> bool:
        if isinstance(array, Variable) and array.recorder is None and id(array) not in self._weights:
            self.add_weight(f"variable/{len(self.variables)}", array)
            self.variables[id(array)] = self._weights[id(array)]  # type: ignore[assignment]
            self.environment[self._weights[id(array)][1]] = array
        return super().claims(array)

    def lift(self, array: Recorded) -> Value:
        if self.claims(array):
            return super().lift(array)
        if id(array) not in self._others:
            value = Value(array.type)
            self._others[id(array)] = (array, value)
            self.environment[value] = cast(Array, array)
        return self._others[id(array)][1]

    def evaluated(self, values: Sequence[Value], evaluate: Callable[[], Sequence[NDArray]]) -> Sequence[Array]:
        arrays = [Variable(data, value=value, recorder=self) for value, data in zip(values, evaluate(), strict=True)]
        self.environment.update(zip(values, arrays, strict=True))
        return arrays


class _Notes(Forward):
    """What a tape noted, ready for the gradient rules; nothing is evaluated again but loops, in the form that keeps
    what their gradients read.
    """

    def __init__(self, tape: _Tape) -> None:
        graph = Graph({}, tuple(tape.nodes), {})
        super().__init__(graph, (), [value for _, value in tape.variables.values()], evaluated=self._held(tape))

    @staticmethod
    def _held(tape: _Tape) -> dict[Value, Array]:
        if RECORDER.get() is tape:
            return dict(tape.environment)
        return {value: Array(array.numpy()) for value, array in tape.environment.items()}
