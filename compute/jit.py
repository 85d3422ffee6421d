"""Compile a function on first use and run it on ONNX Runtime's CPU provider from then on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Literal, TypeAlias, overload

from coterie.compute import tree
from coterie.compute.array import Array, as_array
from coterie.compute.extension.decompose import host_only
from coterie.compute.frontend.rewrite import rewrite
from coterie.compute.ir import Type
from coterie.compute.mode import get_mode
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.recorder import RECORDER
from coterie.compute.runtime.executable import Executable
from coterie.compute.source import user_source
from coterie.compute.trace import TensorSpec, is_array, trace
from coterie.errors import DTypeError, InputError, ShapeError, TraceError

Function: TypeAlias = Callable[..., Any]
Capture: TypeAlias = Literal["ast", "trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """A signature as a graph."""

    executable: Executable
    out_structure: tree.Structure
    outputs: tuple[tuple[str, Type], ...]

    def run(self, names: Sequence[str], arrays: Sequence[Array | None]) -> Any:
        feeds = {
            name: array.numpy().reshape(array.shape or (1,))
            for name, array in zip(names, arrays, strict=True)
            if array is not None
        }
        results = self.executable.run(feeds)
        found = [Array(results[name].reshape(type_.shape)) for name, type_ in self.outputs]
        return tree.unflatten(self.out_structure, found)


class Compiled:
    """A compiled function. It compiles anew only for a new signature: the structure of the arguments, the types of
    arrays, the values of everything else.
    """

    def __init__(self, fn: Function, *, fullgraph: bool = False, capture_mode: Capture = "ast") -> None:
        self._fn = fn
        self._traceable = rewrite(fn) if capture_mode == "ast" else fn
        self._fullgraph = fullgraph
        self._signatures: dict[Any, _Program | TraceError] = {}
        update_wrapper(self, fn)

    @property
    def compilations(self) -> int:
        """How many signatures have been compiled."""
        return sum(isinstance(found, _Program) for found in self._signatures.values())

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Why signatures run on the host instead: one reason, with file and line, for each."""
        return tuple(str(found) for found in self._signatures.values() if isinstance(found, TraceError))

    def __call__(self, *arguments: Any) -> Any:
        """The result of the function, as arrays. Inside a trace it becomes part of that, in eager mode it is called."""
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
        if isinstance(program, TraceError):
            given = [leaf if array is None else array for leaf, array in zip(leaves, arrays, strict=True)]
            return self._fn(*tree.unflatten(structure, given))
        return program.run(list(structure.paths()), arrays)

    def _compile(self, structure: tree.Structure, leaves: list[Any], arrays: list[Array | None]) -> Any:
        specs = [
            leaf if array is None else TensorSpec(array.shape, array.type.dtype)
            for leaf, array in zip(leaves, arrays, strict=True)
        ]
        try:
            traced = trace(self._traceable, *tree.unflatten(structure, specs))
        except (ShapeError, DTypeError):
            raise  # a mistake in any mode
        except TraceError as error:
            if self._fullgraph:
                raise
            return error
        if (unlowered := host_only(traced.graph)) is not None:
            if self._fullgraph:
                raise unlowered
            return unlowered
        graph = optimise(traced.graph)
        # Inputs and outputs are named by path, and a path can be both.
        renamed = type(graph)(
            graph.inputs, graph.nodes, {f"result/{name}": value for name, value in graph.outputs.items()}
        )
        name = str(getattr(self._fn, "__name__", "function"))
        return _Program(
            executable=Executable(to_onnx(renamed, name=name, target="cpu")),
            out_structure=traced.out_structure,
            outputs=tuple((name, value.type) for name, value in renamed.outputs.items()),
        )


def signature_of(structure: tree.Structure, leaves: Sequence[Any], arrays: Sequence[Array | None]) -> Any:
    """What a function is compiled anew for: the structure of the arguments, the types of arrays, the values of the
    rest. Raises InputError for a value that cannot be hashed.
    """
    # 1, 1.0 and True are equal but not the same static argument.
    parts = [
        (type(leaf).__name__, leaf) if array is None else ("", array.type)
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
def jit(fn: Function, *, fullgraph: bool = False, capture_mode: Capture = "ast") -> Compiled: ...
@overload
def jit(
    fn: None = None, *, fullgraph: bool = False, capture_mode: Capture = "ast"
) -> Callable[[Function], Compiled]: ...
def jit(
    fn: Function | None = None, *, fullgraph: bool = False, capture_mode: Capture = "ast"
) -> Compiled | Callable[[Function], Compiled]:
    """Compile a function of pytrees of arrays; leaves that are not arrays are static and must be hashable. Also a
    decorator, with or without arguments.

    capture_mode: "ast" rewrites the function's own if, while and for, and those of functions defined in it, so that
    they may decide on arrays (functions that it calls are rewritten when they are under ``jit`` themselves); "trace"
    takes the function as it is. fullgraph: raise TraceError where the Python cannot be a graph. Otherwise such a
    function runs on the host, line by line, and ``fallbacks`` tells why; it cannot be exported, since an export is a
    trace, which raises.

    Arrays that the function holds by closure are constants of the compiled graph, as they are when it is compiled.
    Raises InputError for a capture mode that does not exist.
    """
    if capture_mode not in ("ast", "trace"):
        raise InputError(f"There is no capture mode {capture_mode!r}.", hint="Choose ast or trace.")
    if fn is None:
        return lambda inner: Compiled(inner, fullgraph=fullgraph, capture_mode=capture_mode)
    return Compiled(fn, fullgraph=fullgraph, capture_mode=capture_mode)
