"""Every array function beside NumPy's: the table over which their laws are tested."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.ir import NDArray
from tests.compute.core.cases import spread


@dataclass(frozen=True)
class Function:
    """ours, theirs: the same function of coterie and of NumPy. smooth: differentiable at these operands."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    operands: tuple[NDArray, ...]
    smooth: bool = True


X, Y = spread(3, 4), spread(3, 4, seed=1)
P = np.abs(X) + 0.3
UNIT = 0.4 * X
T = spread(2, 3, 4, seed=2)
V, W = spread(4, seed=3), spread(4, seed=4)
IDS = np.asarray([2, 0, 2], np.int32)
INTEGERS = np.asarray([[-7, 5, 2**31 - 1], [123456, -(2**31), 0]], np.int32)
PLACES = np.asarray([[1, 0], [3, 3], [2, 1]], np.int32)
SQUARE = spread(3, 3, seed=5)


def elementwise(names: str, *operands: NDArray, numpy: str = "") -> list[Function]:
    theirs = numpy.split() or names.split()
    return [
        Function(name, getattr(cnp, name), getattr(np, other), operands)
        for name, other in zip(names.split(), theirs, strict=True)
    ]


def one(name: str, theirs: Callable[..., Any], *operands: NDArray, smooth: bool = True, **named: Any) -> Function:
    """A function of coterie.compute.numpy with these named arguments."""
    ours = getattr(cnp, name)
    return Function(f"{name} {named}", lambda *arrays: ours(*arrays, **named), theirs, operands, smooth)


def steps(functions: list[Function]) -> list[Function]:
    return [Function(f.name, f.ours, f.theirs, f.operands, False) for f in functions]


def einsum(subscripts: str, *operands: NDArray) -> Function:
    return Function(
        f"einsum {subscripts}",
        lambda *arrays: cnp.einsum(subscripts, *arrays),
        lambda *arrays: np.einsum(subscripts, *arrays),
        operands,
    )


def scattered(x: NDArray, ids: NDArray, updates: NDArray) -> NDArray:
    out = x.copy()
    np.add.at(out, ids, updates)
    return out


ELEMENTARY = [
    *elementwise("sin cos tan sinh cosh tanh exp expm1 square negative positive abs", X),
    *elementwise("log log2 log10 log1p sqrt reciprocal", P),
    *elementwise("asin acos atanh", UNIT, numpy="arcsin arccos arctanh"),
    *elementwise("atan asinh", X, numpy="arctan arcsinh"),
    *elementwise("acosh", P + 1.0, numpy="arccosh"),
    *elementwise("atan2", X, Y, numpy="arctan2"),
    *elementwise("add subtract multiply divide maximum minimum hypot logaddexp copysign", X, Y),
    *elementwise("pow", P, Y, numpy="power"),
    Function("pow of any base", lambda x: cnp.pow(x, 3.0) + cnp.pow(x, -2), lambda x: x**3 + x**-2.0, (X,)),
    Function("pow 1.5", lambda x: x**1.5, lambda x: x**1.5, (P,)),
    Function("pow of 2", lambda x: 2.0**x, lambda x: 2.0**x, (X,)),
    Function("clip", lambda x: cnp.clip(x, -0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5), (X,)),
    Function("where", lambda x, y: cnp.where(x > 0, x, y), lambda x, y: np.where(x > 0, x, y), (X, Y)),
    Function("remainder", cnp.remainder, np.remainder, (X, P)),
]
STEPS = [
    *elementwise("floor ceil trunc round sign signbit isnan isinf isfinite", X),
    *elementwise("equal not_equal less less_equal greater greater_equal floor_divide", X, Y),
    *elementwise("nextafter", X, Y),
    *elementwise("logical_not bitwise_invert", X > 0),
    *elementwise("logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor", X > 0, Y > 0),
    *elementwise("bitwise_invert", INTEGERS),
    *elementwise("bitwise_and bitwise_or bitwise_xor", INTEGERS, IDS),
    *elementwise("bitwise_left_shift bitwise_right_shift", INTEGERS, IDS, numpy="left_shift right_shift"),
    Function("operators of bits", lambda i: (i << 2 | 5) ^ (i >> 1) & 3, lambda i: (i << 2 | 5) ^ (i >> 1) & 3, (IDS,)),
    Function("where of masks", cnp.where, np.where, (X > 0, Y > 0, X > Y)),
    one("argmax", lambda x: x.argmax(1), X, axis=1),
    one("argmax", np.argmax, X),
    one("argmin", lambda x: x.argmin(0), X, axis=0),
    one("argsort", lambda x: x.argsort(1), X, axis=1),
    one("searchsorted", lambda x, v: np.searchsorted(x, v, side="right"), np.sort(V), Y, side="right"),
    one("count_nonzero", lambda x: np.count_nonzero(x, axis=1), (X > 0).astype(np.int32), axis=1),
    one("any", lambda x: (x > 0).any(0), X > 0, axis=0),
    one("all", lambda x: (x > 0).all(0), X > 0, axis=0),
    Function("astype", lambda x: cnp.astype(x, "int32"), lambda x: x.astype(np.int32), (X,)),
]
REDUCTIONS = [
    one("sum", lambda x: x.sum((0, -1)), T, axis=(0, -1)),
    one("prod", lambda x: x.prod(1), T, axis=1),
    one("prod", lambda x: x.prod(keepdims=True), 0.5 * T, keepdims=True),
    one("mean", lambda x: x.mean(1, keepdims=True), T, axis=1, keepdims=True),
    one("var", lambda x: x.var(0, ddof=1), X, axis=0, correction=1),
    one("std", lambda x: x.std(0), X, axis=0),
    one("max", lambda x: x.max(0), X, axis=0),
    one("min", lambda x: x.min(1), X, axis=1),
    one("cumulative_sum", lambda x: x.cumsum(1), X, axis=1),
    one("cumulative_sum", lambda v: np.concatenate([[0], v.cumsum()]), V, include_initial=True),
    one("cumulative_prod", lambda x: x.cumprod(1), X, axis=1),
    one("diff", lambda x: np.diff(x, n=2), X, n=2),
]
SHAPES = [
    one("reshape", lambda x: x.reshape(2, 6), X, shape=(2, -1)),
    one("permute_dims", lambda x: x.transpose(2, 0, 1), T, axes=(2, 0, 1)),
    Function("matrix_transpose", cnp.matrix_transpose, lambda x: x.swapaxes(-1, -2), (T,)),
    one("moveaxis", lambda x: np.moveaxis(x, (0, 1), (2, 0)), T, source=(0, 1), destination=(2, 0)),
    one("swapaxes", lambda x: x.swapaxes(0, 2), T, first=0, second=-1),
    one("expand_dims", lambda x: x[..., None], X, axis=-1),
    one("squeeze", lambda x: x[0], X[None], axis=0),
    one("broadcast_to", lambda x: np.broadcast_to(x, (2, 3, 4)), X, shape=(2, 3, 4)),
    Function("broadcast_arrays", lambda x, v: cnp.broadcast_arrays(v, x)[0], lambda x, v: v + 0 * x, (X, V)),
    Function("meshgrid", lambda v, w: sum(cnp.meshgrid(v, w * w)), lambda v, w: sum(np.meshgrid(v, w * w)), (V, V[:3])),
    Function("concat", lambda x, y: cnp.concat([x, y], axis=1), lambda x, y: np.concatenate([x, y], 1), (X, Y)),
    Function("stack", lambda x, y: cnp.stack([x, y], axis=1), lambda x, y: np.stack([x, y], 1), (X, Y)),
    Function("split", lambda x: cnp.split(x, 2, axis=1)[1], lambda x: x[:, 2:], (X,)),
    Function("unstack", lambda x: cnp.unstack(x, axis=1)[2], lambda x: x[:, 2], (X,)),
    Function("pad", lambda x: cnp.pad(x, [(1, 0), (0, 2)]), lambda x: np.pad(x, ((1, 0), (0, 2))), (X,)),
    one("flip", lambda x: x[::-1, ::-1], X),
    one("roll", lambda x: np.roll(x, -5), X, shift=-5),
    one("roll", lambda x: np.roll(x, (1, 2), (0, 1)), X, shift=(1, 2), axis=(0, 1)),
    one("repeat", lambda x: np.repeat(x, 2, 1), X, repeats=2, axis=1),
    one("repeat", lambda x: np.repeat(x, [0, 2, 1], 0), X, repeats=[0, 2, 1], axis=0),
    one("tile", lambda x: np.tile(x, (2, 1, 3)), X, repetitions=(2, 1, 3)),
    one("tril", np.tril, X),
    one("triu", lambda x: np.triu(x, 1), X, k=1),
    one("sort", lambda x: np.sort(x, 0)[::-1], X, axis=0, descending=True),
    Function("take", lambda x, i: cnp.take(x, i, axis=1), lambda x, i: x[:, i], (X, IDS)),
    Function("take_along_axis", cnp.take_along_axis, lambda x, i: np.take_along_axis(x, i, -1), (X, PLACES)),
    Function("index by arrays", lambda x, i: x[i, i + 1], lambda x, i: x[i, i + 1], (X, IDS)),
    Function("index rows by arrays", lambda x, i: x[i // 2, i], lambda x, i: x[i // 2, i], (T, IDS)),
    Function("scatter_add", ops.scatter_add, scattered, (X, IDS, Y)),
    Function(
        "scatter_add 1",
        lambda x, i, u: ops.scatter_add(x, i, u, axis=1),
        lambda x, i, u: scattered(x.T, i, u.T).T,
        (X, IDS, SQUARE),
    ),
]
PRODUCTS = [
    Function("matmul", lambda x, y: cnp.matmul(x, y.T), lambda x, y: x @ y.T, (X, Y)),
    Function("vecdot", cnp.vecdot, lambda x, y: (x * y).sum(-1), (X, Y)),
    Function("outer", cnp.outer, np.outer, (V, W)),
    one("tensordot", lambda a, b: np.tensordot(a, b, ([2, 1], [1, 0])), T, X, axes=([2, 1], [1, 0])),
    einsum("ij,jk->ik", X, Y.T.copy()),
    einsum("ij,kj", X, Y),
    einsum("ij,ij->", X, Y),
    einsum("ij->ji", X),
    einsum("ij->", X),
    einsum("ba", X),
    einsum("i,j->ij", V, W),
    einsum("i,i", V, W),
    einsum("ii", SQUARE),
    einsum("ii->i", SQUARE),
    einsum("iij->ij", spread(3, 3, 2)),
    einsum("bij,bjk->bik", T, spread(2, 4, 3, seed=6)),
    einsum("...ij,jk->...ik", T, Y.T.copy()),
    einsum("...j,...j", T, Y),
    einsum("i...->...", T),
    einsum("ij,jk,kl->il", X, Y.T.copy(), SQUARE),
    einsum("bhqd,bhkd->bhqk", spread(2, 2, 3, 2), spread(2, 2, 4, 2, seed=7)),
    einsum("ij,jk->ik", X, spread(1, 2, seed=8)),
    einsum("abc,cd,ae->bde", T, Y.T.copy(), spread(2, 5, seed=9)),
]
FUNCTIONS = [*ELEMENTARY, *steps(STEPS), *REDUCTIONS, *SHAPES, *PRODUCTS]

# Names of the namespace that take no array.
MAKERS = frozenset(
    "arange asarray empty empty_like eye from_dlpack full full_like linspace ones ones_like zeros zeros_like "
    "can_cast finfo iinfo isdtype result_type".split()
)
