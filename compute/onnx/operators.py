"""The operators that a graph may hold, as one table.

A row exists for an operator that the writer emits, that stock ONNX Runtime trains with on several providers, and whose
shapes follow from constants alone. The table is the security boundary of a plan: what is not here does not run on a
device.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OperatorRule:
    """What a node of one operator may look like.

    constants: positions of the inputs that must be initialisers, because the output's shape, or a provider's kernel,
    depends on their values. outputs: how many outputs it may have at most. attributes: allowed values of string and
    integer attributes; an attribute that is not listed here is bounded by the operator's own schema.
    """

    constants: tuple[int, ...] = ()
    outputs: int = 1
    attributes: Mapping[str, frozenset[object]] | None = None


PLAIN = OperatorRule()
SHAPED = OperatorRule(constants=(1,))
NO_AUTO_PAD = OperatorRule(attributes={"auto_pad": frozenset({"NOTSET"})})

OPERATORS: Mapping[str, OperatorRule] = {
    # elementwise
    **dict.fromkeys(
        (
            "Abs",
            "Add",
            "And",
            "Cast",
            "Ceil",
            "Div",
            "Equal",
            "Erf",
            "Exp",
            "Floor",
            "Greater",
            "GreaterOrEqual",
            "Identity",
            "Less",
            "LessOrEqual",
            "Log",
        ),
        PLAIN,
    ),
    **dict.fromkeys(
        (
            "Max",
            "Min",
            "Mul",
            "Neg",
            "Not",
            "Or",
            "Pow",
            "Reciprocal",
            "Relu",
            "Sigmoid",
            "Sign",
            "Softplus",
            "Sqrt",
            "Sub",
            "Tanh",
            "Where",
            "Xor",
        ),
        PLAIN,
    ),
    "Cos": PLAIN,
    "Sin": PLAIN,
    "Clip": OperatorRule(constants=(1, 2)),
    # products
    "MatMul": PLAIN,
    "Gemm": PLAIN,
    "Conv": NO_AUTO_PAD,
    "ConvTranspose": NO_AUTO_PAD,
    # windows; MaxPool's second output (indices) fails late on several providers
    "MaxPool": NO_AUTO_PAD,
    "AveragePool": NO_AUTO_PAD,
    "GlobalAveragePool": PLAIN,
    "Resize": OperatorRule(constants=(1, 2, 3), attributes={"mode": frozenset({"nearest"})}),
    # reductions
    "ReduceSum": SHAPED,
    "ReduceMax": PLAIN,
    "ReduceMin": PLAIN,
    "ReduceMean": PLAIN,
    "ReduceProd": PLAIN,
    "ArgMax": PLAIN,
    "Softmax": PLAIN,
    "LogSoftmax": PLAIN,
    # shapes
    "Concat": PLAIN,
    "Expand": SHAPED,
    "Flatten": PLAIN,
    "Pad": OperatorRule(constants=(1, 2)),
    "Reshape": SHAPED,
    "Slice": OperatorRule(constants=(1, 2, 3, 4)),
    "Split": OperatorRule(constants=(1,), outputs=1024),
    "Squeeze": SHAPED,
    "Tile": SHAPED,
    "Transpose": PLAIN,
    "Trilu": SHAPED,
    "Unsqueeze": SHAPED,
    # indexing; a scatter without a reduction has no defined result for repeated indices
    "Gather": PLAIN,
    "GatherElements": PLAIN,
    "ScatterElements": OperatorRule(attributes={"reduction": frozenset({"add"})}),
    "ScatterND": OperatorRule(attributes={"reduction": frozenset({"add"})}),
}
