"""The array functions mean what NumPy means: evaluated, compiled, and called through NumPy's own names."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.interactive.jit import jit
from coterie.compute.ir import NDArray
from coterie.compute.trace import TensorSpec, trace
from coterie.errors import DTypeError, InputError

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
V = np.asarray([1.0, -2.0, 0.0, 4.0], np.float32)
T = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
IDS = np.asarray([2, 0, 2], np.int32)
MASK = X > 0

FUNCTIONS: list[tuple[str, Callable[..., Any], Callable[..., Any], tuple[NDArray, ...]]] = [
    ("operators", lambda x, y: (x + y) * x - y / (1.0 + x * x), lambda x, y: (x + y) * x - y / (1 + x * x), (X, Y)),
    ("reflected", lambda x: 1.0 - 2.0 / (3.0 + x * x), lambda x: 1 - 2 / (3 + x * x), (X,)),
    ("numpy on the left", lambda x: Y + x, lambda x: Y + x, (X,)),
    ("abs", lambda x: abs(x), np.abs, (X,)),
    ("sign", cnp.sign, np.sign, (V,)),
    ("square", cnp.square, np.square, (X,)),
    ("reciprocal", cnp.reciprocal, np.reciprocal, (X,)),
    ("power 3", lambda x: x**3, lambda x: x**3, (X,)),
    ("power -2", lambda x: x**-2, lambda x: x**-2.0, (X,)),
    ("power 0", lambda x: x**0, lambda x: x**0, (X,)),
    ("power half", lambda x: (x * x) ** 0.5, np.abs, (X,)),
    ("power real", lambda x: (x * x) ** 1.3, lambda x: (x * x) ** 1.3, (X,)),
    ("power array", lambda x, y: (x * x) ** y, lambda x, y: (x * x) ** y, (X, Y)),
    ("clip", lambda x: cnp.clip(x, -0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5), (X,)),
    ("clip below", lambda x: cnp.clip(x, 0.1), lambda x: np.maximum(x, 0.1), (X,)),
    ("where", lambda m, x, y: cnp.where(m, x, y), np.where, (MASK, X, Y)),
    ("not_equal", lambda x: x != 0.0, lambda x: x != 0, (V,)),
    ("less", lambda x, y: x < y, np.less, (X, Y)),
    ("less_equal", lambda x: x <= 0.0, lambda x: x <= 0, (V,)),
    ("greater_equal", lambda x: x >= 0.0, lambda x: x >= 0, (V,)),
    ("greater_equal NaN", lambda x: x >= 0.0, lambda x: x >= 0, (np.asarray([np.nan, 1.0], np.float32),)),
    ("not", lambda m: ~m, np.logical_not, (MASK,)),
    ("and", lambda m: m & (~m | m), lambda m: m, (MASK,)),
    ("xor", lambda m, x: m ^ (x > 1.0), lambda m, x: m ^ (x > 1), (MASK, X)),
    ("sum", lambda x: cnp.sum(x, axis=(0, -1)), lambda x: x.sum((0, -1)), (T,)),
    ("sum of bool", cnp.sum, np.sum, (MASK,)),
    ("mean", lambda x: cnp.mean(x, axis=1, keepdims=True), lambda x: x.mean(1, keepdims=True), (T,)),
    ("var", lambda x: cnp.var(x, axis=0), lambda x: x.var(0), (X,)),
    ("max", lambda x: x.max(axis=0), lambda x: x.max(0), (X,)),
    ("min", lambda x: x.min(axis=1), lambda x: x.min(1), (X,)),
    ("any", lambda m: cnp.any(m, axis=0), lambda m: m.any(0), (MASK,)),
    ("all", lambda m: cnp.all(m, axis=1), lambda m: m.all(1), (MASK,)),
    ("argmax", lambda x: cnp.argmax(x, axis=1), lambda x: x.argmax(1), (X,)),
    ("argmax of equals", cnp.argmax, np.argmax, (np.asarray([1.0, 3.0, 3.0], np.float32),)),
    ("argmin", lambda x: cnp.argmin(x, axis=0), lambda x: x.argmin(0), (X,)),
    ("matmul", cnp.matmul, np.matmul, (X, Y.T.copy())),
    ("vector @ matrix", cnp.matmul, np.matmul, (V, Y.T.copy())),
    ("matrix @ vector", cnp.matmul, np.matmul, (X, V)),
    ("vector @ vector", cnp.matmul, np.matmul, (V, V)),
    ("stack @ matrix", cnp.matmul, np.matmul, (T, Y.T.copy())),
    ("stack @ stack", lambda a: a @ a.mT, lambda a: a @ a.transpose(0, 2, 1), (T,)),
    ("tensordot", lambda a, b: cnp.tensordot(a, b, axes=1), lambda a, b: np.tensordot(a, b, 1), (T, Y.T.copy())),
    ("vecdot", cnp.vecdot, lambda a, b: (a * b).sum(-1), (X, Y)),
    ("reshape", lambda x: x.reshape(2, -1), lambda x: x.reshape(2, -1), (X,)),
    ("permute_dims", lambda x: cnp.permute_dims(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1), (T,)),
    ("moveaxis", lambda x: cnp.moveaxis(x, 0, -1), lambda x: np.moveaxis(x, 0, -1), (T,)),
    ("expand_dims", lambda x: cnp.expand_dims(x, -1), lambda x: x[..., None], (X,)),
    ("squeeze", lambda x: cnp.squeeze(x[None], 0), lambda x: x, (X,)),
    ("concat", lambda a, b: cnp.concat([a, b], axis=-1), lambda a, b: np.concatenate([a, b], -1), (X, Y)),
    ("concat flat", lambda a, b: cnp.concat([a, b], axis=None), lambda a, b: np.concatenate([a, b], None), (X, V)),
    ("stack", lambda a, b: cnp.stack([a, b], axis=1), lambda a, b: np.stack([a, b], 1), (X, Y)),
    ("split", lambda x: cnp.split(x, [1, 3], axis=1)[1], lambda x: x[:, 1:], (X,)),
    (
        "pad",
        lambda x: cnp.pad(x, [(1, 0), (0, 2)], value=2.0),
        lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=2),
        (X,),
    ),
    ("take", lambda x, i: cnp.take(x, i, axis=1), lambda x, i: x[:, i], (X, IDS)),
    ("flip", lambda x: cnp.flip(x, axis=0), lambda x: x[::-1], (X,)),
    ("tril", cnp.tril, np.tril, (X,)),
    ("triu", lambda x: cnp.triu(x, k=1), lambda x: np.triu(x, 1), (X,)),
    ("index int", lambda x: x[-1], lambda x: x[-1], (X,)),
    ("index slices", lambda x: x[..., 1:3, ::2], lambda x: x[..., 1:3, ::2], (T,)),
    ("index new axis", lambda x: x[:, None, 2], lambda x: x[:, None, 2], (X,)),
    ("index backwards", lambda x: x[::-1, 3:0:-2], lambda x: x[::-1, 3:0:-2], (X,)),
    ("index array", lambda x, i: x[i], lambda x, i: x[i], (X, IDS)),
    (
        "full",
        lambda x: x + cnp.full((3, 4), 2.0) + cnp.ones_like(x) + cnp.eye(3, 4),
        lambda x: x + 3 + np.eye(3, 4, dtype=np.float32),
        (X,),
    ),
    (
        "arange",
        lambda x: x * cnp.arange(4, dtype="float32") + cnp.arange(0.0, 1.0, 0.25),
        lambda x: x * np.arange(4) + np.arange(0, 1, 0.25),
        (X,),
    ),
    ("iteration", lambda x: sum(row for row in x), lambda x: x.sum(0), (X,)),
    ("softmax", ops.softmax, lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True), (X,)),
    ("log_softmax", ops.log_softmax, lambda x: np.log(np.exp(x) / np.exp(x).sum(-1, keepdims=True)), (X,)),
    ("logsumexp", lambda x: ops.logsumexp(x, axis=0), lambda x: np.log(np.exp(x).sum(0)), (X,)),
    ("log_sigmoid", ops.log_sigmoid, lambda x: -np.log1p(np.exp(-x)), (X,)),
    ("gelu", ops.gelu, lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), (X,)),
    ("one_hot", lambda i: ops.one_hot(i, 3), lambda i: np.eye(3)[i], (IDS,)),
    ("embedding", ops.embedding, lambda x, i: x[i], (X, IDS)),
]


@pytest.mark.parametrize(("ours", "theirs", "operands"), [f[1:] for f in FUNCTIONS], ids=[f[0] for f in FUNCTIONS])
def test_a_function_means_what_numpy_means(
    ours: Callable[..., Any], theirs: Callable[..., Any], operands: tuple[NDArray, ...]
) -> None:
    with np.errstate(all="ignore"):
        expected = np.asarray(theirs(*operands))
    eager = ours(*map(Array, operands))
    compiled = jit(ours)(*operands)
    assert eager.shape == expected.shape
    for result in (eager, compiled):
        np.testing.assert_allclose(result.numpy(), expected, rtol=2e-5, atol=2e-6)


THROUGH_NUMPY: list[Callable[..., Any]] = [
    lambda x: np.tanh(x),
    lambda x: np.add(x, 1.0),
    lambda x: np.matmul(x, x.T),
    lambda x: np.abs(x) ** 2,
    lambda x: np.sum(x, axis=1),
    lambda x: np.mean(x),
    lambda x: np.max(x, axis=0),
    lambda x: np.transpose(x),
    lambda x: np.reshape(x, (4, 3)),
    lambda x: np.concatenate([x, x], axis=1),
    lambda x: np.stack([x, x]),
    lambda x: np.where(x > 0, x, -x),
    lambda x: np.clip(x, -1.0, 1.0),
    lambda x: np.maximum(x, 0.0),
    lambda x: np.ones_like(x) - x,
    lambda x: np.float32(2.0) * x,
    lambda x: np.sin(x) + np.arctan2(x, 2.0 + x * x) + np.arcsinh(x) + np.expm1(x) + np.log1p(x * x),
    lambda x: np.power(x * x, np.abs(x)) + np.logaddexp(x, 1.0) + np.hypot(x, 1.0),
    lambda x: np.floor(x) + np.ceil(x) + np.trunc(x) + np.rint(x) + np.round(x, 1),
    lambda x: np.where(np.isnan(x) | np.isinf(x), 0.0, x) % 1.0 + x // 0.5,
    lambda x: np.std(x, axis=0, ddof=1) + np.var(x, ddof=1) + np.prod(x, axis=0),
    lambda x: np.count_nonzero(x, axis=1) * 2,
    lambda x: np.cumsum(x) + np.cumprod(x, axis=1).reshape(-1),
    lambda x: np.diff(x, axis=1) + np.sort(x, axis=1)[:, 1:],
    lambda x: np.take_along_axis(x, np.argsort(x, axis=1), axis=1) - np.sort(x),
    lambda x: np.searchsorted(np.sort(np.ravel(x)), x) * 2,
    lambda x: np.tile(x, 2) + np.repeat(x, 2, axis=1) + np.roll(np.tile(x, (1, 2)), 3, axis=1),
    lambda x: np.flip(x, 1) + np.swapaxes(np.swapaxes(x, 0, 1), 0, 1),
    lambda x: np.dot(x, np.transpose(x)) + np.einsum("ij,kj", x, x) + np.dot(x[0], x[1]) + np.dot(x, 2.0)[0, 0],
    lambda x: np.split(x, [1, 3], axis=1)[1] + np.split(x, 2, axis=1)[0],
    lambda x: sum(np.meshgrid(x[0], x[1])) + np.broadcast_arrays(x[0], x[:1])[0],
]


@pytest.mark.parametrize("fn", THROUGH_NUMPY)
def test_numpy_style_code_runs_unchanged(fn: Callable[..., Any]) -> None:
    expected = fn(X)
    assert isinstance(fn(Array(X)), Array)
    np.testing.assert_allclose(fn(Array(X)).numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(jit(fn)(X).numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda: cnp.asarray(1.5), "float32"),
        (lambda: cnp.asarray(2), "int32"),
        (lambda: cnp.asarray(True), "bool"),
        (lambda: cnp.asarray([1, 2]), "int32"),
        (lambda: cnp.asarray([1.0]), "float32"),
        (lambda: cnp.asarray(np.zeros(2)), "float64"),
        (lambda: cnp.asarray([1, 2], dtype="float32"), "float32"),
        (lambda: cnp.ones(2) * 2, "float32"),
        (lambda: cnp.ones(2) * np.float64(2.0), "float32"),
        (lambda: cnp.ones(2) + cnp.ones(2, dtype="float64"), "float64"),
        (lambda: cnp.arange(3) + 1, "int32"),
        (lambda: cnp.arange(3) + cnp.arange(3, dtype="int64"), "int64"),
        (lambda: cnp.asarray([cnp.ones(()), cnp.zeros(())]), "float32"),
        (lambda: cnp.sum(cnp.asarray([True, True])), "int32"),
    ],
)
def test_dtypes_follow_the_rules(make: Callable[[], Array], dtype: str) -> None:
    assert make().type.dtype == dtype


def test_numpy_data_of_a_dtype_that_is_not_ours_is_refused() -> None:
    with pytest.raises(DTypeError, match="no arrays of dtype complex128"):
        cnp.asarray(np.zeros(2, np.complex128))


def test_python_protocols_of_an_array() -> None:
    x = cnp.asarray([1.0, 2.0])
    assert (len(x), float(x[0]), int(x[1]), bool(x[0] < x[1]), x.shape, x.ndim, x.size) == (2, 1.0, 2, True, (2,), 1, 2)
    assert "Array" in repr(x) and x.__array_namespace__() is cnp
    assert [10, 20][cnp.asarray(1)] == 20
    np.testing.assert_array_equal(np.asarray(x), [1.0, 2.0])
    with pytest.raises(DTypeError, match="not an index"):
        [10, 20][x[0]]
    with pytest.raises(TypeError):
        len(cnp.asarray(1.0))
    with pytest.raises(TypeError):
        hash(x)


def test_stable_functions_at_the_ends_of_the_line() -> None:
    x = cnp.asarray([-1e4, -100.0, 0.0, 100.0, 1e4])
    for fn in (ops.sigmoid, ops.softplus, ops.log_sigmoid, ops.gelu, cnp.tanh):
        for result in (fn(x), jit(fn)(x)):
            assert np.isfinite(result.numpy()).all(), fn


def test_empty_arrays_are_evaluated_and_not_exported() -> None:
    x = Array(X)
    assert cnp.sum(x[2:2].reshape(4, 0)).item() == 0.0
    with pytest.raises(InputError, match=r"test_arrays.py:\d+: the result of slice .float32.0,4.. has no elements"):
        jit(lambda v: cnp.sum(v[2:2]))(X)


def test_jit_compiles_once_for_each_signature() -> None:
    calls: list[int] = []

    def fn(tree: dict[str, Array], scale: float) -> dict[str, Array]:
        calls.append(1)
        return {"y": tree["x"] * scale, "x": tree["x"]}

    compiled = jit(fn)
    for _ in range(3):
        result = compiled({"x": X}, 2.0)
        np.testing.assert_array_equal(result["y"].numpy(), X * 2)
        np.testing.assert_array_equal(result["x"].numpy(), X)
    assert (len(calls), compiled.compilations) == (1, 1)
    compiled({"x": V}, 2.0)
    compiled({"x": X}, 3.0)
    compiled({"x": X.astype(np.float64)}, 3.0)
    assert (len(calls), compiled.compilations) == (4, 4)


def test_jit_inside_a_trace_becomes_part_of_it() -> None:
    inner = jit(cnp.tanh)
    graph = trace(lambda x: inner(x) * 2.0, TensorSpec((2,))).graph
    assert [node.primitive for node in graph.nodes if node.primitive != "constant"] == ["tanh", "multiply"]
    assert inner.compilations == 0


def test_trees_of_other_lengths_are_refused() -> None:
    from coterie.compute import tree

    leaves, structure = tree.flatten({"b": [1, (2, None)], "a": 3})
    assert leaves == [3, 1, 2]
    assert list(structure.paths()) == ["a", "b.0", "b.1.0"]
    assert tree.unflatten(structure, leaves) == {"a": 3, "b": [1, (2, None)]}
    assert tree.map_tree(lambda a, b: a + b, {"x": 1}, {"x": 2}) == {"x": 3}
    with pytest.raises(InputError, match="3 leaves cannot be made from 2"):
        tree.unflatten(structure, [1, 2])
    with pytest.raises(InputError, match="different structures"):
        tree.map_tree(max, {"x": 1}, {"y": 2})
