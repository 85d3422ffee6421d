"""Each operator on parts of the rows is the operator on all of them, or is refused by name."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from coterie.compute.onnx.operators import OPERATORS
from coterie.compute.onnx.spread.placement import Unspreadable, rows
from coterie.compute.onnx.spread.rules import RULES, regrouped
from coterie.compute.runtime.executable import Executable
from tests.compute.spread.in_turn import InTurn

Array = NDArray[Any]
ROWS = 6
CONSTANT, BATCH, WHOLE = "constant", "batch", "whole"


@dataclass(frozen=True)
class Case:
    """A node. inputs: of each, what it is and its value: rows of the batch lie on axis 0, or where it is turned to.

    turned: of inputs by their place, how they are transposed after the batch is cut.
    """

    operator: str
    inputs: tuple[tuple[str, Array], ...]
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    turned: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def whole(*values: int) -> Array:
    return np.array(values, np.int64)


def ids(most: int, *shape: int) -> Array:
    return np.random.default_rng(len(shape)).integers(0, most, shape)


B, W, C = BATCH, WHOLE, CONSTANT
SHARED: dict[str, Case] = {
    "one for all rows": Case("Add", ((B, numbers(ROWS, 3)), (W, numbers(3)))),
    "one of each row": Case("Mul", ((B, numbers(ROWS, 3)), (W, numbers(ROWS, 1)))),
    "a constant of each row": Case("Sub", ((B, numbers(ROWS, 3)), (C, numbers(ROWS, 3)))),
    "broadcast to the rows": Case("Add", ((B, numbers(ROWS, 3)), (W, numbers(1, 3)))),
    "on another axis": Case("Add", ((B, numbers(ROWS, 3)), (W, numbers(2, 3, ROWS))), turned={0: (1, 0)}),
    "as large as the batch by chance": Case("Mul", ((B, numbers(ROWS, ROWS)), (W, numbers(ROWS)))),
    "a choice": Case("Where", ((B, numbers(ROWS, 3) > 0), (W, numbers(ROWS, 3)), (C, numbers(1)))),
    "a product": Case("MatMul", ((B, numbers(ROWS, 3)), (W, numbers(3, 4)))),
    "products in pairs": Case("MatMul", ((B, numbers(ROWS, 2, 3)), (W, numbers(ROWS, 3, 4)))),
    "products with one": Case("MatMul", ((B, numbers(ROWS, 2, 3)), (W, numbers(1, 3, 4)))),
    "a product over rows": Case("MatMul", ((B, numbers(ROWS, 3)), (W, numbers(ROWS, 4))), turned={0: (1, 0)}),
    "a product over two sets of rows": Case("Gemm", ((B, numbers(ROWS, 3)), (B, numbers(ROWS, 2))), {"transA": 1}),
    "a product over rows and a sum": Case(
        "Gemm", ((B, numbers(ROWS, 3)), (W, numbers(ROWS, 2)), (W, numbers(3, 2))), {"transA": 1, "beta": 0.5}
    ),
    "a product with columns of rows": Case(
        "Gemm", ((W, numbers(4, 3)), (B, numbers(ROWS, 3)), (W, numbers(4, ROWS))), {"transB": 1}
    ),
    "what is added has the rows": Case("Gemm", ((W, numbers(ROWS, 2)), (W, numbers(2, 3)), (B, numbers(ROWS, 3)))),
    "a convolution": Case("Conv", ((B, numbers(ROWS, 2, 5)), (W, numbers(4, 2, 3)), (W, numbers(4)))),
    "a convolution over rows": Case(
        "Conv", ((B, numbers(ROWS, 2, 5)), (W, numbers(4, ROWS, 3)), (W, numbers(4))), turned={0: (1, 0, 2)}
    ),
    "filters of rows": Case("Conv", ((W, numbers(2, 3, 5)), (B, numbers(ROWS, 3, 3)), (W, numbers(ROWS)))),
    "groups of rows": Case(
        "Conv", ((B, numbers(ROWS, 2, 5)), (W, numbers(ROWS, 1, 3))), {"group": ROWS}, turned={0: (1, 0, 2)}
    ),
    "a transposed convolution": Case("ConvTranspose", ((B, numbers(ROWS, 2, 5)), (W, numbers(2, 3, 3)))),
    "a transposed convolution over rows": Case(
        "ConvTranspose", ((B, numbers(ROWS, 2, 5)), (W, numbers(ROWS, 3, 3))), turned={0: (1, 0, 2)}
    ),
    "a transposed convolution of groups": Case(
        "ConvTranspose", ((B, numbers(ROWS, 2, 5)), (W, numbers(ROWS, 1, 3))), {"group": ROWS}, turned={0: (1, 0, 2)}
    ),
    "windows": Case("MaxPool", ((B, numbers(ROWS, 2, 6)),), {"kernel_shape": [2], "strides": [2]}),
    "a sum over rows": Case("ReduceSum", ((B, numbers(ROWS, 3)), (C, whole(0))), {"keepdims": 0}),
    "a sum over the others": Case("ReduceSum", ((B, numbers(ROWS, 3)), (C, whole(-1))), {"keepdims": 0}),
    "a sum over what comes before": Case(
        "ReduceSum", ((B, numbers(ROWS, 3)), (C, whole(0))), {"keepdims": 0}, turned={0: (1, 0)}
    ),
    "the largest of a row": Case("ReduceMax", ((B, numbers(ROWS, 3)),), {"axes": [1], "keepdims": 0}),
    "softmax of a row": Case("Softmax", ((B, numbers(ROWS, 3)),), {"axis": -1}),
    "sums along a row": Case("CumSum", ((B, numbers(ROWS, 3)), (C, np.array(1)))),
    "a table": Case("Gather", ((W, numbers(9, 4)), (B, ids(9, ROWS, 2)))),
    "columns of rows": Case("Gather", ((B, numbers(ROWS, 4)), (W, ids(4, 2, 3))), {"axis": 1}),
    "an element of each row": Case("GatherElements", ((W, numbers(ROWS, 4)), (B, ids(4, ROWS, 1))), {"axis": 1}),
    "elements of a table": Case("GatherElements", ((W, numbers(9, 2)), (B, ids(9, ROWS, 2))), {"axis": 0}),
    "added into a table": Case(
        "ScatterElements",
        ((W, numbers(9, 2)), (B, ids(9, ROWS, 2)), (B, numbers(ROWS, 2))),
        {"axis": 0, "reduction": "add"},
    ),
    "added into each row": Case(
        "ScatterElements",
        ((W, numbers(ROWS, 4)), (B, ids(4, ROWS, 2)), (B, numbers(ROWS, 2))),
        {"axis": 1, "reduction": "add"},
    ),
    "columns beside each other": Case("Concat", ((B, numbers(ROWS, 3)), (W, numbers(ROWS, 2))), {"axis": 1}),
    "blocks of rows": Case("Concat", ((B, numbers(ROWS, 3)), (W, numbers(2 * ROWS, 3))), {"axis": 0}),
    "more of each row": Case("Expand", ((B, numbers(ROWS, 1)), (C, whole(2, ROWS, 3)))),
    "more columns": Case("Pad", ((B, numbers(ROWS, 3)), (C, whole(0, 1, 0, 2)), (C, np.array(7, np.float32)))),
    "blocks before and behind": Case("Pad", ((B, numbers(ROWS, 3)), (C, whole(ROWS, 0, 2 * ROWS, 0)))),
    "columns": Case("Slice", ((B, numbers(ROWS, 5)), (C, whole(-4)), (C, whole(9)), (C, whole(1)), (C, whole(2)))),
    "two axes made one": Case("Reshape", ((B, numbers(ROWS, 2, 3)), (C, whole(-1, 3)))),
    "blocks of two rows": Case("Reshape", ((B, numbers(ROWS, 2)), (C, whole(3, 4)))),
    "times made one axis with rows": Case(
        "Reshape", ((B, numbers(ROWS, 4, 3)), (C, whole(4 * ROWS, 3))), turned={0: (1, 0, 2)}
    ),
    "blocks made of columns": Case("Reshape", ((B, numbers(ROWS, 4)), (C, whole(2, 12))), turned={0: (1, 0)}),
    "a new axis": Case("Unsqueeze", ((B, numbers(ROWS, 3)), (C, whole(0, -1)))),
    "twice as many places": Case(
        "Resize",
        ((B, numbers(ROWS, 2, 3)), (C, np.zeros(0, np.float32)), (C, np.array([1, 1, 2], np.float32))),
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
}
REFUSED: dict[str, Case] = {
    "rows with rows": Case("Sub", ((B, numbers(ROWS, 1)), (B, numbers(ROWS, 1))), turned={1: (1, 0)}),
    "the largest row": Case("ReduceMax", ((B, numbers(ROWS, 3)),), {"axes": [0]}),
    "softmax over rows": Case("Softmax", ((B, numbers(ROWS, 3)),), {"axis": 0}),
    "sums along rows": Case("CumSum", ((B, numbers(ROWS, 3)), (C, np.array(0)))),
    "some rows": Case("Slice", ((B, numbers(ROWS, 3)), (C, whole(1)), (C, whole(4)), (C, whole(0)))),
    "every other row": Case(
        "Slice", ((B, numbers(ROWS, 3)), (C, whole(0)), (C, whole(9)), (C, whole(0)), (C, whole(2)))
    ),
    "rows by number": Case("Gather", ((B, numbers(ROWS, 4)), (W, ids(ROWS, 3)))),
    "a row more": Case("Pad", ((B, numbers(ROWS, 3)), (C, whole(1, 0, 0, 0)))),
    "one row behind": Case("Concat", ((B, numbers(ROWS, 3)), (W, numbers(1, 3))), {"axis": 0}),
    "every row with every row": Case("MatMul", ((B, numbers(ROWS, 3)), (B, numbers(ROWS, 3))), turned={1: (1, 0)}),
    "windows over rows": Case("MaxPool", ((B, numbers(ROWS, 2, 3)),), {"kernel_shape": [2]}, turned={0: (1, 2, 0)}),
    "rows inside of columns": Case("Reshape", ((B, numbers(ROWS, 4)), (C, whole(3, 8))), turned={0: (1, 0)}),
}


def file_of(case: Case) -> tuple[bytes, dict[str, Array], list[str]]:
    """A graph whose results know every element of the node's result by its place; its feeds; those that are cut."""
    names = [f"x{place}" for place in range(len(case.inputs))]
    nodes, read = list[Any](), list(names)
    for place, perm in case.turned.items():
        nodes.append(helper.make_node("Transpose", [names[place]], [f"turned{place}"], perm=perm))
        read[place] = f"turned{place}"
    nodes.append(helper.make_node(case.operator, read, ["made"], **case.attributes))
    feeds = {name: value for name, (kind, value) in zip(names, case.inputs, strict=True) if kind != CONSTANT}
    constants = [
        numpy_helper.from_array(np.asarray(value), name)
        for name, (kind, value) in zip(names, case.inputs, strict=True)
        if kind == CONSTANT
    ]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]

    def file(results: list[Any], more: list[Any], given: list[Any]) -> bytes:
        graph = helper.make_graph([*nodes, *more], "case", [*inputs, *given], results, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return model.SerializeToString()

    made = helper.make_tensor_value_info("made", TensorProto.FLOAT, None)
    shape = np.shape(_first(file([made], [], []), feeds))
    weight = helper.make_tensor_value_info("weight", TensorProto.FLOAT, shape)
    total = helper.make_tensor_value_info("total", TensorProto.FLOAT, [1])
    marked = [
        helper.make_node("Mul", ["made", "weight"], ["marked"]),
        helper.make_node("ReduceSum", ["marked", "axes"], ["summed"], keepdims=1),
        helper.make_node("Reshape", ["summed", "one"], ["total"]),
    ]
    constants += [numpy_helper.from_array(whole(*range(len(shape))), "axes"), numpy_helper.from_array(whole(1), "one")]
    batch = [name for name, (kind, _) in zip(names, case.inputs, strict=True) if kind == BATCH]
    return file([total], marked, [weight]), {**feeds, "weight": numbers(*shape)}, batch


def _first(data: bytes, feeds: dict[str, Array]) -> Array:
    import onnxruntime  # pyright: ignore[reportMissingTypeStubs]  of a shape that nobody has said

    session: Any = onnxruntime.InferenceSession(data)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
    return session.run(None, feeds)[0]


def test_every_operator_of_a_plan_has_a_rule() -> None:
    assert RULES.keys() == OPERATORS.keys()


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("name", SHARED)
def test_parts_of_the_rows_give_what_all_give(name: str, processes: int) -> None:
    data, feeds, batch = file_of(SHARED[name])
    found = InTurn(data, batch=batch, processes=processes).run(feeds)
    np.testing.assert_allclose(found["total"], Executable(data).run(feeds)["total"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_all_rows_is_refused_by_name(name: str) -> None:
    data, _, batch = file_of(REFUSED[name])
    with pytest.raises(
        Unspreadable, match=rf"'made' \({REFUSED[name].operator}\) takes rows of the batch together"
    ) as caught:
        InTurn(data, batch=batch, processes=2)
    assert caught.value.reason == "not_spreadable"


def test_where_rows_are_after_a_change_of_shape() -> None:
    assert regrouped((6, 4), rows(0), (1, 6, 2, 2)) == rows(1)
    assert regrouped((5, 6, 4), rows(1), (30, 4)) == rows(0, 5)
    assert regrouped((30, 4), rows(0, 5), (5, 6, 4)) == rows(1)
    assert regrouped((5, 6, 4), rows(1), (5, 24)) == rows(1)
    assert regrouped((4, 6), rows(1), (2, 12)) == rows(1, 2)
    assert regrouped((4, 6), rows(1), (3, 8)) is None
