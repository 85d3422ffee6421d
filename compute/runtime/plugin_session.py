"""A provider of an installed package in the form of a session, so that everything that steps graphs can step them
there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
import onnx

from coterie.compute.ir import NDArray
from coterie.compute.runtime.session import DTYPES, OrtValue

Runner: TypeAlias = Callable[[Mapping[str, NDArray]], Mapping[str, NDArray]]
"""A loaded graph: feeds by name to results by name."""

_ELEMENTS = {
    int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name))): element for element, name in DTYPES.items()
}  # fmt: skip


@dataclass(frozen=True)
class Argument:
    """An input or output as the file states it. type: in ONNX Runtime's words."""

    name: str
    type: str
    shape: Sequence[int | str | None]


@dataclass
class HostBinding:
    """Which tensors a session reads and writes. Their memory belongs to whoever bound them."""

    inputs: dict[str, OrtValue] = field(default_factory=dict[str, OrtValue])
    outputs: dict[str, OrtValue] = field(default_factory=dict[str, OrtValue])

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Read this input there."""
        self.inputs[name] = ortvalue

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Write this output there."""
        self.outputs[name] = ortvalue


class PluginSession:
    """What a package's ``open`` returned, as the part of ONNX Runtime's session that coterie uses.

    Inputs and outputs are those of the file. A result that is missing, or that does not fit its place, is the failure
    of the run: the package's code is judged like any other provider's.
    """

    def __init__(self, data: bytes, provider: str, run: Runner) -> None:
        graph = cast(Any, onnx).load_from_string(data).graph
        self._provider, self._run = provider, run
        self._inputs = tuple(map(_argument, graph.input))
        self._outputs = tuple(map(_argument, graph.output))

    def get_inputs(self) -> Sequence[Argument]:
        """The inputs, in the file's order."""
        return self._inputs

    def get_outputs(self) -> Sequence[Argument]:
        """The outputs, in the file's order."""
        return self._outputs

    def get_providers(self) -> Sequence[str]:
        """The package's provider alone."""
        return (self._provider,)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, NDArray]) -> Sequence[NDArray]:
        """The named outputs, or all of them."""
        found = self._run(input_feed)
        names = [output.name for output in self._outputs] if output_names is None else output_names
        if absent := [name for name in names if name not in found]:
            raise RuntimeError(f"The results {absent} are missing.")
        return [np.asarray(found[name]) for name in names]

    def io_binding(self) -> HostBinding:
        """A binding to memory of the host."""
        return HostBinding()

    def run_with_iobinding(self, iobinding: HostBinding) -> None:
        """Run on what is bound; outputs are written after all of them are there."""
        names = list(iobinding.outputs)
        results = self.run(names, {name: value.numpy() for name, value in iobinding.inputs.items()})
        expected = {output.name: output for output in self._outputs}
        for name, result in zip(names, results, strict=True):
            if list(result.shape) != list(expected[name].shape) or DTYPES[expected[name].type] != result.dtype.name:
                raise RuntimeError(f"The result {name} is {result.dtype.name}{list(result.shape)}.")
        for name, result in zip(names, results, strict=True):
            iobinding.outputs[name].update_inplace(np.ascontiguousarray(result))

    def end_profiling(self) -> str:
        """No profile is kept."""
        return ""


def _argument(value: Any) -> Argument:
    tensor = value.type.tensor_type
    shape = [axis.dim_value if axis.HasField("dim_value") else None for axis in tensor.shape.dim]
    return Argument(value.name, _ELEMENTS.get(tensor.elem_type, f"element type {tensor.elem_type}"), shape)
