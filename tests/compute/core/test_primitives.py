"""The laws of every primitive: eager = interpreted = ONNX Runtime, gradients = finite differences to second order, and
both again on ONNX Runtime.
"""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from coterie.compute import numpy as cnp
from coterie.compute.array import Array, bind
from coterie.compute.autodiff import grad
from coterie.compute.interactive.jit import jit
from coterie.compute.interpret import interpret
from coterie.compute.ir import NDArray
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.table import PLAIN
from coterie.compute.trace import trace
from coterie.errors import DTypeError, InputError
from tests.compute.core.cases import CASES, TABLE, A, Case, apply, floats, ints, single

# The operators of a portable plan, and Where, which only an explicit choice emits.
PORTABLE = set(
    "MatMul Gemm Conv ConvTranspose MaxPool AveragePool Resize Softmax Relu Sigmoid Tanh Exp Log Sqrt "
    "Add Sub Mul Div Min Max Clip Equal Greater Cast "
    "ReduceSum ReduceMax Transpose Reshape Concat Slice Pad Unsqueeze Expand Gather Where".split()
)
# What these primitives need besides, which fewer providers have: their users choose them.
BEYOND = {
    "sin": {"Sin"},
    "cos": {"Cos"},
    "atan": {"Atan"},
    "erf": {"Erf"},
    "floor": {"Floor"},
    "power": {"Pow"},
    "cumsum": {"CumSum"},
    "top_k": {"TopK"},
    "gather_along": {"GatherElements"},
    "scatter_add": {"ScatterElements"},
}

ALL = [pytest.param(name, c, id=f"{name}-{i}") for name, cases in CASES.items() for i, c in enumerate(cases)]


def test_every_primitive_has_cases_and_every_case_a_primitive() -> None:
    assert set(CASES) == PLAIN
    assert all(CASES.values())


@pytest.mark.parametrize(("name", "c"), ALL)
def test_eager_interpreted_and_onnx_agree(name: str, c: Case) -> None:
    c = single(c)
    eager = apply(name, c)(*map(Array, c.operands)).numpy()
    traced = trace(apply(name, c), *c.operands)
    interpreted = interpret(traced.graph, dict(zip(traced.graph.inputs, c.operands, strict=True)))["output"]
    compiled = jit(apply(name, c))(*c.operands).numpy()
    assert eager.dtype == interpreted.dtype == compiled.dtype
    np.testing.assert_array_equal(eager, interpreted)
    np.testing.assert_allclose(compiled, eager, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("name", "c"), ALL)
def test_lowerings_are_portable(name: str, c: Case) -> None:
    c = single(c)
    model = onnx.load_from_string(to_onnx(trace(apply(name, c), *c.operands).graph, name=name))
    onnx.checker.check_model(model, full_check=True)
    assert {node.op_type for node in model.graph.node} <= PORTABLE | BEYOND.get(name, set())
    assert (model.opset_import[0].version, model.ir_version) == (17, 8)


def differentiable(name: str, c: Case) -> bool:
    if not floats(c):
        return False
    return apply(name, c)(*map(Array, c.operands)).type.is_float


SMOOTH = [
    pytest.param(name, c, id=f"{name}-{i}")
    for name, cases in CASES.items()
    for i, c in enumerate(cases)
    if differentiable(name, c)
]
STEPPED = [
    pytest.param(name, c, id=f"{name}-{i}")
    for name, cases in CASES.items()
    for i, c in enumerate(cases)
    if floats(c) and not differentiable(name, c)
]


def weighted(name: str, c: Case, order: int) -> Callable[..., Array]:
    """A scalar function of the operands: the result (order 1), or all its gradients (order 2), summed with fixed random
    weights.
    """
    rng = np.random.default_rng(7)

    def weigh(x: Array) -> Array:
        return cnp.sum(x * Array(rng_like(x)))

    def rng_like(x: Array) -> NDArray:
        key = (x.type.dtype, x.shape)
        if key not in drawn:
            drawn[key] = rng.normal(size=x.shape).astype(x.type.dtype)
        return drawn[key]

    drawn: dict[Any, NDArray] = {}
    first = lambda *operands: weigh(bind(name, *operands, **c.attributes))  # noqa: E731
    if order == 1:
        return first
    second = grad(first, floats(c))
    return lambda *operands: sum(
        (weigh(g) for g in second(*operands)),
        start=Array(np.zeros((), np.float64 if c.operands[floats(c)[0]].dtype == np.float64 else np.float32)),
    )


# These two are no smooth functions of their operand: they have tests of their own below.
MEASURABLE = [parameters for parameters in SMOOTH if parameters.values[0] not in ("astype", "stop_gradient")]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("name", "c"), MEASURABLE)
def test_gradients_are_finite_differences(name: str, c: Case, order: int) -> None:
    function = weighted(name, c, order)
    gradients = grad(function, floats(c))(*map(Array, c.operands))
    rng = np.random.default_rng(3)
    step = 1e-5
    for _ in range(3):
        direction = [rng.normal(size=x.shape) if i in floats(c) else None for i, x in enumerate(c.operands)]
        moved = [
            [
                Array(x if d is None else np.asarray(x + sign * step * d))
                for x, d in zip(c.operands, direction, strict=True)
            ]
            for sign in (1, -1)
        ]
        measured = (function(*moved[0]).item() - function(*moved[1]).item()) / (2 * step)
        told = sum(float((g.numpy() * direction[i]).sum()) for g, i in zip(gradients, floats(c), strict=True))
        assert told == pytest.approx(measured, rel=2e-6, abs=2e-6)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("name", "c"), SMOOTH)
def test_gradients_on_onnx_are_those_of_numpy(name: str, c: Case, order: int) -> None:
    c = single(c)
    gradient = grad(weighted(name, c, order), floats(c))
    eager = gradient(*map(Array, c.operands))
    compiled = jit(gradient)(*c.operands)
    for ours, theirs in zip(eager, compiled, strict=True):
        scale = max(1.0, float(np.abs(ours.numpy()).max(initial=0.0)))
        np.testing.assert_allclose(theirs.numpy(), ours.numpy(), rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize(("name", "c"), STEPPED)
def test_a_result_that_is_not_a_float_has_no_gradient_and_says_so(name: str, c: Case) -> None:
    scalar = lambda *operands: cnp.sum(cnp.astype(bind(name, *operands, **c.attributes), "int32"))  # noqa: E731
    with pytest.raises(DTypeError, match="not a float"):
        grad(scalar, floats(c))(*map(Array, c.operands))


def test_conversion_passes_gradients_between_floats_only() -> None:
    x = Array(A.astype(np.float32))
    through = grad(lambda v: cnp.sum(cnp.astype(v, "float64") * 3.0))(x)
    assert through.dtype == np.float32
    np.testing.assert_array_equal(through.numpy(), np.full((3, 4), 3.0, np.float32))
    stopped = grad(lambda v: cnp.sum(cnp.astype(cnp.astype(v, "int32"), "float32")))(x)
    np.testing.assert_array_equal(stopped.numpy(), np.zeros((3, 4), np.float32))


def test_stop_gradient_stops_it_and_keeps_the_value() -> None:
    function = lambda v: cnp.sum(v * bind("stop_gradient", v))  # noqa: E731
    np.testing.assert_array_equal(grad(function)(Array(A)).numpy(), A)


def test_an_index_outside_the_table_is_refused() -> None:
    with pytest.raises(InputError, match="indices -1 to 5 leave axis 0 of size 5"):
        bind("gather", Array(TABLE), Array(ints(-1, 5)), axis=0)


@pytest.mark.parametrize("kernel", [(2, 2), (3, 3)])
def test_equal_maxima_of_a_window_share_the_gradient(kernel: tuple[int, int]) -> None:
    x = Array(np.ones((1, 1, 4, 4)))
    pooled = lambda v: cnp.sum(bind("max_pool", v, kernel=kernel, stride=(2, 2), padding=((0, 0), (0, 0))))  # noqa: E731
    g = grad(pooled)(x).numpy()
    assert g.sum() == pytest.approx(4.0 if kernel == (2, 2) else 1.0)
    assert g.max() == pytest.approx(1 / (kernel[0] * kernel[1]))
