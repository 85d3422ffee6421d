"""Every translated operator computes what ONNX Runtime does, eager and as a graph; what is not translated is named."""

from typing import Any, cast

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest
from onnx import TensorProto

from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.interactive.jit import jit
from coterie.compute.onnx import load
from coterie.compute.onnx.importer import learners
from coterie.compute.onnx.importer.table import TRANSLATIONS
from coterie.errors import DTypeError, GraphRefused, InputError, ShapeError, StorageError
from tests.compute.importer.operators import CASES, IMAGE, Case, X, built, f, i, sizes


@pytest.mark.parametrize("row", CASES, ids=[f"{n}_{row[0]}" for n, row in enumerate(CASES)])
def test_an_operator_computes_what_the_runtime_does(row: Case) -> None:
    operator, inputs, data, attributes, opset, outputs = row
    proto = built(operator, inputs, data, attributes, opset, outputs)
    fed = {f"in{n}": array for n, array in enumerate(inputs[:data]) if array is not None}
    session = cast(Any, onnxruntime).InferenceSession(proto, providers=["CPUExecutionProvider"])
    expected = session.run(None, fed)
    model = load(proto)
    for run in (model, jit(model, fullgraph=True)):
        found: Any = run(model.parameters, *fed.values())
        results = cast("tuple[Any, ...]", found if isinstance(found, tuple) else (found,))
        for told, wanted in zip(results, expected, strict=True):
            assert told.dtype == wanted.dtype and told.shape == wanted.shape
            np.testing.assert_allclose(told.numpy(), wanted, rtol=2e-5, atol=2e-6)


def test_every_translated_operator_has_a_case() -> None:
    assert {row[0] for row in CASES} == {*TRANSLATIONS, *learners.WRITTEN_OUT, "Constant"}


REFUSED: list[tuple[str, bytes]] = [
    (r"The node 'the_node' is a NonZero, which is not translated", built("NonZero", [X], 1, {}, 17, 1)),
    *((rf"of operator set {n}; 13 to 21", built("Relu", [X], 1, {}, n, 1)) for n in (0, 12, 22)),
    (
        r"'the_node' \(Resize\) cannot be imported: it resizes by 'nearest', 'tf_crop_and_resize'",
        built(
            "Resize",
            [IMAGE, f(8), sizes(1, 1, 2, 2)],
            1,
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            17,
            1,
        ),
    ),
    (
        r"'the_node' \(Resize\) .*it smooths",
        built("Resize", [IMAGE, None, sizes(1, 1, 2, 2)], 1, {"mode": "linear", "antialias": 1}, 18, 1),
    ),
    (
        r"\(Resize\) .*the sizes \[2, 4, 7, 6\] cannot become \[2, 4, 0, 6\]",
        built("Resize", [IMAGE, None, None, i(2, 4, 0, 6)], 1, {}, 17, 1),
    ),
    (
        r"'the_node' \(ScatterND\) .*it joins elements by 'mul'",
        built("ScatterND", [X, np.asarray([[2]]), f(1, 4)], 1, {"reduction": "mul"}, 18, 1),
    ),
    (
        r"'the_node' \(ScatterND\) .*it writes twice",
        built("ScatterND", [X, np.asarray([[2], [-1]]), f(2, 4)], 1, {}, 17, 1),
    ),
    (
        r"'the_node' \(MaxPool\) .*positions of its maxima",
        built("MaxPool", [IMAGE], 1, {"kernel_shape": [2, 2]}, 17, 2),
    ),
    (
        r"'the_node' \(Dropout\) .*training mode",
        built("Dropout", [X, np.asarray(0.5, np.float32), np.asarray(True)], 1, {}, 17, 1),
    ),
    (r"'the_node' \(Cast\) .*ONNX code 3", built("Cast", [X], 1, {"to": TensorProto.INT8}, 17, 1)),
    (r"'in1' is of dtype int8", built("Add", [X, np.zeros(4, np.int8)], 1, {}, 17, 1)),
    ("It is not an ONNX file", b"\x00not a graph"),
]


@pytest.mark.parametrize(("message", "proto"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_what_is_not_translated_is_refused_by_name_with_a_way_out(message: str, proto: bytes) -> None:
    with pytest.raises(GraphRefused, match=message) as caught:
        model = load(proto)
        model(model.parameters, *[np.zeros([n or 1 for n in spec.shape], spec.dtype) for spec in model.specs()])
    assert caught.value.reason == "import_refused" and caught.value.hint


def test_a_size_that_depends_on_data_is_refused_in_a_trace() -> None:
    proto = built("Reshape", [X, i(2, 6)], 2, {}, 17, 1)
    model = load(proto)
    assert model({}, X, i(2, 6)).shape == (2, 6)  # on numbers it is known
    with pytest.raises(GraphRefused, match="its input 1 is computed from data"):
        jit(model, fullgraph=True)({}, X, i(2, 6))


def test_wrong_calls_name_the_input() -> None:
    model = load(built("Gemm", [X, f(4, 2)], 1, {}, 17, 1))
    with pytest.raises(InputError, match="needs the parameters in1"):
        model({}, X)
    with pytest.raises(InputError, match=r"takes 1 inputs \(in0\), got 2"):
        model(model.parameters, X, X)
    with pytest.raises(
        ShapeError, match=r"test_operators.py:\d+: the input 'in0' has the sizes \[3, 4\], got \[4, 4\]"
    ):
        model(model.parameters, f(4, 4))
    with pytest.raises(DTypeError, match="'in0' is float32, got float64"):
        model(model.parameters, X.astype(np.float64))
    with pytest.raises(ShapeError, match="the parameter 'in1'"):
        model({"in1": f(2, 4)}, X)
    with pytest.raises(StorageError, match="cannot be read"):
        load("no/such/file.onnx")


@pytest.mark.parametrize("how", ["max", "min"])
def test_the_gradient_of_an_extreme_goes_to_the_element_that_won(how: str) -> None:
    """Against the definition, element by element in NumPy: [0, j] and [1, j] of the updates both go to row 1."""
    places, updates, weigh = np.asarray([[1] * 4, [1] * 4]), f(2, 4), f(3, 4)
    model = load(built("ScatterElements", [X, places, updates], 3, {"reduction": how}, 18, 1))

    def total(given: dict[str, Any]) -> Any:
        found: Any = model(model.parameters, given["x"], places, given["updates"])
        return (found * Array(weigh)).sum()

    told = grad(total)({"x": Array(X), "updates": Array(updates)})
    rivals = np.stack([X[1], *updates])
    winners = rivals == (rivals.max(axis=0) if how == "max" else rivals.min(axis=0))
    expected = winners * weigh[1]
    np.testing.assert_allclose(told["updates"].numpy(), expected[1:], rtol=1e-6)
    np.testing.assert_allclose(told["x"].numpy(), np.stack([weigh[0], expected[0], weigh[2]]), rtol=1e-6)
