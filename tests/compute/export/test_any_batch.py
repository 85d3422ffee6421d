"""A file for batches of any size answers each row as the model answers it alone; what cannot be one is refused."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from coterie.compute import nn
from coterie.compute.array import as_array
from coterie.compute.export import export, infer_bare, run_bare
from coterie.compute.ir import Graph, NDArray
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.trace import TensorSpec, trace_named
from coterie.errors import CoterieError
from tests.compute.export.files import BATCH_NORM, FIXTURES, foreign, quick

NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "dense": (
        lambda: nn.Sequential(nn.Linear(13, 17), nn.LayerNorm(17), nn.GELU(), nn.Linear(17, 3)),
        (13,),
        "float32",
    ),
    "images": (
        lambda: nn.Sequential(
            *(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.ConvTranspose2d(4, 2, 2), nn.GroupNorm(2, 2), nn.Flatten(), nn.Linear(32, 3)),
        ),
        (2, 8, 8),
        "float32",
    ),
    "sequences": (lambda: nn.Sequential(nn.LSTM(5, 8), nn.GRU(8, 8), nn.Linear(8, 2)), (6, 5), "float32"),
    "tokens": (lambda: nn.Sequential(nn.Embedding(20, 8), nn.TransformerBlock(8, 2), nn.Linear(8, 20)), (6,), "int64"),
}


def traced(name: str, rows: int = 1) -> Graph:
    make, shape, dtype = NETS[name]
    net = make()
    weights = {key: as_array(value) for key, value in net.init(0).items()}
    return trace_named(lambda given: {"y": net(weights, given["x"])}, {"x": TensorSpec((rows, *shape), dtype)})


def drawn(name: str, count: int) -> NDArray:
    _, shape, dtype = NETS[name]
    rng = np.random.default_rng(count)
    return rng.integers(0, 20, (count, *shape)) if dtype == "int64" else rng.normal(size=(count, *shape)).astype(dtype)


def one_by_one(file: bytes, x: NDArray) -> NDArray:
    (run,) = run_bare([file], [{"x": row[None]} for row in x])
    return np.concatenate(run.outputs["y"])


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", NETS)
def test_every_row_has_the_answer_that_it_has_alone(name: str, precision: str) -> None:
    graph = traced(name)
    made = export(graph, quick(batch="any", precision=precision))
    x = drawn(name, 5)
    expected = one_by_one(to_onnx(graph, name="one"), x)
    close = 1e-5 if precision == "float32" else 0.02
    for count in (1, 3, 5):
        found = infer_bare(made.data, {"x": x[:count]})["y"]
        np.testing.assert_allclose(found, expected[:count], rtol=close, atol=close)
    proto = onnx.load_from_string(made.data).graph
    assert [value.type.tensor_type.shape.dim[0].dim_param for value in (*proto.input, *proto.output)] == ["batch"] * 2


def test_a_file_of_one_row_and_one_that_leaves_its_rows_open_become_such_files() -> None:
    for source in (BATCH_NORM, FIXTURES / "transformer_18_dynamo.onnx", to_onnx(traced("dense"), name="one")):
        made = export(source, quick(batch="any"))
        assert onnx.load_from_string(made.data).graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
        assert made.report.agreement.largest < 1e-5


def test_the_metadata_of_the_file_is_kept() -> None:
    model = onnx.load_from_string(to_onnx(traced("dense"), name="one"))
    helper.set_model_props(model, {"classes": '["calm","storm"]'})
    for options in (quick(), quick(batch="any"), quick(precision="float16")):
        made = export(model.SerializeToString(), options)
        assert {each.key: each.value for each in onnx.load_from_string(made.data).metadata_props} == {
            "classes": '["calm","storm"]'
        }


def centred() -> bytes:
    """A model whose answers depend on the other rows of the batch."""
    mean = helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1)
    return foreign(mean, helper.make_node("Sub", ["x", "m"], ["y"]))


def time_first() -> bytes:
    """x[time, batch, 2]: a sum over time."""
    shape = ["time", "batch", 2]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node("CumSum", ["x", "zero"], ["y"])], "time", ends[:1], ends[1:])
    graph.initializer.append(helper.make_tensor("zero", TensorProto.INT64, [], [0]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


REFUSED: dict[str, tuple[Callable[[], object], str, str]] = {
    "a graph of several rows": (lambda: export(traced("dense", 4), quick(batch="any")), "batch_fixed", "one row"),
    "rows that depend on each other": (lambda: export(centred(), quick(batch="any")), "export_differs", "alone"),
    "a first axis that is no batch": (
        lambda: export(time_first(), quick(batch="any", sizes={"x.1": 2})),
        "export_differs",
        "alone",
    ),
    "int8": (lambda: quick(batch="any", precision="int8"), "batch_fixed", "float32 or float16"),
    "a provider": (lambda: quick(batch="any", target="qnn"), "batch_fixed", "portable or cpu"),
    "another word": (lambda: quick(batch="all"), "input_invalid", "'fixed' or 'any'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_such_a_file_is_refused_by_name(case: str) -> None:
    call, code, part = REFUSED[case]
    with pytest.raises(CoterieError) as refused:
        call()
    assert refused.value.reason == code
    assert part in f"{refused.value.message} {refused.value.hint}"
