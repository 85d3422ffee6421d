"""A trace that knows the numbers of the call it is made for, so that lines of Python can be made part of its graph.

A line that no graph can hold is called on those numbers while the graph is made. What it gives tells the shapes and
dtypes that it gives; the graph has one node for it, which calls it again in every run and holds it to them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeAlias, cast

import numpy as np

from coterie.compute.array import Array, as_array, bind_all
from coterie.compute.deferred import Deferred
from coterie.compute.dispatch import run
from coterie.compute.extension.row import NODE, UserPrimitive
from coterie.compute.interactive.surroundings import Surroundings
from coterie.compute.ir import DTYPES, Graph, NDArray, Type, Value
from coterie.compute.recorder import RECORDER, Recorder
from coterie.compute.source import user_source
from coterie.compute.table import PRIMITIVES
from coterie.errors import TraceError

Body: TypeAlias = FunctionType

_HERE = object()
"""In a tree, the place of what a graph carries."""
_EXACT: dict[type, str] = {bool: "bool", int: "int64", float: "float64"}
"""As what a number of Python's travels."""


class HostLineChanged(TraceError):
    """A line of Python gave something else in a run than when the graph was made, or failed."""


@dataclass(frozen=True, slots=True)
class _Form:
    """What one result of a line is. python: its type, Array among them; type: of the array that carries it; alone: the
    dtype that it takes as an array.
    """

    python: type[Any]
    type: Type
    alone: str

    def lifted(self, array: Array) -> Any:
        """What stands for it in the trace."""
        return array if issubclass(self.python, Array) else Deferred(array, self.python, self.alone)

    def value(self, data: NDArray) -> Any:
        """The Python value of data, which nobody may write to: the graph goes on with it."""
        data = data.view()
        data.flags.writeable = False
        if issubclass(self.python, Array):
            return Array(data)
        if issubclass(self.python, np.ndarray):
            return data
        return data.item() if self.python in _EXACT else data[()]


class Witness(Recorder):
    """The trace of a function for one call. numbers: the arguments that are arrays, in the order of its inputs."""

    def __init__(self, numbers: Sequence[NDArray]) -> None:
        super().__init__(None)
        self._numbers = numbers
        self._known: dict[Value, NDArray] = {}
        self._done = 0
        self._read: list[tuple[str, Surroundings]] = []
        self.last: Array | None = None
        """What every run must compute, so that each line is called in each run, one after the other."""

    def call(self, body: Body, given: Sequence[Any], *, gives: bool) -> Any:
        """What a line of Python gives, as the trace sees it. given: the variables that it reads. gives: whether it is
        called for more than its effect; else it is not called before the graph runs.

        Raises TraceError for a result that a graph cannot carry; whatever the line raises.
        """
        operands: list[tuple[_Form, Array]] = []
        template = _mapped(given, lambda leaf: _operand(leaf, self, operands))
        if not operands:
            return body(*given)
        self._read.append((user_source(), Surroundings(body, template)))
        line = _Line(body, template, [form for form, _ in operands], after=self.last is not None)
        arrays = [array for _, array in operands] + ([self.last] if self.last is not None else [])
        made: list[NDArray] = []
        shape: Any = ()
        if gives:
            shape, forms, made = line.tried([self._data(array) for array in arrays])
            line.expected = (shape, forms)
        primitive = UserPrimitive(
            name="a line of Python",
            inputs=tuple(f"operand_{index}" for index in range(len(arrays))),
            outputs=(*(f"result_{index}" for index in range(len(made))), "done"),
            attributes={},
            infer_shape=line.shapes,
            infer_dtype=line.dtypes,
            kernel=line,
            instead="Write it with array functions.",
        )
        *results, self.last = bind_all(NODE, arrays, {"primitive": primitive})
        for array, data in zip((*results, self.last), (*made, np.asarray(True)), strict=True):
            self._known[cast(Value, array.value)] = data
        stream = iter(zip(line.expected[1], results, strict=True))
        return _mapped(shape, lambda leaf: _lifted(*next(stream)) if leaf is _HERE else leaf)

    def finish(self, outputs: Mapping[str, Value]) -> Graph:
        """The graph. Raises TraceError where what a line reads changed after it: it would read that in every run."""
        for source, read in self._read:
            if read.has_changed():
                raise TraceError(
                    f"{source}: what this line of Python reads is changed by it, or later in the function."
                )
        return super().finish(outputs)

    def _data(self, array: Array) -> NDArray:
        """The numbers of a traced array in the call that this trace is made for."""
        self._known.update(zip(self.inputs.values(), self._numbers, strict=False))
        for node in self.nodes[self._done :]:
            if node.outputs[0] not in self._known:
                with np.errstate(all="ignore"):
                    results = PRIMITIVES[node.primitive].evaluate(
                        run, [self._known[value] for value in node.inputs], node.attributes
                    )
                self._known.update(
                    (value, np.asarray(result, value.type.dtype))
                    for value, result in zip(node.outputs, results, strict=True)
                )
        self._done = len(self.nodes)
        return self._known[self.lift(array)]


class _Line:
    """Lines of Python as a kernel: arrays → arrays. template: what they read, with _HERE for each operand."""

    def __init__(self, body: Body, template: Any, forms: Sequence[_Form], *, after: bool) -> None:
        self._body, self._template, self._forms, self._after = body, template, forms, after
        self._source = user_source()
        self.expected: tuple[Any, tuple[_Form, ...]] = ((), ())

    def shapes(self, *operands: Any) -> Any:
        """infer_shape."""
        found = [form.type.shape for form in self.expected[1]]
        return [*found, ()] if found else ()

    def dtypes(self, *operands: Any) -> Any:
        """infer_dtype."""
        found = [form.type.dtype for form in self.expected[1]]
        return [*found, "bool"] if found else "bool"

    def __call__(self, *arrays: NDArray) -> Any:
        """The results, and that it was called. Raises HostLineChanged for others than those of the first call."""
        try:
            shape, forms, made = self.tried(arrays)
        except Exception as error:  # whatever a user's line raises is raised again where the function runs as it is
            raise HostLineChanged(f"{self._source}: {error}") from error
        if self.expected[1] and (shape, forms) != self.expected:
            raise HostLineChanged(
                f"{self._source}: this line of Python gives {_told(forms)} in one call and "
                f"{_told(self.expected[1])} in another, which a graph cannot express.",
                hint="Give results of one shape and dtype.",
                forms=forms,
            )
        return [*made, np.asarray(True)] if self.expected[1] else np.asarray(True)

    def tried(self, arrays: Sequence[NDArray]) -> tuple[Any, tuple[_Form, ...], list[NDArray]]:
        """The results in order, their forms, and the tree with _HERE for each."""
        stream = iter(zip(self._forms, arrays, strict=False))  # behind them is the token
        given = _mapped(self._template, lambda leaf: _valued(*next(stream)) if leaf is _HERE else leaf)
        before = _identities(given)
        token = RECORDER.set(None)
        try:
            result = self._body(*given)
        finally:
            RECORDER.reset(token)
        if _identities(given) != before:
            raise TraceError(f"{self._source}: this line of Python changes a list or a dict that it was given.")
        forms: list[_Form] = []
        made: list[NDArray] = []

        def taken(leaf: Any) -> Any:
            if leaf is None:
                return None
            form, data = _form(leaf, self._source)
            forms.append(form)
            made.append(data)
            return _HERE

        return _mapped(result, taken), tuple(forms), made


def _mapped(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """A new tree of plain lists, tuples and dicts with other leaves. Nothing is asked of a leaf but its type."""
    if type(tree) is list or type(tree) is tuple:
        items = [_mapped(item, leaf) for item in cast("list[Any]", tree)]
        return items if type(cast("object", tree)) is list else tuple(items)
    if type(tree) is dict:
        return {key: _mapped(item, leaf) for key, item in cast("dict[Any, Any]", tree).items()}
    return leaf(tree)


def _identities(tree: Any) -> Any:
    return _mapped(tree, id)


def _operand(leaf: Any, recorder: Recorder, operands: list[tuple[_Form, Array]]) -> Any:
    """The place of what a graph carries; anything else as it is."""
    if type(leaf) is Deferred:
        operands.append((_Form(leaf.python, leaf.held.type, leaf.alone), leaf.held))
    elif isinstance(leaf, Array) and recorder.claims(leaf):
        operands.append((_Form(type(leaf), leaf.type, leaf.type.dtype), leaf))
    else:
        return leaf
    return _HERE


def _valued(form: _Form, data: NDArray) -> Any:
    return form.value(data)


def _lifted(form: _Form, array: Array) -> Any:
    return form.lifted(array)


def _form(value: Any, source: str) -> tuple[_Form, NDArray]:
    """What a result is, and the data that carries it. Raises TraceError for what a graph cannot carry."""
    python = cast("type[Any]", type(value))
    is_array = issubclass(python, Array)
    data: NDArray = value.numpy() if is_array else np.asarray(value if _is_plain(python) else None, _EXACT.get(python))
    if data.dtype.name not in DTYPES:
        raise TraceError(
            f"{source}: this line of Python gives a {python.__name__} ({data.dtype}), which no graph holds."
        )
    # An array does not change, and neither may what stands for it.
    kept = np.array(data, order="C")
    kept.flags.writeable = False
    return _Form(python, Type(kept.dtype.name, kept.shape), as_array(value).type.dtype), kept


def _is_plain(python: type[Any]) -> bool:
    return python in _EXACT or python is np.ndarray or issubclass(python, np.generic)


def _told(forms: Sequence[_Form]) -> str:
    return ", ".join(f"{form.python.__name__} {form.type}" for form in forms) or "nothing"
