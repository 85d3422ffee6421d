"""The one place that touches ONNX Runtime's untyped Python interface; everything above it is typed."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import onnxruntime  # pyright: ignore[reportMissingTypeStubs]

from coterie.compute.ir import NDArray
from coterie.compute.runtime.tensors import TensorInfo
from coterie.errors import ConfigurationError, GraphRefused

CPU = "CPUExecutionProvider"

DTYPES: Mapping[str, str] = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


class OrtValue(Protocol):
    """A tensor that ONNX Runtime can bind."""

    def numpy(self) -> NDArray: ...

    def update_inplace(self, __data: NDArray) -> None: ...


class Binding(Protocol):
    """Where a session reads its inputs and writes its outputs."""

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None: ...

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None: ...


class NodeArg(Protocol):
    """An input or output as a session reports it."""

    name: str
    type: str
    shape: Sequence[int | str | None]


class Session(Protocol):
    """The part of ``onnxruntime.InferenceSession`` that coterie uses."""

    def get_inputs(self) -> Sequence[NodeArg]: ...

    def get_outputs(self) -> Sequence[NodeArg]: ...

    def get_providers(self) -> Sequence[str]: ...

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, NDArray]) -> Sequence[NDArray]: ...

    def io_binding(self) -> Binding: ...

    def run_with_iobinding(self, iobinding: Binding) -> None: ...

    def end_profiling(self) -> str: ...


# Blocked channels are for convolutions with constant weights. Here weights are inputs, so only the pooling around them
# would be blocked, at the cost of reordering its images there and back.
_DISABLED = ["NchwcTransformer"]
# Melts a scale into a product as a float32 number, also where the product is of float64.
_INEXACT = ["MatMulScaleFusion"]


def open_session(
    data: bytes,
    *,
    threads: int,
    provider: str,
    spinning: bool,
    arena: bool,
    fallback: bool,
    profile_prefix: str | None = None,
) -> Session:
    """A session over a serialised graph. ``Executable`` documents the options.

    Raises ConfigurationError for an absent provider or a thread count below one, GraphRefused when ONNX Runtime does
    not load the graph.
    """
    runtime = cast(Any, onnxruntime)
    if not isinstance(cast(object, threads), int) or threads < 1:
        raise ConfigurationError(f"threads must be a whole number of at least 1, got {threads!r}.")
    available = available_providers()
    if provider not in available:
        raise ConfigurationError(f"ONNX Runtime has no provider {provider!r} here; it has {', '.join(available)}.")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.enable_cpu_mem_arena = arena
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
    if provider != CPU and not fallback:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = profile_prefix
    providers = [provider] if provider == CPU or not fallback else [provider, CPU]
    try:
        session = runtime.InferenceSession(data, options, providers=providers, disabled_optimizers=_DISABLED)
        ends = (*session.get_inputs(), *session.get_outputs())
        # A profile is of one session, and of its times, not its numbers.
        if profile_prefix is None and any(tensor.type == "tensor(double)" for tensor in ends):
            disabled = _DISABLED + _INEXACT
            session = runtime.InferenceSession(data, options, providers=providers, disabled_optimizers=disabled)
        return cast(Session, session)
    except (
        Exception
    ) as error:  # the binding raises classes of its own, one per status code, with no common base but Exception
        raise GraphRefused(
            f"ONNX Runtime cannot load the graph on {provider}: {first_line(error)}", provider=provider
        ) from error


def available_providers() -> list[str]:
    """Names of the execution providers of this ONNX Runtime that run graphs on this machine."""
    runtime = cast(Any, onnxruntime)
    # The Azure provider forwards to a web service; it is no place to compute.
    return [str(name) for name in runtime.get_available_providers() if name != "AzureExecutionProvider"]


def runtime_version() -> str:
    """Version of the installed ONNX Runtime."""
    return str(cast(Any, onnxruntime).__version__)


def ortvalue_over(array: NDArray) -> OrtValue:
    """A CPU tensor that shares ``array``'s memory: writing to the array writes to the tensor."""
    return cast(OrtValue, cast(Any, onnxruntime).OrtValue.ortvalue_from_numpy(array))


def describe(arguments: Sequence[NodeArg]) -> tuple[TensorInfo, ...]:
    """The session's inputs or outputs; raises GraphRefused for a dtype or a shape that is not static."""
    return tuple(_describe(argument) for argument in arguments)


def _describe(argument: NodeArg) -> TensorInfo:
    dtype = DTYPES.get(argument.type)
    if dtype is None:
        raise GraphRefused(f"Tensor {argument.name!r} has type {argument.type}, which coterie does not use.")
    sizes = tuple(size for size in argument.shape if isinstance(size, int))
    if len(sizes) != len(argument.shape):
        raise GraphRefused(f"Tensor {argument.name!r} has the shape {list(argument.shape)}, which is not static.")
    return TensorInfo(argument.name, dtype, sizes)


def first_line(error: Exception) -> str:
    """The first line of an error's text, without the runtime's source locations on the lines below it."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
