"""What each execution provider runs of ONNX, as one table: the operators it has, and the forms of them that it refuses.

A provider that is not proven on hardware gets only what its own lists name; a question mark there counts as absent. The
passes of ``legalise`` rewrite a graph until it fits a row, and the writer refuses by name what is left.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

ProviderClass: TypeAlias = Literal["cpu", "gpu", "web", "npu"]

Quirk: TypeAlias = Literal[
    "few_doubles", "single_softmax", "grouped_transpose", "transpose_groups", "mask_products", "vector_addend"
]
"""few_doubles: it has few kernels of float64, and joins operators into ones that it has none for. single_softmax:
its Softmax of float64 has the exponentials of float32, which is 1e-8 off. grouped_transpose:
ConvTranspose in groups of an even number of inputs and one output gives wrong numbers. transpose_groups: ConvTranspose
takes neither groups nor dilations. mask_products: a comparison made a number fails beside the product that it is fused
into. vector_addend: the addend of Gemm has one axis."""


@dataclass(frozen=True, kw_only=True)
class ProviderRow:
    """One provider.

    runtime: its name in ONNX Runtime. operators: all that it runs. constants: positions of inputs that must be
    initialisers, beyond those of every graph. attributes: the only values that it takes of named attributes.
    quirks: what else must be written another way. single: operators that it has no kernel of float64 for and that
    nothing stands in for. ``control`` says whether loops and choices may stay.
    """

    runtime: str
    operators: frozenset[str]
    constants: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    attributes: Mapping[str, Mapping[str, frozenset[object]]] = field(
        default_factory=dict[str, Mapping[str, frozenset[object]]]
    )
    quirks: frozenset[Quirk] = frozenset()
    single: frozenset[str] = frozenset()

    @property
    def control(self) -> bool:
        """Whether it runs If, Loop and Scan."""
        return {"If", "Loop", "Scan"} <= self.operators


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What every list names.
_COMMON = _names(
    "MatMul Conv MaxPool AveragePool Resize Softmax Relu Sigmoid Tanh Exp Sqrt Add Sub Mul Div Max Clip Cast "
    "ReduceSum ReduceMax Transpose Reshape Concat Slice Pad Unsqueeze Tile"
)
_PRODUCTS = _names("Gemm ConvTranspose")
_NUMBERS = _names("Log Min Neg Expand")
_CHOICES = _names("Equal Greater Where Gather")
_FULL = _COMMON | _PRODUCTS | _NUMBERS | _CHOICES | _names("Erf ReduceMean")
_RARE = _names("LogSoftmax Sign OneHot Or Mod Round")
_LOOPS = _names("If Loop Scan")
# What the writer may name that a general provider has besides.
_GENERAL = _names(
    "Abs And Atan ArgMax ArgMin Ceil Cos CumSum Floor Identity Less LessOrEqual GreaterOrEqual Not Pow Reciprocal "
    "ReduceMin ReduceProd Shape Sin Softplus Split Squeeze TopK GatherElements ScatterElements"
)

# The operators that the WebGPU plug-in 0.4.0 registers.
_WEBGPU = _names(
    """Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast Ceil Clip Concat
    Conv ConvTranspose Cos Cosh CumSum DFT DepthToSpace DequantizeLinear Div Einsum Elu Equal Erf Exp Expand Flatten
    Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample
    HardSigmoid HardSwish Identity If InstanceNormalization LSTM LayerNormalization LeakyRelu Less LessOrEqual Log
    LpNormalization MatMul Max MaxPool Min Mul Neg Not PRelu Pad Pow RMSNormalization Range Reciprocal ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize
    RotaryEmbedding ScatterElements ScatterND Shape Sigmoid SimplifiedLayerNormalization Sin Sinh Slice Softmax Softplus
    Split Sqrt Squeeze Sub Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where"""
)

_WHOLE = _FULL | _RARE | _GENERAL | _LOOPS | _names("ScatterND")

_CPU = ProviderRow(
    runtime="CPUExecutionProvider",
    operators=_WHOLE,
    quirks=frozenset({"few_doubles"}),
    # In version 1.24 as in 1.32.
    single=_names("Conv ConvTranspose AveragePool Resize"),
)

PROVIDERS: Mapping[str, ProviderRow] = {
    "cpu": _CPU,
    "wasm": _CPU,
    # In version 1.31, on an H200.
    "cuda": ProviderRow(runtime="CUDAExecutionProvider", operators=_WHOLE, quirks=frozenset({"single_softmax"})),
    "openvino": ProviderRow(runtime="OpenVINOExecutionProvider", operators=_WHOLE),
    "tensorrt": ProviderRow(runtime="TensorrtExecutionProvider", operators=_WHOLE - {"ScatterND"}),
    "webgpu": ProviderRow(
        runtime="WebGpuExecutionProvider", operators=_WEBGPU, quirks=frozenset({"grouped_transpose"})
    ),
    "cann": ProviderRow(
        runtime="CANNExecutionProvider",
        operators=_FULL | _names("If TopK CumSum GatherElements ScatterElements LogSoftmax Sign OneHot"),
    ),
    "qnn": ProviderRow(
        runtime="QNNExecutionProvider",
        # Where and Gather are listed, and failed when the graph was finalised.
        operators=(_COMMON | _PRODUCTS | _NUMBERS)
        | _names("ReduceMean Equal Greater LogSoftmax Sign OneHot Or Mod Round GatherElements ScatterND TopK"),
        quirks=frozenset({"mask_products"}),
    ),
    "coreml": ProviderRow(
        runtime="CoreMLExecutionProvider",
        operators=_COMMON | _PRODUCTS | _names("Erf Gather"),
        constants={"Gemm": (1, 2), "ConvTranspose": (1,), "Conv": (2,)},
        attributes={"Gemm": {"transA": frozenset({0})}},
    ),
    "webnn": ProviderRow(
        runtime="WebNNExecutionProvider",
        operators=_FULL,
        quirks=frozenset({"transpose_groups", "vector_addend"}),
    ),
}


MEMBERS: Mapping[ProviderClass, tuple[str, ...]] = {
    "cpu": ("cpu", "openvino"),
    "gpu": ("cuda", "tensorrt"),
    "web": ("wasm", "webgpu", "webnn"),
    "npu": ("cann", "qnn", "coreml"),
}
"""The providers of each class. OpenVINO's runs on a processor unless it is told otherwise, and nobody tells it."""


def _shared(kind: ProviderClass) -> ProviderRow:
    """What every provider of a class runs."""
    rows = [PROVIDERS[name] for name in MEMBERS[kind]]
    constants: dict[str, tuple[int, ...]] = {}
    attributes: dict[str, Mapping[str, frozenset[object]]] = {}
    for row in rows:
        for operator, places in row.constants.items():
            constants[operator] = tuple(sorted({*constants.get(operator, ()), *places}))
        for operator, limited in row.attributes.items():
            known = attributes.get(operator, {})
            attributes[operator] = {
                **known,
                **{name: values & known.get(name, values) for name, values in limited.items()},
            }
    return ProviderRow(
        runtime=kind,
        operators=frozenset(name for name in rows[0].operators if all(name in row.operators for row in rows)),
        constants=constants,
        attributes=attributes,
        quirks=frozenset(quirk for row in rows for quirk in row.quirks),
        single=frozenset(name for row in rows for name in row.single),
    )


CLASSES: Mapping[ProviderClass, ProviderRow] = {kind: _shared(kind) for kind in MEMBERS}
"""A row for each class: a graph that fits it runs on every provider of the class."""
# "portable" is no provider: files for it hold no loops, and have to run on the CPU, which every runtime falls back on,
# and on GPUs.
_PORTABLE = replace(_CPU, operators=_WHOLE - _LOOPS, quirks=_CPU.quirks | PROVIDERS["cuda"].quirks)
TARGETS: Mapping[str, ProviderRow] = {"portable": _PORTABLE, **CLASSES, **PROVIDERS}
"""What a graph may be written for: anywhere, all providers of a class, or one of them."""


def runs_loops(runtime: str) -> bool:
    """Whether the provider of this name in ONNX Runtime is one that runs If, Loop and Scan."""
    return any(row.runtime == runtime and row.control for row in PROVIDERS.values())


def class_of(runtime: str) -> ProviderClass | None:
    """The class of a provider, by its name in ONNX Runtime; None for one that no row knows."""
    return next((kind for kind, names in MEMBERS.items() if runtime in {PROVIDERS[n].runtime for n in names}), None)


def lacking(
    row: ProviderRow, operator: str, fixed: Set[int], inputs: Sequence[str], attributes: Mapping[str, Any]
) -> str:
    """What a provider lacks to run a node, in words; "" when it runs it. fixed: positions of inputs that are
    initialisers.
    """
    if operator not in row.operators:
        return f"lacks the operator {operator}"
    for position in row.constants.get(operator, ()):
        if position < len(inputs) and position not in fixed:
            return f"takes operand {position} of {operator} only as a constant"
    for name, values in row.attributes.get(operator, {}).items():
        if name in attributes and attributes[name] not in values:
            return f"takes {operator} only with {name} in {sorted(map(str, values))}"
    return ""
