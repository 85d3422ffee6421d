"""Compile a function on first use and run it on ONNX Runtime's CPU provider from then on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from types import MethodType
from typing import Any, Literal, TypeAlias, overload

from coterie.compute import tree
from coterie.compute.array import Array, as_array
from coterie.compute.interactive.frontend.rewrite import rewrite
from coterie.compute.interactive.hosting import with_host_lines
from coterie.compute.interactive.mode import get_mode
from coterie.compute.interactive.pieces import Program, program
from coterie.compute.interactive.purity import undrawn
from coterie.compute.interactive.witness import HostLineChanged, Witness
from coterie.compute.ir import Graph
from coterie.compute.onnx.writer import Target, to_onnx
from coterie.compute.passes import optimise
from coterie.compute.passes.unroll import unrolled
from coterie.compute.recorder import RECORDER, Recorder
from coterie.compute.signature import check_call, declared, in_order, require_function
from coterie.compute.source import user_source
from coterie.compute.trace import TensorSpec, is_array, trace, trace_flat
from coterie.compute.verify import verify
from coterie.errors import InputError, TraceError

Function: TypeAlias = Callable[..., Any]
Capture: TypeAlias = Literal["ast", "trace"]

_EVERY_LINE = ""
"""The output that needs every call of a line of Python; no result has an empty path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """A signature as a graph."""

    program: Program
    out_structure: tree.Structure

    def run(self, names: Sequence[str], arrays: Sequence[Array | None]) -> Any:
        feeds = {name: array.numpy() for name, array in zip(names, arrays, strict=True) if array is not None}
        made = [Array(data) for data in self.program.run(feeds).values()]
        return tree.unflatten(self.out_structure, made[: self.out_structure.leaves])


class Compiled:
    """A compiled function. It compiles anew only for a new signature: the structure of the arguments, the types of
    arrays, the values of everything else.
    """

    def __init__(
        self,
        fn: Function,
        *,
        fullgraph: bool = False,
        capture_mode: Capture = "ast",
        input_signature: Sequence[Any] | None = None,
        unroll: bool = False,
    ) -> None:
        require_function("jit", fn)
        update_wrapper(self, fn)  # first: it brings attributes, which of a compiled function are these
        self._fn = fn
        self._unroll = unroll
        self._declared = declared(fn, input_signature)
        self._rewritten = capture_mode == "ast"
        self._traceable = rewrite(fn) if self._rewritten else fn
        self._fullgraph = fullgraph
        self._signatures: dict[Any, _Program | TraceError] = {}

    @property
    def compilations(self) -> int:
        """How many signatures have been compiled."""
        return sum(isinstance(found, _Program) for found in self._signatures.values())

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Why signatures run on the host instead: one reason, with file and line, for each."""
        return tuple(str(found) for found in self._signatures.values() if isinstance(found, TraceError))

    @property
    def host_calls(self) -> tuple[str, ...]:
        """What Python computes inside of compiled signatures, between the pieces before and behind it: each place once,
        with file and line, and why.
        """
        found = [
            call for each in self._signatures.values() if isinstance(each, _Program) for call in each.program.host_calls
        ]
        return tuple(dict.fromkeys(found))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """In the body of a class it is a method like any other; the object it is called on is a static argument."""
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """The result of the function, as arrays. Inside a trace it becomes part of that, in eager mode it is called."""
        arguments = in_order(self._fn, positional, named)
        if self._declared is not None:
            check_call(self._name, self._declared, arguments)
        if RECORDER.get() is not None:
            return self._traceable(*arguments)
        if get_mode() == "eager":
            return self._fn(*arguments)
        leaves, structure = tree.flatten(arguments)
        arrays = [as_array(leaf) if is_array(leaf) else None for leaf in leaves]
        signature = signature_of(structure, leaves, arrays)
        if signature not in self._signatures:
            self._signatures[signature] = self._compile(structure, leaves, arrays)
        program = self._signatures[signature]
        if isinstance(program, _Program):
            try:
                return program.run(list(structure.paths()), arrays)
            except HostLineChanged as changed:
                if "forms" in changed.details:  # else the line failed, and will say so itself
                    self._signatures[signature] = TraceError(changed.message, hint=changed.hint)
        given = [leaf if array is None else array for leaf, array in zip(leaves, arrays, strict=True)]
        return self._fn(*tree.unflatten(structure, given))

    def _compile(
        self, structure: tree.Structure, leaves: list[Any], arrays: list[Array | None]
    ) -> "_Program | TraceError":
        specs = [
            leaf if array is None else TensorSpec(array.shape, array.type.dtype)
            for leaf, array in zip(leaves, arrays, strict=True)
        ]
        arguments = tree.unflatten(structure, specs)
        try:
            return self._compiled(self._traceable, arguments, Recorder())
        except (TraceError, RecursionError) as error:
            told = too_deep(self._name, error)
            if self._fullgraph:
                raise told from error.__cause__
        if not self._rewritten:
            return told
        numbers = [array.numpy() for array in arrays if array is not None]
        return with_host_lines(self._fn, told, numbers, lambda fn, witness: self._compiled(fn, arguments, witness))

    def _compiled(self, fn: Function, arguments: Any, recorder: Recorder) -> _Program:
        with undrawn(self._fn):
            traced = trace_flat(fn, arguments, (), recorder)
        graph = traced.graph
        if isinstance(recorder, Witness) and recorder.last is not None:
            outputs = {**graph.outputs, _EVERY_LINE: recorder.lift(recorder.last)}
            graph = verify(Graph(graph.inputs, graph.nodes, outputs))
        made = program(optimise(self._written_out(graph)), name=self._name, whole=self._fullgraph)
        return _Program(program=made, out_structure=traced.out_structure)

    def export(self, *specs: Any, target: Target = "portable") -> bytes:
        """The ONNX file of the function for arguments of these types: TensorSpecs or arrays, of which only the types
        count. Inputs are named by path, outputs "result/<path>". Raises TraceError and its kinds.
        """
        with undrawn(self._fn):
            graph = self._written_out(trace(self._traceable, *specs).graph)
        return to_onnx(_renamed(graph), name=self._name, target=target)

    def _written_out(self, graph: Graph) -> Graph:
        return unrolled(graph) if self._unroll else graph

    @property
    def _name(self) -> str:
        return str(getattr(self._fn, "__name__", "function"))


def too_deep(name: str, error: TraceError | RecursionError) -> TraceError:
    """The error, or what one of Python's own says of a function that was to be traced."""
    if isinstance(error, TraceError):
        return error
    return TraceError(
        f"{user_source()}: jit: {name} calls itself, or nests its branches, too deeply to be traced.",
        hint="Write it as a loop, or put what is decided into variables.",
    )


def _renamed(graph: Graph) -> Graph:
    """The optimised graph whose outputs have names of their own: a path can be that of an input and of an output."""
    graph = optimise(graph)
    return Graph(graph.inputs, graph.nodes, {f"result/{name}": value for name, value in graph.outputs.items()})


def signature_of(structure: tree.Structure, leaves: Sequence[Any], arrays: Sequence[Array | None]) -> Any:
    """What a function is compiled anew for: the structure of the arguments, the types of arrays, the values of the
    rest. Raises InputError for a value that cannot be hashed.
    """
    # 1, 1.0 and True are equal but not the same static argument, and neither are 0.0 and -0.0; NaN is, but not equal.
    parts = [
        (type(leaf).__name__, leaf.hex() if isinstance(leaf, float) else leaf) if array is None else ("", array.type)
        for leaf, array in zip(leaves, arrays, strict=True)
    ]
    signature = (structure, *parts)
    try:
        hash(signature)
    except TypeError:
        wrong = [type(leaf).__name__ for leaf, array in zip(leaves, arrays, strict=True) if array is None]
        raise InputError(
            f"{user_source()}: jit: an argument that is not an array ({', '.join(wrong)}) cannot be hashed, so it "
            "cannot be part of a signature.",
            hint="Pass arrays, numbers, strings, or trees of them.",
        ) from None
    return signature


@overload
def jit(
    fn: Function,
    *,
    fullgraph: bool = False,
    capture_mode: Capture = "ast",
    input_signature: Sequence[Any] | None = None,
    unroll: bool = False,
) -> Compiled: ...
@overload
def jit(
    fn: None = None,
    *,
    fullgraph: bool = False,
    capture_mode: Capture = "ast",
    input_signature: Sequence[Any] | None = None,
    unroll: bool = False,
) -> Callable[[Function], Compiled]: ...
def jit(
    fn: Function | None = None,
    *,
    fullgraph: bool = False,
    capture_mode: Capture = "ast",
    input_signature: Sequence[Any] | None = None,
    unroll: bool = False,
) -> Compiled | Callable[[Function], Compiled]:
    """Compile a function of pytrees of arrays; leaves that are not arrays are static and must be hashable. Also a
    decorator, with or without arguments.

    capture_mode: "ast" rewrites the function's own if, while and for, and those of functions defined in it, so that
    they may decide on arrays (functions that it calls are rewritten when they are under ``jit`` themselves); "trace"
    takes the function as it is. fullgraph: raise TraceError where the Python cannot be a graph, or calls what ONNX
    lacks. Otherwise such a call (a primitive without a lowering, ``linalg``, a function that has no double precision)
    is made in Python between compiled pieces, and ``host_calls`` tells where. So is a line of the function's own that
    asks for the numbers of an array, if it gives arrays, numbers or trees of them whose types do not change from call
    to call, and if what it reads besides arrays stays the same in the function; there are no gradients through it. A
    function that cannot be a graph else runs on the host, line by line, where a mistake of its own shows, and
    ``fallbacks`` tells why. Neither can be exported.
    input_signature: for each argument a tree of TensorSpecs and static values; every call is held
    to it. Parameters that are all annotated, as in ``x: Annotated[Array, TensorSpec((8, 3))]``, say the same. unroll:
    write loops of a known number of steps out, and compute both branches of choices: no control flow in the graph,
    whose size grows with the steps; a loop whose number of steps depends on data is no graph then.

    The function runs once for each compilation (and once more for each line that asks for numbers, which is itself
    called on those of the call at hand), on symbols, and not in later calls. So whatever it reads besides its
    arguments (arrays and numbers that it holds by closure, globals, attributes of objects, the time) is a constant of
    the compiled graph, as it is then; numbers from ``random`` and ``np.random`` are refused. What it does besides its
    result (printing, filling a list outside) it does then; where it falls back it has done so once on symbols, as far
    as it came, and does it again on the host. Dicts reach the function with their keys in sorted order.
    Raises InputError for a capture mode that does not exist; a call raises ShapeError or DTypeError for arrays of other
    types than the declared ones.
    """
    if capture_mode not in ("ast", "trace"):
        raise InputError(f"There is no capture mode {capture_mode!r}.", hint="Choose ast or trace.")

    def compiled(inner: Function) -> Compiled:
        return Compiled(
            inner, fullgraph=fullgraph, capture_mode=capture_mode, input_signature=input_signature, unroll=unroll
        )

    return compiled if fn is None else compiled(fn)
