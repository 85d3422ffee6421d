"""The operators that can be imported, each with its translation into array functions."""

from coterie.compute.onnx.importer import elementwise, reducing, shaping, windows
from coterie.compute.onnx.importer.operation import Rule

TRANSLATIONS: dict[str, Rule] = {**elementwise.RULES, **shaping.RULES, **reducing.RULES, **windows.RULES}

# Inputs whose numbers must be known when the graph is traced; a float tensor that only stands there is no parameter.
KNOWN_INPUTS: dict[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,),
    "Dropout": (1, 2),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "Trilu": (1,),
}
# Running statistics: state, not weights.
STATISTICS: dict[str, tuple[int, ...]] = {"BatchNormalization": (3, 4)}
