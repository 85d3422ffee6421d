"""The operators that a graph may hold, as one table.

A row exists for an operator that stock ONNX Runtime trains with on several providers and whose output shape follows
from constants alone; it is what the writer emits. The table is the security boundary of a plan: what is not here does
not run on a device.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OperatorRule:
    """What a node of one operator may look like, beyond the operator's own schema.

    outputs: how many it has, neither more nor fewer.
    constants: positions of the inputs that must be initialisers, because the output's shape, or a provider's kernel,
    depends on their values. attributes: the allowed values of named attributes.
    """

    constants: tuple[int, ...] = ()
    attributes: Mapping[str, frozenset[object]] | None = None
    outputs: int = 1


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
