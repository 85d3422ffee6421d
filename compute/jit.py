"""Compile a function on first use and run it on ONNX Runtime's CPU provider from then on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

from coterie.compute import tree
from coterie.compute.array import Array, as_array
from coterie.compute.ir import Type
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.recorder import RECORDER
from coterie.compute.runtime.executable import Executable
from coterie.compute.trace import TensorSpec, is_array, trace


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compiled:
    executable: Executable
    out_structure: tree.Structure
    outputs: tuple[tuple[str, Type], ...]


class Compiled:
    """A compiled function. It compiles anew only for a new signature: the structure of the arguments, the types of
    arrays, the values of everything else.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._signatures: dict[Any, _Compiled] = {}
        update_wrapper(self, fn)

    @property
    def compilations(self) -> int:
        """How many signatures have been compiled."""
        return len(self._signatures)

    def __call__(self, *arguments: Any) -> Any:
        """The result of the function, as arrays. Inside a trace the function is simply called, and becomes part of that
        trace.
        """
        leaves, structure = tree.flatten(arguments)
        if RECORDER.get() is not None:
            return self._fn(*arguments)
        arrays = [as_array(leaf) if is_array(leaf) else None for leaf in leaves]
        key = (structure, *(leaf if array is None else array.type for leaf, array in zip(leaves, arrays, strict=True)))
        # 1, 1.0 and True are equal but not the same static argument.
        signature = (
            key,
            tuple(type(leaf).__name__ if array is None else "" for leaf, array in zip(leaves, arrays, strict=True)),
        )
        if signature not in self._signatures:
            self._signatures[signature] = self._compile(structure, leaves, arrays)
        compiled = self._signatures[signature]
        feeds = {
            path: array.numpy().reshape(array.shape or (1,))
            for path, array in zip(structure.paths(), arrays, strict=True)
            if array is not None
        }
        results = compiled.executable.run(feeds)
        return tree.unflatten(
            compiled.out_structure, [Array(results[name].reshape(type_.shape)) for name, type_ in compiled.outputs]
        )

    def _compile(self, structure: tree.Structure, leaves: list[Any], arrays: list[Array | None]) -> _Compiled:
        specs = [
            leaf if array is None else TensorSpec(array.shape, array.type.dtype)
            for leaf, array in zip(leaves, arrays, strict=True)
        ]
        traced = trace(self._fn, *tree.unflatten(structure, specs))
        graph = optimise(traced.graph)
        # Inputs and outputs are named by path, and a path can be both.
        renamed = type(graph)(
            graph.inputs, graph.nodes, {f"result/{name}": value for name, value in graph.outputs.items()}
        )
        return _Compiled(
            executable=Executable(to_onnx(renamed, name=str(getattr(self._fn, "__name__", "function")), target="cpu")),
            out_structure=traced.out_structure,
            outputs=tuple((name, value.type) for name, value in renamed.outputs.items()),
        )


def jit(fn: Callable[..., Any]) -> Compiled:
    """Compile a function of pytrees of arrays; leaves that are not arrays are static and must be hashable.

    Arrays that the function holds by closure are constants of the compiled graph, as they are when it is compiled.
    """
    return Compiled(fn)
