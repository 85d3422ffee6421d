"""What nodes say of themselves must fit their operands: the checker refuses what a runtime would find out in a run."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from coterie.compute.array import Array, bind
from coterie.compute.ir import NDArray
from coterie.compute.onnx.checker import GraphLimits, check_graph
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.trace import TensorSpec, trace
from coterie.errors import GraphRefused

FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32


def numbers(*values: int) -> NDArray:
    return np.asarray(values, np.int64)


def graph(
    operator: str,
    inputs: dict[str, tuple[int, list[int]] | NDArray],
    out: list[int],
    dtype: int = FLOAT,
    **attributes: Any,
) -> bytes:
    """A graph of one node, whose inputs are graph inputs (element type and shape) or initialisers."""
    outputs = ["y", "places"] if operator == "TopK" else ["y"]
    made = helper.make_graph(
        [helper.make_node(operator, list(inputs), outputs, **attributes)],
        "one",
        [helper.make_tensor_value_info(name, *x) for name, x in inputs.items() if isinstance(x, tuple)],
        [helper.make_tensor_value_info("y", dtype, out)],
        [numpy_helper.from_array(x, name) for name, x in inputs.items() if not isinstance(x, tuple)],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


X: dict[str, tuple[int, list[int]] | NDArray] = {"x": (FLOAT, [4, 6])}
IMAGE: dict[str, tuple[int, list[int]] | NDArray] = {"x": (FLOAT, [1, 4, 6, 6]), "w": (FLOAT, [4, 4, 3, 3])}
MASK, PLACES = X | {"i": (INT64, [2, 6])}, X | {"i": (INT64, [9, 9])}
UPDATES = {"u": (FLOAT, [2, 6])}
HUGE = 2**40  # shape inference takes it for 0

ALLOWED: list[tuple[str, Any, list[int], dict[str, Any]]] = [
    ("Conv", IMAGE, [1, 4, 4, 4], {"group": 1}),
    ("MaxPool", {"x": (FLOAT, [1, 1, 6, 6])}, [1, 1, 7, 7], {"kernel_shape": [2, 2], "pads": [1] * 4}),
    ("GatherElements", MASK, [2, 6], {"axis": -2}),
    ("ScatterElements", MASK | UPDATES, [4, 6], {"axis": 0, "reduction": "add"}),
    ("CumSum", X | {"a": np.asarray(-1)}, [4, 6], {"reverse": 1}),
    ("Softmax", X, [4, 6], {"axis": -1}),
    ("Clip", X | {"low": np.zeros((), np.float32)}, [4, 6], {}),
]

REFUSED: list[tuple[str, Any, list[int], dict[str, Any], str]] = [
    ("Conv", IMAGE, [1, 4, 4, 4], {"group": 0}, "group 0 does not divide 4 channels"),
    ("Conv", IMAGE, [1, 4, 4, 4], {"group": -1}, "group -1"),
    ("Conv", IMAGE, [1, 4, 4, 4], {"group": 2}, "group 2"),
    ("Conv", IMAGE, [1, 4, 4, 4], {"group": -(2**63)}, "beyond 2147483647"),
    ("Conv", IMAGE, [1, 4, 5, 5], {"kernel_shape": [2, 2]}, "is not that of a window"),
    ("Conv", IMAGE | {"b": (FLOAT, [3])}, [1, 4, 4, 4], {}, "a bias of shape"),
    ("ConvTranspose", IMAGE, [1, 4, 9, 9], {"output_shape": [9, 9]}, "output_shape"),
    (
        "ConvTranspose",
        {"x": (FLOAT, [1, 1, 4096, 1]), "w": (FLOAT, [1, 1, 4096, 4096])},
        [1, 1, 8191, 4096],
        {},
        "68719476736 elements of work space",
    ),
    ("MaxPool", {"x": (FLOAT, [1, 1, 6, 6])}, [1, 1, 15, 15], {"kernel_shape": [2, 2], "pads": [5] * 4}, "pads"),
    ("AveragePool", {"x": (FLOAT, [1, 1, 6, 6])}, [1, 1, 9, 9], {"kernel_shape": [2, 2], "pads": [2] * 4}, "pads"),
    ("Softmax", X, [4, 6], {"axis": HUGE}, "axis is beyond"),
    ("Concat", X, [4, 6], {"axis": -HUGE}, "axis is beyond"),
    ("Gather", X | {"i": (INT64, [2])}, [2, 6], {"axis": HUGE}, "axis is beyond"),
    ("GatherElements", MASK, [2, 6], {"axis": 2}, "axis 2 does not exist in 2 axes"),
    ("GatherElements", PLACES, [9, 9], {}, "do not fit into"),
    ("ScatterElements", MASK | UPDATES, [4, 6], {"axis": -3, "reduction": "add"}, "axis -3 does not exist"),
    ("ScatterElements", MASK | {"u": (FLOAT, [1, 1])}, [4, 6], {"reduction": "add"}, "updates of shape"),
    ("CumSum", X | {"a": np.asarray(2)}, [4, 6], {}, "its axis is not one of 2 axes"),
    ("CumSum", X | {"a": numbers(0, 1)}, [4, 6], {}, "its axis is not one of 2 axes"),
    ("CumSum", X | {"a": np.asarray(0)}, [4, 6], {"reverse": -3}, "reverse=-3"),
    ("Transpose", X, [4], {"perm": [0]}, "perm [0] is no order of 2 axes"),
    ("Clip", X | {"low": np.zeros(2, np.float32)}, [4, 6], {}, "a bound of shape [2]"),
    ("Pad", X | {"pads": numbers(9, 9, 9, 9)}, [22, 24], {"mode": "reflect"}, "mode='reflect'"),
    ("TopK", X | {"k": numbers(7)}, [4, 7], {}, "do not fit"),
]


@pytest.mark.parametrize(("operator", "inputs", "out", "attributes"), ALLOWED, ids=[row[0] for row in ALLOWED])
def test_what_fits_is_allowed(operator: str, inputs: Any, out: list[int], attributes: dict[str, Any]) -> None:
    check_graph(graph(operator, inputs, out, **attributes))


@pytest.mark.parametrize(
    ("operator", "inputs", "out", "attributes", "reason"), REFUSED, ids=[f"{row[0]} {row[4]}" for row in REFUSED]
)
def test_what_only_a_run_would_find_out_is_refused(
    operator: str, inputs: Any, out: list[int], attributes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(GraphRefused) as refused:
        check_graph(graph(operator, inputs, out, **attributes))
    assert reason in str(refused.value)


def test_work_space_counts_towards_the_tensors() -> None:
    data = graph("ConvTranspose", {"x": (FLOAT, [1, 4, 6, 6]), "w": (FLOAT, [4, 2, 3, 3])}, [1, 2, 8, 8])
    elements, space = 4 * 36 + 8 * 9 + 128, 2 * 9 * 36
    check_graph(data, limits=GraphLimits(total_elements=elements + space))
    with pytest.raises(GraphRefused, match="elements together"):
        check_graph(data, limits=GraphLimits(total_elements=elements + space - 1))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_quotients_of_integers_are_written_so_that_their_divisor_is_seen_to_be_safe(dtype: str) -> None:
    def quotient(x: Array, y: Array) -> Array:
        return bind("floor_divide", x, y)

    data = to_onnx(trace(quotient, *[TensorSpec((3,), dtype)] * 2).graph, name="quotient")
    check_graph(data)
    model = onnx.load_from_string(data)
    for node in model.graph.node:
        if node.op_type == "Equal":
            node.input[0] = "0"  # the choice no longer looks at the divisor
    with pytest.raises(GraphRefused, match="Div: its divisor may be 0, which stops the process"):
        check_graph(model.SerializeToString())


@pytest.mark.parametrize(("divisor", "reason"), [([2, 0], "may be 0"), ([3, -1], "may be -1"), ([2, 3], "")])
def test_integers_are_divided_by_known_numbers_but_0_and_minus_1(divisor: list[int], reason: str) -> None:
    data = graph("Div", {"x": (INT32, [2]), "d": np.asarray(divisor, np.int32)}, [2], INT32)
    if not reason:
        check_graph(data)
        return
    with pytest.raises(GraphRefused, match=reason):
        check_graph(data)
