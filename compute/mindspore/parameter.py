"""Parameters: tensors that are written, and the scopes and traces that carry what is written to them.

A Parameter is read like any tensor. Writing one replaces the array that it stands for. Inside a function that is being
traced a write would leave a symbol behind, so the function runs in a scope: when it ends every Parameter is as it was,
and the new arrays are handed out as results, to be written where the function was called.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from coterie.compute.array import Array, as_array
from coterie.compute.ir import NDArray, Type, Value
from coterie.compute.mindspore.running import running
from coterie.compute.mindspore.tensor import Tensor
from coterie.compute.recorder import RECORDER, Recorded, Recorder
from coterie.compute.source import user_source
from coterie.errors import ShapeError, TraceError


class Parameter(Tensor):
    """A named tensor of a network or an optimizer. Its shape and dtype stay."""

    __slots__ = ("_name", "requires_grad")

    def __init__(self, default_input: Any, name: str | None = None, requires_grad: bool = True) -> None:
        super().__init__(default_input)
        call = running()
        if call is not None:
            raise TraceError(
                f"{user_source()}: {call.network} makes a Parameter while it computes; nothing would train it.",
                hint="Make it in __init__ and hold it, or its Cell, as an attribute.",
            )
        self._name = name or ""
        self.requires_grad = requires_grad

    @property
    def name(self) -> str:
        """How it is called in the network: its attributes from the outside in, with dots between them."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    def numpy(self) -> NDArray:
        recorder = RECORDER.get()
        if recorder is not None and recorder.claims(self):
            self._no_data(f"the value of the parameter {self.name!r}")
        return super().numpy()

    def set_data(self, data: Any) -> Parameter:
        """Let it stand for another array from here on. Raises ShapeError for one of another shape or dtype, TraceError
        for a write that a graph cannot carry: in a branch or loop on tensors, or under coterie's own transforms.
        """
        array = as_array(data)
        if array.type != self.type:
            raise ShapeError(
                f"{user_source()}: the parameter {self.name!r} is {self.type} and cannot become {array.type}.",
                hint="A parameter keeps its shape and dtype.",
            )
        self._refuse_write()
        recorder, scope = RECORDER.get(), _SCOPE.get()
        if recorder is None:
            self._stand_for(array)
            return self
        if scope is None or scope.recorder is not recorder:
            raise TraceError(
                f"{user_source()}: the parameter {self.name!r} is written where a graph cannot carry it on.",
                hint="Write it outside of branches and loops on tensors, in a function under mindspore's jit or grad.",
            )
        scope.note(self)
        self._stand_for(Array(None, value=recorder.lift(array), recorder=recorder))
        return self

    assign_value = set_data

    def _refuse_write(self) -> None:
        call = running()
        if call is None or id(self) not in call.parameters or id(self) in call.moving:
            return
        kind = "is trained by the optimizer" if self.requires_grad else "is frozen"
        raise TraceError(
            f"{user_source()}: {call.network} writes the parameter {self.name!r}, which {kind}.",
            hint=f"What the network moves by itself is a buffer: as_module(network, buffers=({self.name!r},)), of a "
            "Parameter with requires_grad=False.",
        )

    def _stand_for(self, array: Array) -> None:
        self._data, self.value, self.recorder, self.type = array._data, array.value, array.recorder, array.type

    def held(self) -> Array:
        """The array that it stands for now."""
        return Array(self._data, value=self.value, recorder=self.recorder)

    def captured(self) -> Array:
        # In a module it stands for another array again by the time that the inner graph is replayed.
        return self if running() is None else self.held()

    def __repr__(self) -> str:
        return f"Parameter (name={self.name}, {self.type}, requires_grad={self.requires_grad})"


class ParameterTuple(tuple[Parameter, ...]):
    """Parameters in order."""

    __slots__ = ()


class _Scope:
    """What is written while a traced function runs."""

    def __init__(self, recorder: Recorder | None) -> None:
        self.recorder = recorder
        self._before: dict[int, tuple[Parameter, Array]] = {}

    def note(self, parameter: Parameter) -> None:
        """Remember what a parameter stood for before its first write."""
        self._before.setdefault(id(parameter), (parameter, parameter.held()))

    def written(self) -> list[tuple[Parameter, Array]]:
        """The written parameters, and what each stands for now."""
        return [(parameter, parameter.held()) for parameter, _ in self._before.values()]

    def restore(self) -> None:
        """Let every written parameter stand for what it did."""
        for parameter, array in self._before.values():
            parameter._stand_for(array)  # pyright: ignore[reportPrivateUsage]  the one friend of a Parameter


_SCOPE: ContextVar[_Scope | None] = ContextVar("coterie_mindspore_scope", default=None)


@contextmanager
def scope() -> Generator[_Scope]:
    """A scope around the body of a function that is being traced now."""
    opened = _Scope(RECORDER.get())
    token = _SCOPE.set(opened)
    try:
        yield opened
    finally:
        opened.restore()
        _SCOPE.reset(token)


@contextmanager
def standing(given: Sequence[tuple[Parameter, Array]]) -> Generator[None]:
    """In the lines inside, each of these Parameters stands for the array beside it."""
    before = [(parameter, parameter.held()) for parameter, _ in given]
    for parameter, array in given:
        parameter._stand_for(array)  # pyright: ignore[reportPrivateUsage]
    try:
        yield
    finally:
        for parameter, array in before:
            parameter._stand_for(array)  # pyright: ignore[reportPrivateUsage]


def write(parameters: Sequence[Parameter], arrays: Iterable[Array]) -> None:
    """Write to each parameter."""
    for parameter, array in zip(parameters, arrays, strict=True):
        parameter.set_data(array)


class StepRecorder(Recorder):
    """A trace in which every Parameter that is met is an input, and which can ask the host for random numbers."""

    def __init__(self) -> None:
        super().__init__(None)
        self.parameters: dict[str, Parameter] = {}
        self.draws: dict[str, tuple[int, ...]] = {}
        self.cells: set[Any] = set()  # that were called

    def claims(self, array: Recorded) -> bool:
        if isinstance(array, Parameter) and array.recorder is None and id(array) not in self._weights:
            name = f"parameter/{len(self.parameters)}"
            self.parameters[name] = array
            self.add_weight(name, array)
        return super().claims(array)

    def lift(self, array: Recorded) -> Value:
        self.claims(array)
        return super().lift(array)

    def draw(self, shape: tuple[int, ...]) -> Array:
        """Numbers in [0, 1) that the host draws anew for every run of the graph."""
        name = f"random/{len(self.draws)}"
        self.draws[name] = shape
        return Array(None, value=self.add_input(name, Type("float32", shape)), recorder=self)


def step_recorder() -> StepRecorder | None:
    """The step that is being traced around here, if any."""
    recorder = RECORDER.get()
    while recorder is not None and recorder.parent is not None:
        recorder = recorder.parent
    return recorder if isinstance(recorder, StepRecorder) else None
