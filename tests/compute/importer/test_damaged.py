"""Damaged and hostile files: each is refused by name, never by an exception from inside, and opens no other file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from coterie.compute.ir import NDArray
from coterie.compute.onnx import load
from coterie.compute.onnx.importer import model as importer_model
from coterie.errors import GraphRefused, InputError

FLOAT = TensorProto.FLOAT
X = np.arange(6, dtype=np.float32).reshape(2, 3)
node = helper.make_node


def model(
    nodes: Sequence[NodeProto],
    shape: Sequence[int] = (2, 3),
    functions: Sequence[Any] = (),
    tensors: Sequence[TensorProto] = (),
    **constants: NDArray | Sequence[int],
) -> bytes:
    """A graph from x to y."""
    given = [helper.make_tensor_value_info("x", FLOAT, shape)]
    result = [helper.make_tensor_value_info("y", FLOAT, None)]
    held = [*tensors, *(numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items())]
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid("mine", 1)] if functions else [])
    graph = helper.make_graph(list(nodes), "damaged", given, result, held)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions)).SerializeToString()


def elsewhere(name: str, location: str) -> TensorProto:
    """Three numbers in another file."""
    tensor = TensorProto(name=name, data_type=FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def function(name: str, *calls: str) -> Any:
    names = ["a", *(f"t{step}" for step in range(len(calls) - 1)), "b"]
    nodes = [
        node(call, [names[step]], [names[step + 1]], domain="" if call == "Relu" else "mine")
        for step, call in enumerate(calls)
    ]
    return helper.make_function("mine", name, ["a"], ["b"], nodes, [helper.make_opsetid("", 17)])


def doubled(depth: int) -> list[Any]:
    """Functions each of which calls the next one twice."""
    return [function(f"f{i}", f"f{i + 1}", f"f{i + 1}") for i in range(depth)] + [function(f"f{depth}", "Relu")]


def without_outputs() -> bytes:
    proto = ModelProto.FromString(model([node("Relu", ["x"], ["y"])]))
    del proto.graph.output[:]
    return proto.SerializeToString()


ML = "ai.onnx.ml"
COLUMN = np.zeros((2**20, 1), np.float32)
PLANE = np.zeros((1, 1, 2**10, 2**10), np.float32)
GROWN = np.asarray([1, 1, 2**20, 2**19], np.float32)
MANY = [node("ConstantOfShape", ["s"], [name]) for name in "abc"] + [node("Sum", ["a", "b", "c"], ["y"])]
HUGE, FAR, BACK = [2**19] * 4, [2**18] * 2, np.ones((2, 2, 1, 1), np.float32)
IMAGE, KERNEL = (1, 2, 4, 4), np.ones((1, 2, 2, 2), np.float32)
CYCLE = [
    node("Add", ["x", "r"], ["s"], "a"),
    node("Neg", ["s"], ["n"], "b"),
    node("Relu", ["n"], ["r"], "c"),
    node("Abs", ["s"], ["y"], "d"),
]
START = node("f0", ["x"], ["y"], domain="mine")

REFUSED: list[tuple[str, bytes]] = [
    ("cycle: 'a' (Add) → 'b' (Neg) → 'c' (Relu) → 'a' (Add)", model(CYCLE)),
    ("cycle: '#0' (Add) → '#0' (Add)", model([node("Add", ["x", "y"], ["y"])])),
    ("reads 'b' before '#1' makes it", model([node("Relu", ["b"], ["y"]), node("Neg", ["x"], ["b"])])),
    ("input size 0 not in range", model([node("Identity", [], ["t"]), node("Relu", ["x"], ["y"])])),
    ("reads 'nowhere', which nothing makes", model([node("Add", ["x", "nowhere"], ["y"])])),
    ("'y' is not an output of any node", model([node("Relu", ["x"], ["z"])])),
    ("single static assignment", model([node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])])),
    ("input size 1 not in range", model([node("Add", ["x"], ["y"])])),
    ("Required attribute 'axis' is missing", model([node("Concat", ["x", "x"], ["y"])])),
    ("Mismatched attribute type", model([node("Softmax", ["x"], ["y"], axis="a")])),
    ("the axes [5] do not exist in 2 axes", model([node("Slice", ["x", "s", "e", "a"], ["y"])], s=[0], e=[1], a=[5])),
    ("the axes [0, 0] are not different", model([node("Unsqueeze", ["x", "a"], ["y"])], a=[0, 0])),
    ("axis 9 does not exist", model([node("Flatten", ["x"], ["y"], axis=9)])),
    ("axis 9 does not exist", model([node("LayerNormalization", ["x", "s"], ["y"], axis=9)], s=np.ones(3, np.float32))),
    ("no 2 equal parts", model([node("Split", ["x"], ["y", "z"], axis=1)])),
    ("1 repeats do not fit 2 axes", model([node("Tile", ["x", "r"], ["y"])], r=[2])),
    ("1 widths do not fit 2 axes", model([node("Pad", ["x", "p"], ["y"])], p=[1])),
    ("kernel_shape does not fit", model([node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3])], IMAGE, w=KERNEL)),
    ("strides does not fit", model([node("Conv", ["x", "w"], ["y"], strides=[0, 0])], IMAGE, w=KERNEL)),
    ("pads does not fit", model([node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], pads=[1])], IMAGE)),
    ("auto_pad is 'BOGUS'", model([node("Conv", ["x", "w"], ["y"], auto_pad="BOGUS")], IMAGE, w=KERNEL)),
    ("IndexError: tuple index out of range", model([node("Reshape", ["x", "s"], ["y"])], s=[1, 1, 0])),
    ("slice step cannot be zero", model([node("Slice", ["x", "s", "e", "s", "s"], ["y"])], s=[0], e=[1])),
    ("makes 1099511627776 elements", model([node("ConstantOfShape", ["s"], ["y"])], s=[2**20, 2**20])),
    ("makes 51539607552 elements", model([node("Expand", ["x", "s"], ["y"])], s=[2**33, 2, 3])),
    ("makes 6597069766656 elements", model([node("Tile", ["x", "r"], ["y"])], r=[2**20, 2**20])),
    (
        "The tensor 'y' is damaged",
        model([], tensors=[TensorProto(name="y", data_type=1, dims=[3], raw_data=b"1")]),
    ),
    (
        "Of the 3 numbers of 'w', 2 are not a number (NaN)",
        model([node("Mul", ["x", "w"], ["y"])], w=np.asarray([1, np.nan, np.nan], np.float32)),
    ),
    (
        "Of the 9 numbers of 'w', 1 are infinite",
        model([node("MatMul", ["x", "w"], ["y"])], w=np.diag(np.asarray([np.inf, 1, 1], np.float32))),
    ),
    ("no ONNX model, or names no operator set", b""),
    (
        "'k' is of dtype int8",
        model([node("DequantizeLinear", ["k", "s"], ["d"]), node("Add", ["x", "d"], ["y"])], k=np.ones(3, "i1"), s=[1]),
    ),
    ("no outputs", without_outputs()),
    (
        "The running variance 'v' has numbers below 0",
        model([node("BatchNormalization", ["x", "s", "s", "s", "v"], ["y"])], s=np.ones(3, "f4"), v=-np.ones(3, "f4")),
    ),
    (
        "The node '#0' (LinearRegressor) is damaged",
        model([node("LinearRegressor", ["x"], ["y"], domain=ML, coefficients="a")]),
    ),
    ("The name b'\\xff\\xfe' is not UTF-8", model([node("Relu", ["x"], ["zz"])]).replace(b"zz", b"\xff\xfe")),
    ("The input 'x' has the sizes [1099511627776, 3]", model([node("Relu", ["x"], ["y"])], (2**40, 3))),
    ("makes 1099511627776 elements", model([node("Add", ["a", "b"], ["y"])], a=COLUMN, b=COLUMN.T)),
    ("makes 1099511627776 elements", model([node("MatMul", ["a", "b"], ["y"])], a=COLUMN, b=COLUMN.T)),
    ("makes 1099511627776 elements", model([node("Gemm", ["a", "a"], ["y"], transB=1)], a=COLUMN)),
    ("makes 17179869184 elements", model([node("Pow", ["a", "b"], ["y"])], a=COLUMN[: 2**17], b=COLUMN[: 2**17].T)),
    ("makes 17179869184 elements", model([node("Gather", ["a", "i"], ["y"])], a=COLUMN.T, i=np.zeros(2**14, np.int64))),
    (
        "makes 4294967296 elements",
        model([node("Conv", ["a", "w"], ["y"])], a=PLANE, w=np.zeros((2**12, 1, 1, 1), "f4")),
    ),
    ("makes 17179869184 elements", model([node("Einsum", ["a", "a"], ["y"], equation="ij,kj->ik")], a=COLUMN[: 2**17])),
    ("makes 17592186044416 elements", model([node("Resize", ["x", "", "k"], ["y"])], IMAGE, k=GROWN)),
    ("makes 2199040032800 elements", model([node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], pads=HUGE)], IMAGE)),
    ("makes 1236953726978 elements", model([node("ConvTranspose", ["x", "w"], ["y"], strides=FAR)], IMAGE, w=BACK)),
    *(
        (f"pads {told} do not fit", model([node("ConvTranspose", ["x", "w"], ["y"], pads=pads)], IMAGE, w=BACK))
        for pads, told in (([-1, 0, 0, 0], [-1, 0, 0, 0]), ([0, 2, 0, 2], [0, 2, 0, 2]))
    ),
    (
        "its output_shape [-1, -1] does not fit",
        model([node("ConvTranspose", ["x", "w"], ["y"], output_shape=[-1, -1])], IMAGE, w=BACK),
    ),
    (
        "makes 4194304 elements of 8",
        model([node("Resize", ["x", "", "k"], ["y"], mode="cubic")], (8,), k=np.asarray([2**19], np.float32)),
    ),
    ("weights lie in another file, those of 'y'", model([], tensors=[elsewhere("y", "nowhere")])),
    ("'f0' calls itself", model([START], functions=[function("f0", "f0")])),
    ("its functions are 1099511627776 nodes", model([START], functions=doubled(40))),
]


@pytest.mark.parametrize(("message", "data"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_a_damaged_file_is_refused_with_what_is_wrong(message: str, data: bytes) -> None:
    with pytest.raises(GraphRefused) as caught:
        found = load(data)
        found(found.parameters, np.ones([int(size or 1) for size in found.inputs[0].sizes], np.float32))
    assert message in str(caught.value) and caught.value.hint
    assert caught.value.reason == "import_refused"


def test_errors_of_array_functions_name_the_node_and_keep_their_kind() -> None:
    found = load(model([node("Gather", ["x", "i"], ["y"], name="look_up")], i=[9]))
    with pytest.raises(InputError, match=r"The node 'look_up' \(Gather\): .*leave axis 0"):
        found(found.parameters, X)


def test_a_part_that_nobody_reads_is_counted() -> None:
    found = load(model([node("Split", ["x"], ["y", "z", ""], axis=1)]))
    assert found({}, X).shape == (2, 1)


def test_many_constants_of_a_size_that_passes_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer_model, "MOST_ELEMENTS", 1000)
    with pytest.raises(GraphRefused, match=r"Up to the node '#2' \(ConstantOfShape\) the file makes 1200 elements"):
        load(model(MANY, s=[20, 20]))({}, X)


def test_a_running_sum_over_no_rows_has_no_rows() -> None:
    found = load(model([node("CumSum", ["x", "k"], ["y"], exclusive=1)], (0, 3), k=np.asarray(0)))
    assert found({}, X[:0]).shape == (0, 3)


def test_infinite_numbers_are_a_mask_and_no_weight() -> None:
    found = load(model([node("Add", ["x", "k"], ["y"])], k=np.asarray([-np.inf, np.inf, 0.0], np.float32)))
    assert not found.parameters
    np.testing.assert_array_equal(found({}, X).numpy()[1], [-np.inf, np.inf, 5.0])


def test_nesting_deeper_than_any_program_is_no_crash() -> None:
    inner = helper.make_graph([node("Relu", ["x"], ["y"])], "inner", [], [helper.make_empty_tensor_value_info("y")])
    for _ in range(20):
        branch = node("If", ["c"], ["y"], then_branch=inner, else_branch=helper.make_graph([], "none", [], []))
        inner = helper.make_graph([branch], "outer", [], [helper.make_empty_tensor_value_info("y")])
    with pytest.raises(GraphRefused, match="not an ONNX file|is a If, which is not translated"):
        load(model(inner.node, c=np.asarray(True)))
    depth = b""
    for _ in range(1000):  # one field of a message inside the other, a few bytes each
        depth = b"\x3a" + bytes(_varint(len(depth))) + depth
    with pytest.raises(GraphRefused):
        load(depth)


def _varint(number: int) -> list[int]:
    return [number] if number < 128 else [number % 128 + 128, *_varint(number // 128)]


@pytest.mark.parametrize("place", ["initialiser", "attribute"])
@pytest.mark.parametrize("location", ["secret", "../secret", "link", "/etc/hostname"])
def test_no_file_outside_the_folder_is_opened(
    place: str, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = elsewhere("k", location)
    add = node("Add", ["x", "k"], ["y"])
    data = (
        model([add], tensors=[tensor])
        if place == "initialiser"
        else model([node("Constant", [], ["k"], value=tensor), add])
    )
    (tmp_path / "secret").write_bytes(b"\1\2\3\4" * 3)
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "inside" / "model.onnx").write_bytes(data)
    monkeypatch.chdir(tmp_path)  # where bytes alone must not look either
    for source in (data, tmp_path / "inside" / "model.onnx"):
        with pytest.raises(GraphRefused):
            load(source)


def test_a_model_may_leave_out_the_types_of_results() -> None:
    proto = ModelProto.FromString(model([node("Relu", ["x"], ["y"])]))
    proto.graph.output[0].ClearField("type")
    assert load(proto.SerializeToString())({}, X).shape == (2, 3)
