"""The open end of a trace: nodes are appended here while the user's function runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Protocol

from coterie.compute.ir import Attributes, Graph, NDArray, Node, Type, Value, constant_node
from coterie.compute.source import user_source
from coterie.errors import InternalError, TraceError


class Recorded(Protocol):
    """What a trace reads of an array."""

    type: Type
    value: Value | None
    recorder: "Recorder | None"

    def numpy(self) -> NDArray:
        """The data. Raises TraceError inside a trace, where there is none yet."""
        ...

    def captured(self) -> "Recorded":
        """What a trace inside of that of this array keeps to be fed with it."""
        ...


class Recorder:
    """Collects the nodes of one trace.

    An array that belongs to no trace becomes a constant. An array of an enclosing trace becomes a capture: one more
    input of this graph, fed by that array where the graph is replayed. ``weights`` are arrays which the function holds
    by closure and which are inputs all the same (gradients with respect to them).
    """

    evaluates: ClassVar[bool] = False  # whether results have data at once: a tape

    def __init__(self, parent: "Recorder | None" = None) -> None:
        self.parent = parent
        self.refused: TraceError | None = None  # see refused()
        self.nodes: list[Node] = []
        self.inputs: dict[str, Value] = {}
        self.captures: dict[Value, Any] = {}
        self._captured: dict[Value, Value] = {}
        self._constants: dict[int, tuple[Recorded, Value]] = {}
        self._weights: dict[int, tuple[Recorded, Value]] = {}

    def add_input(self, name: str, type_: Type) -> Value:
        """A new named input of the graph."""
        value = Value(type_)
        self.inputs[name] = value
        return value

    def add_weight(self, name: str, array: Recorded) -> None:
        """Make an array that the function holds by closure an input."""
        self._weights[id(array)] = (array, self.add_input(name, array.type))

    def claims(self, array: Recorded) -> bool:
        """Whether an operation on this array must be recorded rather than evaluated."""
        if array.recorder is not None or id(array) in self._weights:
            return True
        return self.parent is not None and self.parent.claims(array)

    def lift(self, array: Recorded) -> Value:
        """The value that stands for an array in this graph."""
        if array.recorder is self and array.value is not None:
            return array.value
        if id(array) in self._weights:
            return self._weights[id(array)][1]
        if not self.claims(array):
            return self._constant(array)
        self._check_open(array)
        # An array of an enclosing trace. A weight of an enclosing trace has no value of its own, so its identity is the
        # parent's value for it.
        outer = array.value if array.value is not None else self._outer_weight(array)
        if outer not in self._captured:
            inner = Value(array.type)
            self._captured[outer] = inner
            self.captures[inner] = array.captured()
        return self._captured[outer]

    def append(
        self, primitive: str, inputs: Iterable[Value], types: Iterable[Type], attributes: Attributes, source: str
    ) -> tuple[Value, ...]:
        """Record one operation; the values of its results."""
        outputs = tuple(Value(type_) for type_ in types)
        self.nodes.append(Node(primitive, tuple(inputs), outputs, attributes, source))
        return outputs

    def evaluated(self, values: Sequence[Value], evaluate: Callable[[], Sequence[NDArray]]) -> Sequence[Any]:
        """The arrays of recorded results that have data at once."""
        raise InternalError("This recorder does not evaluate.")

    def finish(self, outputs: Mapping[str, Value]) -> Graph:
        """The graph; captures stand behind the inputs as "capture/0", "capture/1", ..."""
        captures = {f"capture/{index}": value for index, value in enumerate(self.captures)}
        return Graph({**self.inputs, **captures}, tuple(self.nodes), dict(outputs))

    def _constant(self, array: Recorded) -> Value:
        # The array is kept beside its value, so that its id cannot be given to another object while this trace is open.
        if id(array) not in self._constants:
            node = constant_node(array.numpy())
            self.nodes.append(node)
            self._constants[id(array)] = (array, node.output)
        return self._constants[id(array)][1]

    def _check_open(self, array: Recorded) -> None:
        holder: Recorder | None = self
        while holder is not None and array.recorder is not None:
            if holder is array.recorder:
                return
            holder = holder.parent
        if array.recorder is not None:
            raise TraceError(
                f"{user_source()}: an array ({array.type}) of a trace that has ended is used in another.",
                hint="Return arrays from the traced function instead of keeping them in variables outside.",
            )

    def _outer_weight(self, array: Recorded) -> Value:
        holder = self.parent
        while holder is not None:
            if id(array) in holder._weights:
                return holder._weights[id(array)][1]
            holder = holder.parent
        return Value(array.type)


def refused(error: TraceError) -> TraceError:
    """The error, to be raised; the open traces remember it. Python itself would have gone on where it is raised, so a
    program that catches it must not become a graph of its except.
    """
    holder = RECORDER.get()
    while holder is not None:
        holder.refused = holder.refused or error
        holder = holder.parent
    return error


RECORDER: ContextVar[Recorder | None] = ContextVar("coterie_recorder", default=None)
"""The trace that is open in this context, if any."""
