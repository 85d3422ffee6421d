"""Operators in index notation compute what NumPy computes, and obey the laws of primitives."""

# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import itertools
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import Array, TensorSpec, check_primitive, grad, jit, ops, optimise, primitive, to_onnx, trace
from coterie.compute import numpy as cnp
from coterie.compute.runtime.executable import Executable
from coterie.compute.science.dsl import (
    axes,
    define,
    exp,
    log,
    max_over,
    maximum,
    min_over,
    minimum,
    pointwise,
    sqrt,
    sum_over,
    tanh,
    tensors,
)
from coterie.compute.science.dsl.expression import (
    Access,
    Axis,
    Expression,
    Index,
    Number,
    Pointwise,
    Reduction,
    as_expression,
)
from coterie.compute.science.dsl.operator import Operator
from coterie.errors import InputError, ShapeError
from tests.compute.extension.primitives import spread

b, c, h, i, j, k, m, o, w = axes("bchijkmow")
A, B, C, X, W = tensors("A B C X W")


def conv1d(x: Any, kernel: Any) -> Any:
    return np.stack([np.correlate(x, kernel, "valid")])[0]


def conv1d_channels(x: Any, kernel: Any) -> Any:
    length = x.shape[2] - kernel.shape[2] + 1
    parts = np.stack([x[:, :, at : at + kernel.shape[2]] for at in range(length)], axis=-1)
    return np.einsum("bckm,ock->bom", parts, kernel)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


CASES: dict[str, tuple[Operator, tuple[Any, ...], Callable[..., Any]]] = {
    "matmul": (define(C[i, j], sum_over(k, A[i, k] * B[k, j])), (spread(3, 4), spread(4, 2)), np.matmul),
    "transposed matmul": (
        define(C[j, i], sum_over(k, A[i, k] * B[j, k])), (spread(3, 4), spread(2, 4)), lambda a, x: x @ a.T),
    "batched matmul": (
        define(C[b, i, j], sum_over(k, A[b, i, k] * B[b, k, j])), (spread(2, 3, 4), spread(2, 4, 2)), np.matmul),
    "three factors": (
        define(C[i], 0.5 * sum_over((j, k), A[i, j] * B[j, k] * W[k] * 2.0)), (spread(3, 4), spread(4, 2), spread(2)),
        lambda a, x, v: a @ x @ v),
    "sigmoid": (define(C[i], 1.0 / (1.0 + exp(-A[i]))), (spread(5),), lambda x: 1 / (1 + np.exp(-x))),
    "softmax": (
        define(C[i, j], exp(A[i, j] - max_over(k, A[i, k])) / sum_over(m, exp(A[i, m] - max_over(k, A[i, k])))),
        (spread(3, 5),), softmax),
    "softmax with one letter": (
        define(C[i, j], exp(A[i, j]) / sum_over(j, exp(A[i, j]))), (spread(3, 5),), softmax),
    "conv1d": (define(C[i], sum_over(k, X[i + k] * W[k])), (spread(9), spread(3)), conv1d),
    "conv1d of a long kernel": (define(C[i], sum_over(k, X[i + k] * W[k])), (spread(90), spread(40)), conv1d),
    "conv1d with stride and dilation": (
        define(C[i], sum_over(k, X[2 * i + 3 * k] * W[k])), (spread(12), spread(3)),
        lambda x, v: np.asarray([sum(x[2 * p + 3 * q] * v[q] for q in range(3)) for p in range(3)])),
    "conv1d with channels": (
        define(C[b, o, m], sum_over((c, k), X[b, c, m + k] * W[o, c, k])), (spread(2, 3, 8), spread(4, 3, 3)),
        conv1d_channels),
    "true convolution": (
        define(C[i], sum_over(k, X[i - k + 2] * W[k]), sizes={i: 5}), (spread(7), spread(3)),
        lambda x, v: np.convolve(x, v, "valid")),
    "max pool": (
        define(C[h, w], max_over((i, j), X[2 * h + i, 2 * w + j]), sizes={i: 2, j: 2}), (spread(4, 6),),
        lambda x: x.reshape(2, 2, 3, 2).max(axis=(1, 3))),
    "trace": (define(C[()], sum_over(i, A[i, i])), (spread(4, 4),), np.trace),
    "diagonal beside": (define(C[j, i], A[i, j, i]), (spread(3, 4, 3),), lambda x: np.einsum("iji->ji", x)),
    "shifted difference": (define(C[i], A[i + 1] - A[i], sizes={i: 4}), (spread(5),), np.diff),
    "fewer columns": (define(C[i, j], A[i, j], sizes={j: 2}), (spread(3, 4),), lambda x: x[:, :2]),
    "reversed": (define(C[i], A[4 - i], sizes={i: 5}), (spread(5),), lambda x: x[::-1]),
    "column": (define(C[i], A[i, 1]), (spread(3, 4),), lambda x: x[:, 1]),
    "outer": (define(C[i, j], A[i] * B[j]), (spread(3), spread(4)), np.outer),
    "repeated": (define(C[i, j], A[i] + 0.0, sizes={j: 3}), (spread(2),), lambda x: np.stack([x] * 3, axis=1)),
    "distances": (
        define(C[i, j], sqrt(sum_over(k, (A[i, k] - B[j, k]) ** 2))), (spread(3, 2), spread(4, 2, seed=5)),
        lambda x, y: np.linalg.norm(x[:, None] - y[None], axis=-1)),
    "clipped": (
        define(C[i], minimum(maximum(A[i], -0.5), 0.5) + log(1.0 + exp(min_over(j, tanh(A[j]))))), (spread(6),),
        lambda x: np.clip(x, -0.5, 0.5) + np.log(1 + np.exp(np.tanh(x).min()))),
    "a function of one's own": (
        define(C[i], pointwise(ops.gelu)(A[i]) - 1), (spread(6),),
        lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) - 1),
}  # fmt: skip
CASE = pytest.mark.parametrize(("operator", "operands", "expected"), CASES.values(), ids=CASES.keys())


@pytest.mark.capability("C7")
@CASE
def test_c7_an_operator_is_what_numpy_computes(operator: Operator, operands: Any, expected: Callable[..., Any]) -> None:
    np.testing.assert_allclose(operator(*operands).numpy(), expected(*operands), rtol=1e-12, atol=1e-12)


@pytest.mark.capability("C7")
@CASE
def test_c7_gradients_to_second_order_and_vmap_follow(operator: Operator, operands: Any, expected: Any) -> None:
    names = tuple(tensor.name for tensor in operator.operands)
    check_primitive(primitive(f"test.{operator.__name__}", inputs=names)(operator), *operands)


@pytest.mark.capability("C7")
@CASE
def test_c7_a_file_of_it_computes_the_same(operator: Operator, operands: Any, expected: Callable[..., Any]) -> None:
    arrays = [x.astype(np.float32) for x in operands]
    graph = optimise(trace(lambda *given: {"result": operator(*given)}, *arrays).graph)
    run = Executable(to_onnx(graph, name="operator")).run
    feeds = {name: x.reshape(x.shape or (1,)) for name, x in zip(graph.inputs, arrays, strict=True)}
    value = expected(*operands)
    np.testing.assert_allclose(run(feeds)["result"].reshape(np.shape(value)), value, rtol=1e-4, atol=1e-5)


def test_a_contraction_is_one_matrix_product() -> None:
    matmul, specs = CASES["matmul"][0], (TensorSpec((3, 4)), TensorSpec((4, 2)))
    assert [n.primitive for n in optimise(trace(matmul, *specs).graph).nodes] == ["matmul"]
    many = CASES["conv1d with channels"][0]
    graph = optimise(trace(many, TensorSpec((2, 3, 8)), TensorSpec((4, 3, 3))).graph)
    assert [n.primitive for n in graph.nodes].count("matmul") == 1


def test_it_works_under_jit_and_grad_and_says_what_it_is() -> None:
    conv = CASES["conv1d"][0]
    assert str(conv) == "C[i] = sum(k: (X[i + k] * W[k]))"
    x, v = cnp.asarray(spread(9)), cnp.asarray(spread(3))
    gradient = jit(grad(lambda kernel: cnp.sum(conv(x, kernel) ** 2.0)), fullgraph=True)(v)
    y = conv1d(x.numpy(), v.numpy())
    np.testing.assert_allclose(gradient.numpy(), 2 * np.correlate(x.numpy(), y, "valid"), rtol=1e-9)
    half = Array(spread(3).astype(np.float16))
    assert define(C[i], (1 + as_expression(0.5)) * A[i] * 2)(half).type.dtype == "float16"  # numbers have no dtype
    assert define(C[i], -A[i] * 2 + 1)(np.asarray([1, 2], np.int32)).numpy().tolist() == [-1, -3]
    matrix = Array(spread(2, 2))
    np.testing.assert_allclose(define(C[i, j], B[j, i] - A[i, j], operands=(A, B))(matrix, matrix).numpy(),
                               matrix.numpy().T - matrix.numpy())  # fmt: skip


SIZES = {"i": 2, "j": 3, "k": 4}


@st.composite
def equations(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    """A random expression over the axes i, j, k, and operands that its indices just fit into."""
    operands: dict[str, Any] = {}

    def index() -> Any:
        used = draw(st.lists(st.sampled_from([i, j, k]), max_size=2, unique=True))
        factors = [draw(st.sampled_from([-2, -1, 1, 1, 1, 2])) for _ in used]
        lowest = sum(f * (SIZES[a.name] - 1) for a, f in zip(used, factors, strict=True) if f < 0)
        return sum((f * a for a, f in zip(used, factors, strict=True)), Index((), draw(st.integers(0, 1)) - lowest))

    def expression(depth: int) -> Any:
        kind = draw(st.sampled_from(["access", "access", "binary", "reduce", "number"] if depth < 3 else ["access"]))
        if kind == "number":
            return as_expression(draw(st.sampled_from([-1.5, 0.5, 2])))
        if kind == "access":
            indices = tuple(index() for _ in range(draw(st.integers(0, 3))))
            extents = [x.offset + sum(max(0, f * (SIZES[a.name] - 1)) for a, f in x.terms) + 1 for x in indices]
            name = f"T{len(operands)}"
            operands[name] = spread(*extents, seed=len(operands))
            return tensors(f"{name} _")[0][indices]
        if kind == "binary":
            a, b = expression(depth + 1), expression(depth + 1)
            return {"+": a + b, "-": a - b, "*": a * b}[draw(st.sampled_from("+-**"))]
        body = expression(depth + 1)
        over = draw(st.lists(st.sampled_from(body.free()), min_size=1, unique=True)) if body.free() else []
        return draw(st.sampled_from([sum_over, sum_over, max_over]))(over, body) if over else body

    return expression(0), operands


def meaning(x: Expression, operands: dict[str, Any], at: dict[Any, int]) -> Any:
    """One element, by the definition."""
    match x:
        case Number(value):
            return value
        case Access(tensor, indices):
            return operands[tensor.name][tuple(n.offset + sum(f * at[a] for a, f in n.terms) for n in indices)]
        case Pointwise(name, _, (a, b)):
            p, q = meaning(a, operands, at), meaning(b, operands, at)
            return {"+": p + q, "-": p - q, "*": p * q}[name]
        case Reduction(kind, over, body):
            places = itertools.product(*(range(SIZES[a.name]) for a in over))
            values = [meaning(body, operands, {**at, **dict(zip(over, p, strict=True))}) for p in places]
            return sum(values) if kind == "sum" else max(values)
        case _:
            raise AssertionError(x)


@pytest.mark.capability("C7")
@settings(max_examples=150)
@given(drawn=equations())
def test_c7_random_equations_mean_what_their_definition_says(drawn: tuple[Any, dict[str, Any]]) -> None:
    expression, operands = drawn
    sizes = {Axis(name): size for name, size in SIZES.items()}
    order = expression.free()
    operator = define(C[tuple(order)], expression, sizes=sizes)
    found = operator(*(operands[tensor.name] for tensor in operator.operands)).numpy()
    expected = np.empty([sizes[axis] for axis in order])
    for place in np.ndindex(expected.shape):
        expected[place] = meaning(expression, operands, dict(zip(order, place, strict=True)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


WRONG: list[tuple[Callable[[], Any], type[InputError], str]] = [
    (lambda: define(C[i], sum_over(k, A[i, k]))(spread(3)), ShapeError, r"A\[i, k\] has 2 indices.*shape \[3\]"),
    (lambda: CASES["matmul"][0](spread(3, 4), spread(5, 2)), ShapeError,
     r"test_dsl.py:\d+: C\(float64\[3,4\], float64\[5,2\]\): the axis k is 5 in B\[k, j\] and 4"),
    (lambda: CASES["conv1d"][0](spread(2), spread(3)), ShapeError, "axis i has no position"),
    (lambda: define(C[i], A[i + 1], sizes={i: 5})(spread(5)), ShapeError, "from 1 to 5 along axis 0 of A, which has 5"),
    (lambda: define(C[i], A[i + 1] - A[i])(spread(5)), ShapeError, "from 1 to 5"),
    (lambda: define(C[i], A[i], sizes={i: 6})(spread(5)), ShapeError, "from 0 to 5"),
    (lambda: define(C[i], A[i - 1])(spread(5)), ShapeError, "reaches from -1"),
    (lambda: define(C[i], sum_over(k, A[i + k]))(spread(5)), ShapeError, "nothing says how far the axis i runs"),
    (lambda: CASES["matmul"][0](spread(3, 4)), InputError, "takes A, B and got 1"),
    (lambda: define(C[i], A[i, j]), InputError, "does not have the axis j"),
    (lambda: define(C[i, i], A[i, i]), InputError, "not indexed by different axes"),
    (lambda: define(C[i + 1], A[i]), InputError, "not indexed by different axes"),
    (lambda: define(C[i, j], A[i]), InputError, "how far j runs"),
    (lambda: define(C[i], A[i], operands=(B,)), InputError, "the operands of .* are A"),
    (lambda: sum_over(k, A[i]), InputError, "does not depend on k"),
    (lambda: A[1.5], InputError, "not an index"),
    (lambda: A["i"], InputError, "not an index"),
    (lambda: i * cast(Any, 0.5), InputError, "multiplied by 0.5"),
    (lambda: A[i] + cast(Any, "x"), InputError, "cannot stand in an expression"),
    (lambda: A[i] if A[i] else 0, InputError, "no truth value"),
    (lambda: axes("i i"), InputError, "not a list of names"),
    (lambda: tensors("1A B"), InputError, "not a list of names"),
]  # fmt: skip


@pytest.mark.parametrize(("act", "kind", "message"), WRONG, ids=[w_[2][:28] for w_ in WRONG])
def test_an_equation_that_makes_no_sense_is_refused(
    act: Callable[[], Any], kind: type[InputError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        act()
