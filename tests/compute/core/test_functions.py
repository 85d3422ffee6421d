"""The laws of every array function over one table: it means what NumPy means, evaluated and compiled; it lowers on
opset 17; its gradient is that of finite differences; vmap is a loop.
"""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from itertools import product
from types import FunctionType
from typing import Any

import numpy as np
import onnx
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.batching import vmap
from coterie.compute.interactive.jit import jit
from coterie.compute.ir import NDArray
from coterie.compute.onnx.checker import check_graph
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime.executable import Executable
from coterie.compute.text import parse, to_text
from coterie.compute.trace import trace
from tests.compute.core.functions import ELEMENTARY, MAKERS, Function
from tests.compute.core.functions import FUNCTIONS as ARRAY_FUNCTIONS
from tests.compute.core.neural import NEURAL

FUNCTIONS = [*ARRAY_FUNCTIONS, *NEURAL]
NAMES = [f.name for f in FUNCTIONS]
SMOOTH = [f for f in FUNCTIONS if f.smooth]


def narrow(operands: tuple[NDArray, ...]) -> list[NDArray]:
    return [x.astype(np.float32) if x.dtype == np.float64 else x for x in operands]


def test_the_table_has_every_function_of_the_namespace() -> None:
    public = {
        name
        for name, value in vars(cnp).items()
        if isinstance(value, FunctionType) and not name.startswith("_") and name not in MAKERS
    }
    assert public - {f.name.split()[0] for f in ARRAY_FUNCTIONS} == set()
    neural = {name for name, value in vars(ops).items() if getattr(value, "__module__", "") == ops.__name__}
    functions = {name for name in neural if isinstance(getattr(ops, name), FunctionType) and not name.startswith("_")}
    assert functions - {f.name.split()[0] for f in NEURAL} == set()


@pytest.mark.capability("A13")
@pytest.mark.parametrize("f", FUNCTIONS, ids=NAMES)
def test_a_function_means_what_numpy_means(f: Function) -> None:
    with np.errstate(all="ignore"):
        expected = np.asarray(f.theirs(*f.operands))
    eager = f.ours(*map(Array, f.operands)).numpy()
    assert (eager.shape, eager.dtype.kind) == (expected.shape, expected.dtype.kind)
    np.testing.assert_allclose(eager, expected, rtol=1e-13, atol=1e-13)
    compiled = jit(f.ours)(*narrow(f.operands)).numpy()
    np.testing.assert_allclose(compiled, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.capability("E7")
@pytest.mark.parametrize("f", FUNCTIONS, ids=NAMES)
def test_a_function_lowers_to_the_operators_of_a_plan_on_opset_17(f: Function) -> None:
    graph = trace(f.ours, *narrow(f.operands)).graph
    assert to_text(parse(to_text(graph))) == to_text(graph)
    data = to_onnx(graph, name="function")
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    assert (model.opset_import[0].version, model.ir_version) == (17, 8)
    check_graph(data)


@pytest.mark.parametrize("f", FUNCTIONS, ids=NAMES)
def test_a_function_compiles_in_half_precision_too(f: Function) -> None:
    operands = [x.astype(np.float16) if x.dtype.kind == "f" else x for x in f.operands]
    eager, compiled = f.ours(*map(Array, operands)), jit(f.ours)(*operands)
    assert eager.type == compiled.type
    np.testing.assert_allclose(compiled.numpy().astype(float), eager.numpy().astype(float), rtol=2e-2, atol=2e-2)


def scalar(f: Function, floats: list[int], order: int) -> Callable[..., Array]:
    """The result (order 1), or all gradients (order 2), summed with fixed weights."""

    def weigh(x: Array) -> Array:
        return cnp.sum(x * Array(np.random.default_rng(x.size).normal(size=x.shape)))

    def first(*operands: Array) -> Array:
        return weigh(f.ours(*operands))

    if order == 1:
        return first
    inner = grad(first, tuple(floats))
    return lambda *operands: sum((weigh(g) for g in inner(*operands)), start=Array(np.zeros(())))


@pytest.mark.capability("A13")
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("f", SMOOTH, ids=[f.name for f in SMOOTH])
def test_a_gradient_is_that_of_finite_differences(f: Function, order: int) -> None:
    floats = [i for i, x in enumerate(f.operands) if x.dtype.kind == "f"]
    function = scalar(f, floats, order)
    told = grad(function, tuple(floats))(*map(Array, f.operands))
    rng, step = np.random.default_rng(3), 1e-5
    directions = {i: rng.normal(size=f.operands[i].shape) for i in floats}

    def at(sign: float) -> float:
        moved = [x + sign * step * directions[i] if i in floats else x for i, x in enumerate(f.operands)]
        return function(*map(Array, moved)).item()

    measured = (at(1) - at(-1)) / (2 * step)
    along = sum(float((g.numpy() * directions[i]).sum()) for g, i in zip(told, floats, strict=True))
    assert along == pytest.approx(measured, rel=5e-6, abs=5e-6)


@pytest.mark.parametrize("f", FUNCTIONS, ids=NAMES)
def test_vmap_is_a_loop(f: Function) -> None:
    lanes = [np.stack([x, x[..., ::-1] if x.dtype.kind != "f" else 0.9 * x + 0.01]) for x in f.operands]
    expected = [f.ours(*(Array(lane[i]) for lane in lanes)).numpy() for i in (0, 1)]
    np.testing.assert_allclose(vmap(f.ours)(*map(Array, lanes)).numpy(), np.stack(expected), rtol=1e-12, atol=1e-12)


ENDS: list[tuple[str, list[float]]] = [
    ("expm1", [-np.inf, -50.0, -1e-10, 0.0, 1e-10, 50.0, np.inf]),
    ("log1p", [-1.0, -1e-10, 0.0, 1e-10, 1e30, np.inf]),
    ("sinh", [-80.0, -1e-10, 0.0, 1e-10, 80.0]),
    ("asinh", [-1e30, -1e-10, 0.0, 1e-10, 1e30]),
    ("acosh", [1.0, 1.0 + 2**-20, 1e30]),
    ("atanh", [-1.0, -1 + 2**-20, -1e-10, 1e-10, 1.0]),
    ("asin", [-1.0, -1e-10, 1e-10, 1.0]),
    ("acos", [-1.0, 0.0, 1.0]),
    ("round", [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, 1e30, np.inf, -np.inf]),
    ("isnan", [np.nan, np.inf, 0.0]),
    ("isinf", [np.nan, np.inf, -np.inf, 0.0]),
    ("isfinite", [np.nan, np.inf, -np.inf, 0.0]),
    ("signbit", [-0.0, 0.0, -np.inf]),
    ("sign", [-np.inf, -1e-30, -0.0, 0.0, 3.0, np.nan]),
    ("trunc", [-0.5, -0.0, 0.0, 0.5, -1.5, np.nan]),
]


@pytest.mark.parametrize(("name", "values"), ENDS, ids=[name for name, _ in ENDS])
def test_a_function_is_accurate_at_the_ends_of_its_range(name: str, values: list[float]) -> None:
    x = np.asarray(values, np.float32)
    other = {"asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "asin": "arcsin", "acos": "arccos"}
    with np.errstate(all="ignore"):
        expected = getattr(np, other.get(name, name))(x)
    function: Callable[..., Array] = getattr(cnp, name)
    for result in (function(Array(x)), jit(function)(x)):
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)


CORNERS = [-np.inf, -4.0, -1.0, -0.0, 0.0, 1.0, 2.0, np.inf, np.nan]
LIMITS = [sign * 2.0**k for sign in (-1, 1) for k in (-149, -127, -126, -125, -102, -1)] + [3.4028234663852886e38]
PAIRS: list[tuple[str, str, list[tuple[float, float]]]] = [
    ("hypot", "hypot", [(3e30, 4e30), (0.0, 0.0), (np.inf, 1.0), (1e-30, 1e-30)]),
    ("logaddexp", "logaddexp", [(1.0, -1e8), (-1e8, 1.0), (np.inf, np.inf), (-np.inf, -np.inf), (-np.inf, 2.0)]),
    ("atan2", "arctan2", [*product(CORNERS, CORNERS), (1.0, -1e-30), (-2.0, 1e30)]),
    ("pow", "power", [(-2.0, 3.0), (-2.0, -3.0), (0.0, 2.0), (0.0, 0.0), (-2.0, 0.5), (0.0, -1.0)]),
    ("copysign", "copysign", [pair for pair in product(CORNERS, CORNERS) if pair[1] == pair[1]]),
    ("remainder", "remainder", [*product(CORNERS, CORNERS), (5.5, -3.0), (-1e-30, 1e30)]),
    ("nextafter", "nextafter", [*product(CORNERS + LIMITS, CORNERS + LIMITS)]),
]


@pytest.mark.parametrize(("name", "other", "pairs"), PAIRS, ids=[name for name, _, _ in PAIRS])
def test_a_function_of_two_is_accurate_at_its_corners(name: str, other: str, pairs: list[tuple[float, float]]) -> None:
    a, b = np.asarray(pairs, np.float32).T.copy()
    with np.errstate(all="ignore"):
        expected = getattr(np, other)(a, b)
    function: Callable[..., Array] = getattr(cnp, name)
    for result in (function(Array(a), Array(b)), jit(function)(a, b)):
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6, atol=0)
        if name in ("atan2", "copysign", "remainder", "nextafter"):
            known = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(result.numpy())[known], np.signbit(expected)[known])
        if name == "nextafter":
            np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize(
    ("fn", "x", "slope"),
    [
        (cnp.asinh, 0.0, 1.0),
        (lambda x: cnp.hypot(x, 0.0), 2.0, 1.0),
        (lambda x: cnp.hypot(x, 3.0), 0.0, 0.0),
        (lambda x: x**2.0, 0.0, 0.0),
        (lambda x: cnp.pow(x, Array(np.asarray(2.0))), 0.0, 0.0),
        (lambda x: cnp.pow(x, Array(np.asarray(1.0))), 0.0, 1.0),
        (lambda x: cnp.pow(x, Array(np.asarray(0.0))), 0.0, 0.0),
        (lambda x: cnp.pow(x, Array(np.asarray(3.0))), -2.0, 12.0),
        (lambda x: cnp.pow(Array(np.asarray(0.0)), x), 2.0, 0.0),
        (lambda x: cnp.prod(cnp.stack([x, x * 2.0, cnp.asarray(3.0, dtype="float64")])), 0.0, 0.0),
        (lambda x: cnp.prod(cnp.stack([x, cnp.asarray(3.0, dtype="float64")])), 0.0, 3.0),
        (lambda x: cnp.atan2(x, -1.0), 0.0, -1.0),
        (lambda x: cnp.atan2(1.0, x), 0.0, -1.0),
        (lambda x: cnp.logaddexp(x, 1.0), 1.0, 0.5),
        (cnp.abs, 0.0, 0.0),
        (lambda x: cnp.copysign(x, -1.0), 2.0, -1.0),
        (lambda x: cnp.remainder(x, cnp.asarray(-2.0, dtype="float64")), 6.0, 1.0),
        (lambda x: cnp.remainder(x, cnp.asarray(np.inf, dtype="float64")), -3.0, 1.0),
        (lambda x: cnp.remainder(7.0, x), -2.0, 4.0),
        (lambda x: cnp.atan2(x, np.inf), 1.0, 0.0),
        (lambda x: cnp.sign(x) + cnp.nextafter(x, np.inf), 1.0, 0.0),
    ],
)
def test_a_gradient_is_right_where_a_formula_breaks(fn: Callable[..., Any], x: float, slope: float) -> None:
    assert grad(fn)(Array(np.asarray(x))).item() == pytest.approx(slope, abs=1e-12)


def test_powers_of_negative_numbers_have_no_slope_in_the_exponent() -> None:
    assert np.isnan(grad(lambda y: cnp.pow(-2.0, y))(Array(np.asarray(3.0))).item())


def test_equal_elements_keep_their_order() -> None:
    x = np.asarray([2.0, 1.0, 2.0, 1.0, 3.0], np.float32)

    def orders(v: Array) -> list[Array]:
        return [cnp.argsort(v), cnp.argsort(v, descending=True), ops.top_k(v, 2)[1]]

    for found in (orders(Array(x)), jit(orders)(x)):
        assert [order.numpy().tolist() for order in found] == [[1, 3, 0, 2, 4], [4, 0, 2, 1, 3], [4, 0]]


def test_a_row_that_is_named_often_gets_every_update_on_several_threads() -> None:
    ids = np.random.default_rng(0).integers(0, 4, 20_000).astype(np.int32)
    feeds = [np.zeros((4, 64), np.float32), ids, np.ones((20_000, 64), np.float32)]
    graph = trace(ops.scatter_add, *feeds).graph
    executable = Executable(to_onnx(graph, name="sums"), threads=2)
    for _ in range(5):
        result = executable.run(dict(zip(graph.inputs, feeds, strict=True)))["output"]
        np.testing.assert_array_equal(result[:, 0], np.bincount(ids))
        np.testing.assert_array_equal(result, result[:, :1].repeat(64, axis=1))


def test_both_embeddings_have_the_same_gradient() -> None:
    table, ids = np.random.default_rng(0).normal(size=(6, 3)), np.asarray([[1, 5, 1], [0, 1, 1]], np.int32)

    def gradient(fn: Callable[..., Array]) -> NDArray:
        return grad(lambda t: cnp.sum(cnp.sin(fn(t, ids)) * cnp.arange(18, dtype="float64").reshape(2, 3, 3)))(
            Array(table)
        ).numpy()

    np.testing.assert_allclose(gradient(ops.touching_embedding), gradient(ops.embedding), rtol=1e-12)


@pytest.mark.parametrize("part", [lambda x: x[::-1], lambda x: x[1::2], lambda x: cnp.flip(x, axis=0)])
def test_the_gradient_of_a_part_at_known_places_is_no_product(part: Callable[[Array], Array]) -> None:
    graph = trace(grad(lambda x: cnp.sum(cnp.sin(part(x)))), np.ones((5, 3), np.float32)).graph
    assert "matmul" not in {node.primitive for node in graph.nodes}


def test_elementary_functions_keep_the_dtype() -> None:
    for f in ELEMENTARY:
        operands = [Array(x.astype(np.float16)) for x in f.operands]
        assert f.ours(*operands).type.dtype == "float16", f.name
