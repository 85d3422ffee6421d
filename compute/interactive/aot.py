"""Compile a function before it is called: from the declared types of its arguments alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coterie.compute.interactive.jit import Compiled
from coterie.compute.onnx.writer import Target
from coterie.compute.signature import declared, require_function
from coterie.errors import InputError


class AheadOfTime:
    """A function compiled for one signature. Calling it runs the graph; ``onnx`` is the file's content.

    A call with other types raises ShapeError or DTypeError.
    """

    def __init__(self, compiled: Compiled, onnx: bytes) -> None:
        self._compiled = compiled
        self.onnx = onnx

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._compiled(*arguments, **named)

    def save(self, path: str | Path) -> None:
        """Write the ONNX file. Raises InputError where it cannot be written."""
        try:
            Path(path).write_bytes(self.onnx)
        except OSError as error:
            raise InputError(f"The ONNX file cannot be written: {error}") from error


def aot_compile(
    fn: Callable[..., Any], input_signature: Sequence[Any] | None = None, *, target: Target = "portable"
) -> AheadOfTime:
    """The function as an ONNX graph, without having been called on numbers.

    input_signature: for each argument a tree of TensorSpecs and static values; without it every parameter must be
    annotated, as in ``x: Annotated[Array, TensorSpec((8, 3))]``. target: see ``to_onnx``.

    Raises InputError where the types are not declared, TraceError and its kinds for a function that is no graph.
    """
    require_function("aot_compile", fn)
    wanted = declared(fn, input_signature)
    if wanted is None:
        name = getattr(fn, "__name__", "the function")
        raise InputError(
            f"aot_compile: the types of the arguments of {name} are not declared.",
            hint="Give input_signature=(TensorSpec(shape, dtype), ...), or annotate every parameter.",
        )
    compiled = Compiled(fn, fullgraph=True, input_signature=wanted)
    return AheadOfTime(compiled, compiled.export(*wanted, target=target))
