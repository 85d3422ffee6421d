"""The one place that touches ONNX Runtime's untyped Python interface; everything above it is typed."""

from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from typing import Any, Protocol, cast

import onnxruntime  # pyright: ignore[reportMissingTypeStubs]

from coterie.compute.ir import NDArray
from coterie.compute.runtime.libraries import library_versions, plugin_devices
from coterie.compute.runtime.tensors import TensorInfo
from coterie.compute.runtime.unread import without_unread_inputs
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


MEMORIES: Mapping[str, str] = {
    "CUDAExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "cuda",
    "WebGpuExecutionProvider": "webgpu",
}
"""Provider → ONNX Runtime's name for the memory of its device. A provider that is not here reads the host's."""


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


class AssignedNode(Protocol):
    """A node of the graph as ONNX Runtime runs it, after its own fusions."""

    name: str
    op_type: str


class Assigned(Protocol):
    """Nodes that one provider runs."""

    ep_name: str

    def get_nodes(self) -> Sequence[AssignedNode]: ...


# Blocked channels are for convolutions with constant weights. Here weights are inputs, so only the pooling around them
# would be blocked, at the cost of reordering its images there and back.
_DISABLED = ["NchwcTransformer"]
# Melts a scale into a product as a float32 number, also where the product is of float64.
_INEXACT = ["MatMulScaleFusion"]
# Moves transpositions behind comparisons. WebGPU has none for bools: one node more for the CPU, and two copies, in
# every step that counts right answers.
_ELSEWHERE = ["TransposeOptimizer"]


def open_session(
    data: bytes,
    *,
    threads: int,
    provider: str,
    spinning: bool,
    arena: bool,
    fallback: bool,
    profile_prefix: str | None = None,
    record: bool = False,
    fused: bool = True,
) -> Session:
    """A session over a serialised graph. ``Executable`` documents the options. record: keep which provider got which
    node, for ``assignment``. fused: whether nodes may become one, without which a profile names each. Of another
    provider than the CPU it lacks the inputs that no node reads.

    Raises ConfigurationError for an absent provider or a thread count below one, GraphRefused when ONNX Runtime does
    not load the graph.
    """
    runtime = cast(Any, onnxruntime)
    if not isinstance(cast(object, threads), int) or threads < 1:
        raise ConfigurationError(f"threads must be a whole number of at least 1, got {threads!r}.")
    # Nobody who wants the CPU loads a plug-in.
    devices = [] if provider == CPU else plugin_devices(provider)
    if provider != CPU and not devices and provider not in _registered():
        raise ConfigurationError(
            f"ONNX Runtime has no provider {provider!r} here; it has {', '.join(available_providers())}."
        )
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.enable_cpu_mem_arena = arena
    # A refusal to do without the CPU is an answer; ONNX Runtime would also print it as an error.
    options.log_severity_level = 3 if fallback or provider == CPU else 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
    if provider != CPU and not fallback:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = profile_prefix
    if not fused:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if record:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    providers: list[tuple[str, dict[str, str]]] = [(provider, _told(provider, threads))]
    if provider != CPU and fallback:
        providers.append((CPU, {}))
    data = data if provider == CPU else without_unread_inputs(data)
    # Otherwise a provider that fails, now or in a run, is replaced by the CPU with a word to the terminal alone.
    settings: dict[str, Any] = {"enable_fallback": 0}
    disabled = _DISABLED if provider == CPU else _DISABLED + _ELSEWHERE
    try:
        if devices:
            # One device, as plug-ins ask for; ONNX Runtime adds the CPU by itself, unless it may not help.
            options.add_provider_for_devices(devices[:1], _told(provider, threads))
        else:
            settings["providers"] = providers
        session = runtime.InferenceSession(data, options, disabled_optimizers=disabled, **settings)
        ends = (*session.get_inputs(), *session.get_outputs())
        # A profile is of one session, and of its times, not its numbers.
        if profile_prefix is None and any(tensor.type == "tensor(double)" for tensor in ends):
            disabled = disabled + _INEXACT
            session = runtime.InferenceSession(data, options, disabled_optimizers=disabled, **settings)
    except (
        Exception
    ) as error:  # the binding raises classes of its own, one per status code, with no common base but Exception
        raise GraphRefused(
            f"ONNX Runtime cannot load the graph on {provider}: {first_line(error)}", provider=provider
        ) from error
    if provider not in session.get_providers():
        raise GraphRefused(f"ONNX Runtime loaded the graph without {provider}.", provider=provider)
    return cast(Session, session)


def _told(provider: str, threads: int) -> dict[str, str]:
    """What a provider is told beside the session's own options."""
    match provider:
        case "WebGpuExecutionProvider":
            # With channels last, which it takes by itself, weights that are inputs are transposed in every step, and
            # the same bools besides.
            return {"preferredLayout": "NCHW"}
        case "OpenVINOExecutionProvider":
            # It has threads of its own, otherwise as many as the machine has cores.
            return {"num_of_threads": str(threads)}
        case "CUDAExecutionProvider":
            # By itself it rounds the factors of float32 products to ten bits (TF32).
            return {"use_tf32": "0"}
        case _:
            return {}


def assignment(session: Session) -> list[tuple[str, str, str]]:
    """(provider, name, operator) of every node of a session that was opened with ``record``."""
    groups = cast("Sequence[Assigned]", cast(Any, session).get_provider_graph_assignment_info())
    return [(group.ep_name, node.name, node.op_type) for group in groups for node in group.get_nodes()]


def available_providers() -> list[str]:
    """Names of the execution providers of this ONNX Runtime that run graphs on this machine, in its order of
    preference, and of those that installed plug-ins bring.
    """
    plugins = list(library_versions())
    return [*(name for name in _registered() if name not in plugins), *plugins]


@cache
def _load_cuda() -> None:
    """Load CUDA's libraries from the packages of ``onnxruntime-gpu[cuda,cudnn]``, where that is installed: ONNX Runtime
    looks for them in the system's folders alone, and would leave the GPU out.
    """
    runtime = cast(Any, onnxruntime)
    if getattr(runtime, "cuda_version", ""):
        # It prints what it does not find; the session says so again, as an error.
        with redirect_stdout(StringIO()):
            runtime.preload_dlls()


def _registered() -> list[str]:
    """What ONNX Runtime was built with; with a plug-in that is loaded, what that one brings too."""
    _load_cuda()
    # The Azure provider forwards to a web service; it is no place to compute.
    return [str(name) for name in cast(Any, onnxruntime).get_available_providers() if name != "AzureExecutionProvider"]


def runtime_version() -> str:
    """Version of the installed ONNX Runtime."""
    return str(cast(Any, onnxruntime).__version__)


def ortvalue_over(array: NDArray) -> OrtValue:
    """A CPU tensor that shares ``array``'s memory: writing to the array writes to the tensor."""
    return cast(OrtValue, cast(Any, onnxruntime).OrtValue.ortvalue_from_numpy(array))


def ortvalue_in(memory: str, info: TensorInfo) -> OrtValue:
    """A tensor in a device's memory, one of ``MEMORIES``: ``update_inplace`` copies to it, ``numpy`` from it. What it
    holds first is not said.
    """
    made = cast(Any, onnxruntime).OrtValue.ortvalue_from_shape_and_type(info.shape, info.numpy_dtype.type, memory, 0)
    return cast(OrtValue, made)


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
