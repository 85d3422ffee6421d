"""Files of float64: they hold no operator, and no neighbours, that ONNX Runtime 1.24 lacks a kernel for, and are exact.

That they load there is proved by tests/providers, which runs them on that version; here on the one that is installed.
"""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from coterie.compute import TensorSpec, jit, ops, to_onnx, trace_named
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.onnx.writer import Target
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.reference import evaluate
from coterie.errors import InputError
from tests.providers.doubles import PRODUCTS, SINGLE_ONLY


def both(fn: Callable[[Array], Array], x: NDArray) -> NDArray:
    """What a file makes of x."""
    return jit(fn)(x).numpy()


AROUND = np.arange(-500, 500) * np.pi
COSINES: dict[str, tuple[NDArray, float]] = {
    # NumPy's own is within half a unit of the last place. A Sin of ONNX Runtime is within 5e-16.
    "at zeros": (AROUND + np.pi / 2, 5e-16),
    "beside zeros": (np.concatenate([AROUND + np.pi / 2 + step for step in (-1e-3, -1e-8, 1e-8, 1e-3)]), 5e-16),
    "at extremes": (AROUND, 1e-15),
    "where the form changes": (np.concatenate([AROUND + side * np.pi / 6 for side in (-1, 1)]), 1e-15),
    "small": (10.0 ** np.linspace(-320, 1, 2000), 1e-15),
    "large": (10.0 ** np.linspace(1, 300, 2000), 1e-15),
    "whose double overflows": (np.linspace(0.8e308, 1.79e308, 2000), 2e-15),
}


@pytest.mark.parametrize("where", COSINES)
def test_a_cosine_is_made_of_sines_and_as_exact(where: str) -> None:
    x, most = COSINES[where]
    assert np.abs(both(xp.cos, x) - np.cos(x)).max() <= most
    assert np.abs(both(xp.cos, -x) - np.cos(x)).max() <= most


def test_a_cosine_of_what_has_none_is_nan_and_of_zero_one() -> None:
    found = both(xp.cos, np.array([np.inf, -np.inf, np.nan, 0.0, -0.0]))
    np.testing.assert_array_equal(found, [np.nan, np.nan, np.nan, 1, 1])


def test_a_sigmoid_keeps_both_tails() -> None:
    x = np.concatenate([np.linspace(-700, 700, 4001), [np.inf, -np.inf, np.nan, 0.0]])
    with np.errstate(over="ignore"):
        expected = 1 / (1 + np.exp(-x))
    np.testing.assert_allclose(both(ops.sigmoid, x), expected, rtol=2e-15)


def file_of(fn: Callable[..., Array], shapes: tuple[tuple[int, ...], ...], dtype: str) -> tuple[Any, bytes]:
    specs = {str(place): TensorSpec(shape, dtype) for place, shape in enumerate(shapes)}
    graph = trace_named(lambda given: {"value": fn(*(given[name] for name in specs))}, specs)
    return graph, to_onnx(graph, name="f")


@pytest.mark.parametrize("name", PRODUCTS)
def test_no_product_of_float64_stands_behind_a_transposition(name: str) -> None:
    """Not even where a runtime moves the transposition down: a Gemm or a Gather stands between."""
    fn, shapes = PRODUCTS[name]
    graph, data = file_of(fn, shapes, "float64")
    nodes = onnx.load_from_string(data).graph.node
    made = {output: node.op_type for node in nodes for output in node.output}
    products = [node for node in nodes if node.op_type in ("MatMul", "Gemm")]
    assert products and all(
        made[name] == "Gather" for node in products if node.op_type == "MatMul" for name in node.input
    )
    feeds = {key: np.random.default_rng(1).normal(size=value.type.shape) for key, value in graph.inputs.items()}
    found = Executable(data).run(feeds)["value"]
    np.testing.assert_allclose(found, evaluate(graph, feeds)["value"], rtol=1e-13, atol=1e-13)
    _, single = file_of(fn, shapes, "float32")
    operators = {node.op_type for node in onnx.load_from_string(single).graph.node}
    assert "Gather" not in operators, "float32 is written plainly"


def test_float32_keeps_its_operators() -> None:
    for fn, operator in ((xp.cos, "Cos"), (ops.sigmoid, "Sigmoid"), (lambda x: xp.matmul(x, x), "MatMul")):
        _, data = file_of(fn, ((3, 3),), "float32")
        assert [node.op_type for node in onnx.load_from_string(data).graph.node] == [operator]


@pytest.mark.parametrize("name", SINGLE_ONLY)
def test_what_no_cpu_has_in_float64_is_refused_when_it_is_written(name: str) -> None:
    fn, shapes, operator = SINGLE_ONLY[name]
    with pytest.raises(InputError, match=rf"py:\d+: (?i:{operator}) of float64 cannot be written.*astype") as caught:
        file_of(fn, shapes, "float64")
    # Functions of single numbers are a reason for `jit` to run on the host.
    assert caught.value.code == ("trace_failed" if operator in ("Atan", "Erf") else "input_invalid")
    file_of(fn, shapes, "float32")


def test_a_transposition_that_moves_nothing_is_not_written() -> None:
    """ONNX Runtime 1.24 joins one behind a Gemm to it as if it turned the matrix."""
    _, data = file_of(lambda x: xp.permute_dims(xp.matmul(x, x), (0, 1)), ((3, 3),), "float32")
    assert [node.op_type for node in onnx.load_from_string(data).graph.node] == ["MatMul"]


@pytest.mark.parametrize("target", ["portable", "cpu", "wasm", "cuda", "openvino"])
def test_only_files_for_the_cpu_are_written_another_way(target: Target) -> None:
    specs = {"x": TensorSpec((3, 4), "float64"), "w": TensorSpec((4, 5), "float64")}
    graph = trace_named(lambda i: {"y": xp.cos(ops.sigmoid(i["x"]) @ i["w"])}, specs)
    found = {node.op_type for node in onnx.load_from_string(to_onnx(graph, name="f", target=target)).graph.node}
    plain = {"Sigmoid", "MatMul", "Cos"}
    assert found == plain if target in ("cuda", "openvino") else not found & plain
