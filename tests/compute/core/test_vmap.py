"""vmap is a loop over the examples: for every primitive, nested, over gradients, under them, and in ONNX (B7)."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.autodiff import grad, value_and_grad
from coterie.compute.batching import vmap
from coterie.compute.interactive.jit import jit
from coterie.compute.ir import NDArray
from coterie.compute.passes import optimise
from coterie.compute.trace import TensorSpec, trace
from coterie.errors import InputError, ShapeError
from tests.compute.core.cases import CASES, Case, apply

SIZE = 3


def mixtures(c: Case) -> list[tuple[int | None, ...]]:
    """Every way to map some operands and share the others."""
    return [axes for axes in product((0, None), repeat=len(c.operands)) if 0 in axes]


LAW = [
    pytest.param(name, c, axes, id=f"{name}-{i}-{''.join('m' if a == 0 else 's' for a in axes)}")
    for name, cases in CASES.items()
    for i, c in enumerate(cases)
    for axes in mixtures(c)
]


def examples(x: NDArray, axis: int | None) -> NDArray:
    """Examples made from one operand: other floats, other order of integers."""
    if axis is None:
        return x
    if x.dtype.kind == "f":
        return np.stack([x * (1.0 - 0.11 * i) + 0.003 * i for i in range(SIZE)])
    return np.stack([np.roll(x, i) for i in range(SIZE)])


@pytest.mark.parametrize(("name", "c", "axes"), LAW)
def test_the_batch_rule_of_a_primitive_is_a_loop(name: str, c: Case, axes: tuple[int | None, ...]) -> None:
    operands = [examples(x, axis) for x, axis in zip(c.operands, axes, strict=True)]
    function = apply(name, c)
    looped = [
        function(*(Array(np.asarray(x if axis is None else x[i])) for x, axis in zip(operands, axes, strict=True)))
        for i in range(SIZE)
    ]
    batched = vmap(function, in_axes=axes)(*map(Array, operands))
    assert batched.dtype == looped[0].dtype
    np.testing.assert_allclose(batched.numpy(), np.stack([x.numpy() for x in looped]), rtol=1e-12, atol=1e-12)


def test_a_constant_is_one_for_all_examples() -> None:
    for c in CASES["constant"]:
        value = c.attributes["value"]
        batched = vmap(lambda x, c=c: (apply("constant", c)(), x), out_axes=(None, 0))(cnp.ones(2))
        np.testing.assert_array_equal(batched[0].numpy(), value)


RNG = np.random.default_rng(0)
X = Array(RNG.normal(size=(5, 4)).astype(np.float32))
W = {
    "hidden": Array(RNG.normal(size=(4, 6)).astype(np.float32)),
    "out": Array(RNG.normal(size=(6, 3)).astype(np.float32)),
}
LABELS = Array(np.asarray([0, 2, 1, 1, 0], np.int32))


def loss(w: dict[str, Array], x: Array, label: Array) -> Array:
    logits = cnp.tanh(x @ w["hidden"]) @ w["out"]
    return -cnp.sum(ops.log_softmax(logits) * ops.one_hot(label, 3))


def loop(fn: Callable[..., Any], *arguments: Array) -> list[Any]:
    return [fn(*(a[i] for a in arguments)) for i in range(len(arguments[0]))]


@pytest.mark.capability("B7")
def test_gradients_for_each_example_are_those_of_a_loop_also_in_onnx() -> None:
    each = vmap(grad(loss), in_axes=(None, 0, 0))
    expected = loop(lambda x, y: grad(loss)(W, x, y), X, LABELS)
    for gradients in (each(W, X, LABELS), jit(each)(W, X, LABELS)):
        for name in W:
            assert gradients[name].shape == (5, *W[name].shape)
            np.testing.assert_allclose(
                gradients[name].numpy(), np.stack([g[name].numpy() for g in expected]), rtol=1e-5, atol=1e-6
            )


def test_convolution_gradients_for_each_example_in_onnx() -> None:
    images = Array(RNG.normal(size=(3, 2, 6, 5)).astype(np.float32))
    weights = Array(RNG.normal(size=(4, 2, 3, 2)).astype(np.float32))

    def pooled(w: Array, x: Array) -> Array:
        return cnp.sum(cnp.tanh(ops.max_pool2d(ops.conv2d(x[None], w, padding=1), 2)))

    each = vmap(grad(pooled), in_axes=(None, 0))
    expected = np.stack([grad(pooled)(weights, images[i]).numpy() for i in range(3)])
    np.testing.assert_allclose(each(weights, images).numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jit(each)(weights, images).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_a_sum_over_vmap_is_the_sum_of_gradients() -> None:
    total = grad(lambda w: cnp.sum(vmap(loss, in_axes=(None, 0, 0))(w, X, LABELS)))(W)
    parts = vmap(grad(loss), in_axes=(None, 0, 0))(W, X, LABELS)
    for name in W:
        np.testing.assert_allclose(total[name].numpy(), parts[name].numpy().sum(0), rtol=1e-4, atol=1e-5)


def test_gradients_of_weights_held_by_closure_pass_through_vmap() -> None:
    scale = cnp.asarray(2.0)
    (g,) = grad(lambda x: cnp.sum(vmap(lambda row: cnp.sum(row) * scale)(x)), None, weights=[scale])(X)
    assert g.item() == pytest.approx(float(X.numpy().sum()), rel=1e-5)


def test_nested_vmap_is_a_nested_loop() -> None:
    a, b = Array(RNG.normal(size=(3, 4))), Array(RNG.normal(size=(5, 4)))
    outer = vmap(lambda x: vmap(lambda y: cnp.sum(x * y))(b))(a)
    np.testing.assert_allclose(outer.numpy(), a.numpy() @ b.numpy().T)
    crossed = vmap(vmap(lambda x, y: x @ y, in_axes=(None, 1)), in_axes=(0, None))(a, b.T)
    np.testing.assert_allclose(crossed.numpy(), a.numpy() @ b.numpy().T)


def test_a_hessian_is_vmap_over_the_pullback_of_a_gradient() -> None:
    matrix = np.asarray([[2.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 1.0]])
    f = lambda x: 0.5 * cnp.sum(x * (Array(matrix) @ x))  # noqa: E731
    x = Array(np.asarray([1.0, 2.0, 3.0]))
    hessian = vmap(lambda v: grad(lambda z: cnp.sum(grad(f)(z) * v))(x))(cnp.eye(3, dtype="float64"))
    np.testing.assert_allclose(hessian.numpy(), matrix)


AXES: list[tuple[str, Any, Any, Callable[..., Any], tuple[Any, ...], Callable[..., Any]]] = [
    ("first", 0, 0, lambda x: x * 2.0, (X,), lambda x: x * 2),
    ("last in", -1, 0, lambda x: x * 2.0, (X,), lambda x: x.T * 2),
    ("last out", 0, -1, lambda x: x * 2.0, (X,), lambda x: x.T * 2),
    ("both", 1, 1, lambda x: cnp.concat([x, x]), (X,), lambda x: np.concatenate([x, x])),
    ("shared", (0, None), 0, lambda x, y: x + y, (X, X[0]), lambda x, y: x + y),
    ("axis of each", (0, 1), 0, lambda x, y: x * y, (X, X.T), lambda x, y: x * x),
    ("list", [0, None], 0, lambda x, y: x + y, (X, X[0]), lambda x, y: x + y),
    (
        "tree",
        ({"a": 0, "b": None},),
        0,
        lambda t: t["a"] + t["b"],
        ({"a": X, "b": X[0]},),
        lambda t: t["a"].numpy() + t["b"].numpy(),
    ),
    (
        "prefix",
        ((None, 0),),
        0,
        lambda t: t[0]["s"] * t[1][0],
        (({"s": X[0]}, [X]),),
        lambda t: t[0]["s"].numpy() * t[1][0].numpy(),
    ),
    ("static", (0, None), 0, lambda x, k: x[:k], (X, 2), lambda x, k: x[:, :k]),
    ("not mapped out", 0, 0, lambda x: cnp.ones(2), (X,), lambda x: np.ones((5, 2))),
    ("not mapped out, last", 0, -1, lambda x: cnp.ones(2), (X,), lambda x: np.ones((2, 5))),
    ("not mapped out, once", 0, None, lambda x: cnp.ones(2), (X,), lambda x: np.ones(2)),
]


@pytest.mark.capability("B7")
@pytest.mark.parametrize(
    ("in_axes", "out_axes", "fn", "arguments", "expected"), [a[1:] for a in AXES], ids=[a[0] for a in AXES]
)
def test_axes(in_axes: Any, out_axes: Any, fn: Any, arguments: Any, expected: Any) -> None:
    result = vmap(fn, in_axes=in_axes, out_axes=out_axes)(*arguments).numpy()
    plain = [a.numpy() if isinstance(a, Array) else a for a in arguments]
    np.testing.assert_allclose(result, expected(*plain), rtol=1e-6)


def test_results_are_trees_with_axes_of_their_own() -> None:
    fn = vmap(
        lambda x: {"row": x, "sum": cnp.sum(x), "two": cnp.asarray(2.0)}, out_axes={"row": 1, "sum": 0, "two": None}
    )
    result = fn(X)
    assert (result["row"].shape, result["sum"].shape, result["two"].shape) == ((4, 5), (5,), ())


REFUSALS: list[tuple[str, Any, Any, tuple[Any, ...], type[InputError], str]] = [
    ("nothing mapped", (None,), 0, (X,), InputError, "nothing to map over"),
    ("none mapped", None, 0, (X,), InputError, "nothing to map over"),
    ("sizes", 0, 0, (X, X.T), InputError, "argument 0: 5, argument 1: 4"),
    ("count", (0,), 0, (X, X), InputError, "1 in_axes for 2 arguments"),
    ("axis", 2, 0, (X,), ShapeError, r"float32\[5,4\].*no axis 2"),
    ("negative axis", -3, 0, (X,), ShapeError, "no axis -3"),
    ("number", 0, 0, (X, 2.0), ShapeError, "argument 1 is an array of 0 axes.*None"),
    ("text", 0, 0, (X, "mean"), ShapeError, "argument 1 is no array.*None"),
    ("tree", ({"a": 0},), 0, ({"b": X},), InputError, "in_axes .* do not fit a dict of 1"),
    ("bool", True, 0, (X,), InputError, "do not fit"),
    ("out None", 0, None, (X,), InputError, "differs between examples.*None"),
    ("out tree", 0, (0, 0), (X,), InputError, "out_axes .* do not fit a leaf"),
]


@pytest.mark.parametrize(
    ("in_axes", "out_axes", "arguments", "kind", "message"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS]
)
def test_axes_that_do_not_fit_are_refused(
    in_axes: Any, out_axes: Any, arguments: Any, kind: type[InputError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        vmap(lambda *a: a[0], in_axes=in_axes, out_axes=out_axes)(*arguments)


def test_numbers_drawn_on_the_host_are_the_same_for_every_example() -> None:
    rng = np.random.default_rng(1)
    drawn = vmap(lambda x: x * 0.0 + float(rng.normal()))(cnp.zeros(4)).numpy()
    assert len(set(drawn.tolist())) == 1


def test_an_index_outside_its_own_table_is_refused_and_reaches_no_other() -> None:
    tables, ids = Array(RNG.normal(size=(3, 4))), Array(np.asarray([[0], [4], [0]], np.int32))
    with pytest.raises(InputError, match="leave axis 0"):
        vmap(lambda t, i: cnp.take(t, i))(tables, ids)
    below = Array(np.asarray([[0], [-5], [0]], np.int32))
    with pytest.raises(InputError, match="leave axis 0"):
        vmap(lambda t, i: cnp.take(t, i))(tables, below)
    last = Array(np.asarray([[-1], [-4], [3]], np.int32))
    expected = tables.numpy()[[0, 1, 2], [-1, -4, 3]]
    np.testing.assert_array_equal(vmap(lambda t, i: cnp.take(t, i))(tables, last).numpy()[:, 0], expected)


def test_the_graph_does_not_grow_with_the_number_of_examples() -> None:
    def count(n: int) -> int:
        each = vmap(value_and_grad(loss), in_axes=(None, 0, 0))
        return len(optimise(trace(each, W, TensorSpec((n, 4)), TensorSpec((n,), "int32")).graph).nodes)

    assert count(2) == count(200)
