"""Tracing: run a Python function on symbols and keep what it did as a graph."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from coterie.compute import tree
from coterie.compute.array import Array, as_array
from coterie.compute.ir import Graph, Type
from coterie.compute.literals import dtype_name
from coterie.compute.recorder import RECORDER, Recorder
from coterie.compute.source import user_source
from coterie.compute.verify import verify
from coterie.errors import InputError, TraceError


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The shape and dtype of an input that does not exist yet. Raises InputError for a shape that is not a tuple of
    whole numbers of at least 0, DTypeError for what is no dtype.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        sizes = cast("object", self.shape)
        known = isinstance(sizes, (tuple, list)) and all(
            isinstance(size, (int, np.integer)) and size >= 0 for size in cast("tuple[object, ...]", sizes)
        )
        if not known:
            raise InputError(
                f"{user_source()}: TensorSpec: the shape must be a tuple of whole numbers, got {sizes!r}.",
                hint="Shapes are static: write (32, 2), (5,) for one axis, () for a number.",
            )
        dtype_name(self.dtype)

    @property
    def type(self) -> Type:
        return Type(np.dtype(self.dtype).name, tuple(self.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A traced function: its graph, and how its arguments and results are folded into named tensors.

    ``captures`` are arrays of an enclosing trace that the function used; they feed the last inputs of the graph.
    """

    graph: Graph
    in_structure: tree.Structure
    out_structure: tree.Structure
    captures: tuple[Array, ...] = ()


class GraphInputs(Mapping[str, Array]):
    """The named inputs of a graph that is being traced. More can be requested on the way (a dropout mask, say)."""

    def __init__(self, recorder: Recorder, specs: Mapping[str, TensorSpec]) -> None:
        self._recorder = recorder
        self._arrays: dict[str, Array] = {}
        for name, spec in specs.items():
            self.request(name, spec)

    def request(self, name: str, spec: TensorSpec) -> Array:
        """Add a graph input. Raises TraceError when the name is taken."""
        if name in self._arrays:
            raise TraceError(f"{user_source()}: the graph already has an input {name!r}.", hint="Choose another name.")
        self._arrays[name] = Array(None, value=self._recorder.add_input(name, spec.type), recorder=self._recorder)
        return self._arrays[name]

    def __getitem__(self, name: str) -> Array:
        try:
            return self._arrays[name]
        except KeyError:
            raise TraceError(
                f"{user_source()}: the graph has no input {name!r}.", hint=f"It has {list(self._arrays)}."
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def trace_named(fn: Callable[[GraphInputs], Mapping[str, Any]], inputs: Mapping[str, TensorSpec]) -> Graph:
    """The graph of a function from named arrays to named arrays; the names stay to the ONNX file. Raises TraceError and
    its kinds.
    """
    recorder = Recorder(RECORDER.get())
    token = RECORDER.set(recorder)
    try:
        results = fn(GraphInputs(recorder, inputs))
        if not isinstance(cast("object", results), Mapping):
            raise TraceError(
                f"{user_source()}: the function returns a {type(results).__name__}, not arrays by name.",
                hint='Return a dictionary, e.g. {"loss": loss}.',
            )
        outputs = {name: recorder.lift(as_array(result)) for name, result in results.items()}
    finally:
        RECORDER.reset(token)
    if recorder.refused is not None:
        raise recorder.refused
    if recorder.captures:
        raise TraceError("A named graph cannot use arrays of an enclosing trace.", hint="Pass them as inputs.")
    return verify(recorder.finish(outputs))


def is_array(leaf: Any) -> bool:
    """Whether a leaf of an argument is data; anything else is static."""
    given = isinstance(leaf, (Array, np.ndarray, np.generic, TensorSpec)) or hasattr(leaf, "__array__")
    return given and not isinstance(leaf, float)


def trace(fn: Callable[..., Any], *arguments: Any) -> Traced:
    """The graph of a function of pytrees whose leaves are TensorSpecs or arrays (only their types count). Other leaves
    are static.

    Inputs are named by path ("0", "1.weight"), outputs too ("" for a single array becomes "output"). Raises TraceError
    and its kinds.
    """
    return trace_flat(fn, arguments, ())


def trace_flat(
    fn: Callable[..., Any], arguments: Sequence[Any], weights: Sequence[Array], recorder: Recorder | None = None
) -> Traced:
    """As :func:`trace`, with arrays held by closure as further inputs "weight/0", "weight/1", ...; recorder: a fresh
    one of another kind.
    """
    leaves, structure = tree.flatten(tuple(arguments))
    recorder = Recorder(RECORDER.get()) if recorder is None else recorder
    symbols: list[Any] = []
    for path, leaf in zip(_distinct(structure.paths()), leaves, strict=True):
        if is_array(leaf):
            type_ = leaf.type if isinstance(leaf, (TensorSpec, Array)) else as_array(leaf).type
            symbols.append(Array(None, value=recorder.add_input(path, type_), recorder=recorder))
        else:
            symbols.append(leaf)
    for index, weight in enumerate(weights):
        recorder.add_weight(f"weight/{index}", weight)
    token = RECORDER.set(recorder)
    try:
        results, out_structure = tree.flatten(fn(*tree.unflatten(structure, symbols)))
        names = _distinct(path or "output" for path in out_structure.paths())
        outputs = {name: recorder.lift(as_array(result)) for name, result in zip(names, results, strict=True)}
    finally:
        RECORDER.reset(token)
    if recorder.refused is not None:
        raise recorder.refused
    graph = verify(recorder.finish(outputs))
    return Traced(
        graph=graph, in_structure=structure, out_structure=out_structure, captures=tuple(recorder.captures.values())
    )


def _distinct(paths: Iterable[str]) -> list[str]:
    """The paths; raises InputError for two that are equal, of which one array would stand for both."""
    listed = list(paths)
    if len(set(listed)) < len(listed):
        twice = next(path for path in listed if listed.count(path) > 1)
        raise InputError(
            f"{user_source()}: two arrays have the path {twice!r}.",
            hint="A key with dots looks like keys inside of keys: rename one of them.",
        )
    return listed
