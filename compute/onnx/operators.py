"""The operators that a graph may hold, as one table.

A row exists for an operator that stock ONNX Runtime trains with on several providers and whose output shape follows
from constants alone; it is what the writer emits. The table is the security boundary of a plan: what is not here does
not run on a device.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.compute.onnx.providers import CLASSES, ProviderClass


@dataclass(frozen=True, kw_only=True)
class OperatorRule:
    """What a node of one operator may look like, beyond the operator's own schema.

    outputs: how many it has, neither more nor fewer; None where the graphs inside say it.
    graphs: the attributes that are graphs, each of which it has.
    constants: positions of the inputs that must be initialisers, because the output's shape, or a provider's kernel,
    depends on their values. attributes: the allowed values of named attributes.
    """

    constants: tuple[int, ...] = ()
    attributes: Mapping[str, frozenset[object]] | None = None
    outputs: int | None = 1
    graphs: tuple[str, ...] = ()


PLAIN = OperatorRule()
SHAPED = OperatorRule(constants=(1,))
WINDOW = OperatorRule(attributes={"auto_pad": frozenset({"NOTSET"})})

OPERATORS: Mapping[str, OperatorRule] = {
    # elementwise
    "Add": PLAIN,
    "Cast": PLAIN,
    "Clip": OperatorRule(constants=(1, 2)),
    "Div": PLAIN,
    "Equal": PLAIN,
    "Exp": PLAIN,
    "Greater": PLAIN,
    "Log": PLAIN,
    "Max": PLAIN,
    "Min": PLAIN,
    "Mul": PLAIN,
    "Relu": PLAIN,
    "Sigmoid": PLAIN,
    "Sqrt": PLAIN,
    "Sub": PLAIN,
    "Tanh": PLAIN,
    "Where": PLAIN,
    # elementwise; not in the table of Qualcomm's NPU, of CoreML or of a browser's WebNN. CPU, CUDA, OpenVINO and WebGPU
    # have them.
    "Atan": PLAIN,
    "Cos": PLAIN,
    "Erf": PLAIN,
    "Floor": PLAIN,
    "Pow": PLAIN,
    "Sin": PLAIN,
    # products
    "Conv": WINDOW,
    # The size of its output follows from padding, as shape inference reads it.
    "ConvTranspose": OperatorRule(attributes={"auto_pad": frozenset({"NOTSET"}), "output_shape": frozenset()}),
    "Gemm": PLAIN,
    "MatMul": PLAIN,
    # windows
    "AveragePool": WINDOW,
    "MaxPool": WINDOW,
    "Resize": OperatorRule(
        constants=(1, 2, 3),
        attributes={
            "mode": frozenset({"nearest"}),
            "coordinate_transformation_mode": frozenset({"asymmetric"}),
            "nearest_mode": frozenset({"floor"}),
        },
    ),
    # reductions
    "ReduceMax": SHAPED,
    "ReduceSum": SHAPED,
    "Softmax": PLAIN,
    # along an axis; not on CoreML and WebNN
    "CumSum": OperatorRule(constants=(1,), attributes={"exclusive": frozenset({0}), "reverse": frozenset({0, 1})}),
    "TopK": OperatorRule(constants=(1,), outputs=2),
    # indexing; not on CoreML, ScatterElements not on Qualcomm's NPU either. WebGPU gathers floats alone.
    "GatherElements": PLAIN,
    "ScatterElements": OperatorRule(attributes={"reduction": frozenset({"add"})}),
    # shapes and indexing
    "Concat": PLAIN,
    "Expand": SHAPED,
    "Gather": PLAIN,
    "Pad": OperatorRule(constants=(1, 2), attributes={"mode": frozenset({"constant"})}),
    "Reshape": SHAPED,
    "Slice": OperatorRule(constants=(1, 2, 3, 4)),
    "Transpose": PLAIN,
    "Unsqueeze": SHAPED,
}

# Only in files for a class of providers that runs them. The steps of a Scan are the size of an axis; those of a Loop
# may depend on data, so it is in no list.
_CONTROL: Mapping[str, OperatorRule] = {
    "Identity": PLAIN,
    "If": OperatorRule(outputs=None, graphs=("then_branch", "else_branch")),
    "Scan": OperatorRule(
        outputs=None,
        graphs=("body",),
        attributes={"scan_input_axes": frozenset(), "scan_output_axes": frozenset()},
    ),
}


def operators_of(kind: ProviderClass | None) -> Mapping[str, OperatorRule]:
    """The operators that a graph for a class of providers may hold; None for the portable ones."""
    if kind is None:
        return OPERATORS
    row = CLASSES[kind]
    known = {**OPERATORS, **_CONTROL} if row.control else OPERATORS
    return {name: rule for name, rule in known.items() if name in row.operators}
