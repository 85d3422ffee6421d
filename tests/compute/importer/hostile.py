"""What the importer may do with any bytes: run them, or refuse them with an error of coterie's, in little time."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, defs, helper, numpy_helper

from coterie.compute.onnx import load
from coterie.compute.onnx.importer import learners
from coterie.compute.onnx.importer.table import TRANSLATIONS
from coterie.errors import InputError

MOST = 200_000  # elements of an input that a test makes
LEARNERS = {*learners.RULES, *learners.WRITTEN_OUT}
OPERATORS = sorted({*TRANSLATIONS, *LEARNERS})
ATTRIBUTES: dict[str, list[Any]] = {
    "axis": [-3, -1, 0, 1, 2, 7],
    "axes": [[0], [-1, 1], [5]],
    "perm": [[1, 0], [0, 2, 1], [0, 0], [3, 1, 2, 0]],
    "kernel_shape": [[2, 2], [1], [0, 3], [3, 3, 3]],
    "strides": [[1, 1], [2], [0, 0], [-1, 2]],
    "pads": [[1, 1, 1, 1], [0, 1], [-1, 0, 0, 2]],
    "keepdims": [0, 1],
    "to": [1, 7, 9, 16, 99],
    "hidden_size": [2, 3, -1],
    "num_outputs": [1, 2, 0],
    "equation": ["ij,jk->ik", "ii", "a,->", "…"],
    "blocksize": [0, 1, 2],
    "num_groups": [0, 1, 2],
    "coefficients": [[1.0, 2.0, 3.0, 4.0], [1.0]],
    "classlabels_ints": [[0, 1], [0]],
    "mode": ["constant", "DCR", "\0", "reflect", "linear"],
    "batch_dims": [0, 1, -1, 5],
    "reduction": ["none", "add", "max"],
    "coordinate_transformation_mode": ["asymmetric", "align_corners", "tf_crop_and_resize"],
    "direction": ["forward", "bidirectional", "up"],
    "group": [1, 2, 0],
    "epsilon": [1e-5, 0.0, -1.0],
    "transB": [0, 1],
    "p": [1, 2, 3],
    "output_shape": [[4, 4], [9], [-1, 2], [2**20, 2**20]],
    "auto_pad": ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", "ANY"],
    "exclusive": [0, 1],
    "reverse": [0, 1],
}
SHAPES: list[tuple[int, ...]] = [(), (1,), (4,), (2, 4), (4, 4), (2, 2, 4), (1, 2, 4, 4), (0,), (1, 6, 4), (1, 6, 2)]


def attempt(data: bytes) -> str:
    """Load the bytes and run what they are: "ran", or "refused" when the importer or the model says no. Everything
    else that is raised is a fault of the importer.
    """
    with np.errstate(all="ignore"):
        try:
            model = load(data)
            inputs = [_ones(given.sizes, given.dtype) for given in model.inputs]
            if all(array is not None for array in inputs):
                model(model.parameters, *(array for array in inputs if array is not None))
        except InputError as error:
            if not error.message:
                raise
            return "refused"
    return "ran"


def _ones(sizes: tuple[int | str | None, ...], dtype: str) -> Any:
    shape = [size if isinstance(size, int) else 2 for size in sizes]
    return np.ones(shape, dtype) if prod(shape) <= MOST else None


def drawn_graph(choose: Callable[[int], int]) -> bytes:
    """A graph of a few nodes out of operators, with operands and attributes that each may have and that rarely fit.
    choose(n): 0 ≤ … < n.
    """
    held: dict[str, TensorProto] = {}
    for index in range(4):
        shape = SHAPES[choose(len(SHAPES))]
        kind = (np.float32, np.float32, np.int64, np.bool_)[choose(4)]
        numbers = np.arange(prod(shape)).reshape(shape) % (choose(5) + 1)
        held[f"c{index}"] = numpy_helper.from_array(np.asarray(numbers, kind), f"c{index}")
    opset, names, nodes = 13 + choose(9), ["x", *held], list[NodeProto]()
    for index in range(1 + choose(4)):
        operator = OPERATORS[choose(len(OPERATORS))]
        domain = learners.DOMAIN if operator in LEARNERS else ""
        if not defs.has(operator, 3 if domain else opset, domain):
            continue
        schema = defs.get_schema(operator, 3 if domain else opset, domain)
        most = min(schema.max_input, schema.min_input + 3)
        given = [names[choose(len(names))] for _ in range(schema.min_input + choose(most - schema.min_input + 1))]
        chosen = [key for key in ATTRIBUTES if key in schema.attributes and choose(3)]
        attributes = {key: ATTRIBUTES[key][choose(len(ATTRIBUTES[key]))] for key in chosen}
        outputs = [f"t{index}", f"u{index}"][: min(1 + choose(2), schema.max_output)]
        nodes.append(helper.make_node(operator, given, outputs, domain=domain, **attributes))
        names += outputs
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPES[choose(len(SHAPES))])
    y = helper.make_empty_tensor_value_info(names[-1])
    graph = helper.make_graph(nodes, "drawn", [x], [y], list(held.values()))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(learners.DOMAIN, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
