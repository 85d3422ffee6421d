"""The operators that can be imported, each with its translation into array functions."""

from coterie.compute.onnx.importer import (
    elementwise,
    learners,
    picking,
    recurrent,
    reducing,
    resizing,
    shaping,
    windows,
)
from coterie.compute.onnx.importer.operation import Rule

TRANSLATIONS: dict[str, Rule] = {
    **elementwise.RULES,
    **shaping.RULES,
    **picking.RULES,
    **reducing.RULES,
    **windows.RULES,
    **resizing.RULES,
    **recurrent.RULES,
    **learners.RULES,
}

# Inputs that are no weights: numbers that must be known when the graph is traced, states that begin as constants,
# and what is read for its dtype alone.
KNOWN_INPUTS: dict[str, tuple[int, ...]] = {
    "CastLike": (1,),
    "ConstantOfShape": (0,),
    "Dropout": (1, 2),
    "Expand": (1,),
    "GRU": (4, 5),
    "LSTM": (4, 5, 6),
    "OneHot": (1,),
    "Pad": (1, 2, 3),
    "RNN": (4, 5),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "SequenceAt": (1, 2),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
}
# Running statistics, mean and variance: state, not weights.
STATISTICS: dict[str, tuple[int, int]] = {"BatchNormalization": (3, 4)}
