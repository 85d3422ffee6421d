"""Calls of the array API standard: for each function, how to draw operands that it mostly accepts."""

# The table holds small functions of drawn values.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie.compute.ir import NDArray

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
Call: TypeAlias = tuple[list[Any], dict[str, Any]]

SHARED = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
FLOATS, INTEGERS = ("float32", "float64"), ("uint8", "int8", "int16", "int32", "int64")
NUMBERS = (*INTEGERS, *FLOATS)
SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
WITH_AXES = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)


def elements(dtype: str) -> st.SearchStrategy[Any]:
    """Numbers of which small sums, products and quotients by powers of two are exact."""
    if dtype == "bool":
        return st.booleans()
    if dtype == "uint8":
        return st.integers(0, 6)
    whole = st.integers(-6, 6)
    return whole if dtype in INTEGERS else whole.map(lambda n: n / 4)


def array(draw: Draw, shape: Any = SHAPES, dtypes: tuple[str, ...] = SHARED) -> NDArray:
    dtype = draw(st.sampled_from(dtypes))
    return draw(hnp.arrays(dtype, shape, elements=elements(dtype)))


def axis_of(draw: Draw, x: NDArray) -> int:
    """Mostly an axis."""
    return draw(st.one_of(st.integers(-x.ndim, x.ndim - 1), st.sampled_from([0, -1, x.ndim, -x.ndim - 1])))


def unary(draw: Draw) -> Call:
    return [array(draw)], {}


def binary(draw: Draw) -> Call:
    """Arrays that mostly broadcast, or an array and a Python number."""
    a = array(draw)
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return [a, array(draw)], {}
    if kind == 1:
        return [a, True if a.dtype == bool else draw(st.sampled_from([2, 0.5]))], {}
    shape = draw(st.sampled_from([a.shape, a.shape[1:], (*a.shape[:-1], 1) if a.ndim else ()]))
    return [a, array(draw, shape, (a.dtype.name,) if kind < 5 else SHARED)], {}


def positive_binary(draw: Draw) -> Call:
    (a, b), named = binary(draw)
    return [a, np.asarray(np.abs(b) + 1, b.dtype) if isinstance(b, np.ndarray) and b.dtype != bool else b], named


def quotient(draw: Draw) -> Call:
    (a, b), named = binary(draw)
    return [
        a,
        np.where(b == 0, b + 1, b).astype(b.dtype) if isinstance(b, np.ndarray) and b.dtype != bool else b,
    ], named


def reduced(draw: Draw) -> Call:
    x = array(draw, WITH_AXES)
    axis = draw(st.sampled_from([None, axis_of(draw, x), tuple(range(x.ndim))]))
    return [x], {"axis": axis, "keepdims": draw(st.booleans())}


def summed(draw: Draw) -> Call:
    args, named = reduced(draw)
    return args, {**named, "dtype": draw(st.sampled_from([None, "float64", "int64"]))}


def corrected(draw: Draw) -> Call:
    args, named = reduced(draw)
    return args, {**named, "correction": 0.0}


def one_axis(draw: Draw) -> Call:
    x = array(draw, WITH_AXES)
    return [x], {"axis": draw(st.sampled_from([None, axis_of(draw, x)])), "keepdims": draw(st.booleans())}


def along(draw: Draw) -> Call:
    x = array(draw, WITH_AXES)
    return [x], {"axis": axis_of(draw, x)}


def ordered(draw: Draw) -> Call:
    args, named = along(draw)
    return args, {**named, "descending": draw(st.booleans())}


def running(draw: Draw) -> Call:
    args, named = along(draw)
    return args, {**named, "include_initial": draw(st.booleans())}


def differences(draw: Draw) -> Call:
    x = array(draw, WITH_AXES, NUMBERS)
    return [x], {"axis": axis_of(draw, x), "n": draw(st.integers(1, 2))}


def matrices(draw: Draw) -> Call:
    dtype = draw(st.sampled_from(SHARED))
    n, k, m = (draw(st.integers(1, 3)) for _ in range(3))
    left = draw(st.sampled_from([(n, k), (k,), (2, n, k), ()]))
    right = draw(st.sampled_from([(k, m), (k,), (2, k, m), (m, k)]))
    return [array(draw, left, (dtype,)), array(draw, right, (dtype,))], {}


def vectors(draw: Draw) -> Call:
    dtype = draw(st.sampled_from(SHARED))
    shape = draw(SHAPES)
    return [array(draw, shape, (dtype,)), array(draw, shape[-draw(st.integers(1, 3)) :], (dtype,))], {"axis": -1}


def tensors(draw: Draw) -> Call:
    dtype = draw(st.sampled_from(NUMBERS))
    a, b = array(draw, (2, 3, 2), (dtype,)), array(draw, (3, 2, 2), (dtype,))
    return [a, b], {"axes": draw(st.sampled_from([0, 1, 2, ((1, 2), (0, 1)), ((0,), (-1,)), ((0,), (0,))]))}


def shaped(draw: Draw) -> Call:
    x = array(draw)
    return [x, draw(st.sampled_from([(-1,), x.shape[::-1], (x.size, 1), (x.size + 1,), (2, -1)]))], {}


def permuted(draw: Draw) -> Call:
    x = array(draw)
    return [x, draw(st.permutations(range(x.ndim)).map(tuple))], {}


def moved(draw: Draw) -> Call:
    x = array(draw, st.lists(st.integers(1, 3), min_size=2, max_size=3).map(tuple))
    pair = draw(st.sampled_from([(0, 1), (-1, 0), ((0, 1), (1, 0)), (0, 5), ((0, 1), (0, 0))]))
    return [x, *pair], {}


def rolled(draw: Draw) -> Call:
    x = array(draw, WITH_AXES)
    return [x, draw(st.integers(-4, 4))], {"axis": draw(st.sampled_from([None, axis_of(draw, x)]))}


def flipped(draw: Draw) -> Call:
    x = array(draw, WITH_AXES)
    return [x], {"axis": draw(st.sampled_from([None, axis_of(draw, x), tuple(range(x.ndim))]))}


def repeated(draw: Draw) -> Call:
    x = array(draw, WITH_AXES)
    return [x, draw(st.integers(1, 3))], {"axis": draw(st.sampled_from([None, axis_of(draw, x)]))}


def tiled(draw: Draw) -> Call:
    return [array(draw), draw(SHAPES)], {}


def grown(draw: Draw) -> Call:
    x = array(draw)
    return [x, draw(st.sampled_from([x.shape, (2, *x.shape), tuple(n if n > 1 else 3 for n in x.shape), (5,)]))], {}


def widened(draw: Draw) -> Call:
    return [array(draw)], {"axis": draw(st.integers(-4, 3))}


def squeezed(draw: Draw) -> Call:
    x = array(draw, WITH_AXES)
    ones = tuple(i for i, n in enumerate(x.shape) if n == 1)
    return [x, draw(st.sampled_from([ones, axis_of(draw, x)]))], {}


def listed(draw: Draw) -> Call:
    first = array(draw, WITH_AXES)
    others = [array(draw, first.shape, (first.dtype.name,)) for _ in range(draw(st.integers(0, 2)))]
    return [[first, *others]], {"axis": draw(st.sampled_from([0, axis_of(draw, first)]))}


def taken(draw: Draw) -> Call:
    x = array(draw, WITH_AXES)
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    size = x.shape[axis]
    places = draw(hnp.arrays(draw(st.sampled_from(["int32", "int64"])), 3, elements=st.integers(0, size - 1)))
    return [x, places], {"axis": axis}


def taken_along(draw: Draw) -> Call:
    (x, _), named = taken(draw)
    size = x.shape[named["axis"]]
    return [x, draw(hnp.arrays("int64", x.shape, elements=st.integers(0, size - 1)))], named


def sought(draw: Draw) -> Call:
    dtype = draw(st.sampled_from(FLOATS))
    return [np.sort(array(draw, 3, (dtype,))), array(draw, dtypes=(dtype,))], {
        "side": draw(st.sampled_from(["left", "right"]))
    }


def chosen(draw: Draw) -> Call:
    (a, b), _ = binary(draw)
    return [array(draw, a.shape, ("bool", "int32") if draw(st.booleans()) else ("bool",)), a, b], {}


def bounded(draw: Draw) -> Call:
    x = array(draw, dtypes=NUMBERS)
    bounds = draw(st.sampled_from([(0, 1), (None, 1), (0, None), (None, None)]))
    return [x, *bounds], {}


def triangle(draw: Draw) -> Call:
    return [array(draw)], {"k": draw(st.integers(-2, 2))}


def converted(draw: Draw) -> Call:
    return [array(draw), draw(st.sampled_from(SHARED))], {}


def grid(draw: Draw) -> Call:
    dtype = draw(st.sampled_from(SHARED))
    vectors = [array(draw, st.integers(1, 3).map(lambda n: (n,)), (dtype,)) for _ in range(draw(st.integers(1, 3)))]
    return vectors, {"indexing": draw(st.sampled_from(["xy", "ij"]))}


def several(draw: Draw) -> Call:
    first = array(draw)
    return [first, array(draw, first.shape[1:]), array(draw, ())], {}


def filled(draw: Draw) -> Call:
    return [draw(SHAPES)], {"dtype": draw(st.sampled_from([None, *SHARED]))}


def filled_with(draw: Draw) -> Call:
    return [draw(SHAPES), draw(st.sampled_from([True, 2, 0.5]))], {}


def filled_like(draw: Draw) -> Call:
    return [array(draw)], {"dtype": draw(st.sampled_from([None, *SHARED]))}


def counted(draw: Draw) -> Call:
    return [draw(st.integers(-2, 2)), draw(st.integers(3, 9)), draw(st.sampled_from([1, 2, 0.5]))], {}


def spaced(draw: Draw) -> Call:
    return [0.0, draw(st.integers(1, 4)), draw(st.integers(1, 5))], {"endpoint": draw(st.booleans())}


def unit(draw: Draw) -> Call:
    return [draw(st.integers(1, 3)), draw(st.sampled_from([None, 2]))], {"k": draw(st.integers(-1, 1))}


def nested(draw: Draw) -> Call:
    return [draw(st.sampled_from([1, 0.5, True, [1, 2], [[0.5], [1.0]], [True, False]]))], {}


def two_dtypes(draw: Draw) -> Call:
    return [draw(st.sampled_from(SHARED)), draw(st.sampled_from(SHARED))], {}


def of_kind(draw: Draw) -> Call:
    kinds = ["bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric"]
    return [draw(st.sampled_from(SHARED)), "kind:" + draw(st.sampled_from(kinds))], {}


TABLE: dict[str, Callable[[Draw], Call]] = {
    **dict.fromkeys(
        "abs acos acosh asin asinh atan atanh bitwise_invert ceil cos cosh exp expm1 floor isfinite isinf isnan log "
        "log10 log1p log2 logical_not negative positive reciprocal round sign signbit sin sinh sqrt square tan tanh "
        "trunc matrix_transpose".split(),
        unary,
    ),
    **dict.fromkeys(
        "add atan2 bitwise_and bitwise_or bitwise_xor copysign equal greater greater_equal hypot less less_equal "
        "logaddexp logical_and logical_or logical_xor maximum minimum multiply nextafter not_equal subtract".split(),
        binary,
    ),
    **dict.fromkeys("divide floor_divide remainder".split(), quotient),
    **dict.fromkeys("pow bitwise_left_shift bitwise_right_shift".split(), positive_binary),
    **dict.fromkeys("all any max min mean count_nonzero".split(), reduced),
    **dict.fromkeys("sum prod".split(), summed),
    **dict.fromkeys("std var".split(), corrected),
    **dict.fromkeys("argmax argmin".split(), one_axis),
    **dict.fromkeys("sort argsort".split(), ordered),
    **dict.fromkeys("cumulative_sum cumulative_prod".split(), running),
    "unstack": along,
    "diff": differences,
    "matmul": matrices,
    "vecdot": vectors,
    "tensordot": tensors,
    "reshape": shaped,
    "permute_dims": permuted,
    "moveaxis": moved,
    "roll": rolled,
    "flip": flipped,
    "repeat": repeated,
    "tile": tiled,
    "broadcast_to": grown,
    "broadcast_arrays": several,
    "expand_dims": widened,
    "squeeze": squeezed,
    "concat": listed,
    "stack": listed,
    "take": taken,
    "take_along_axis": taken_along,
    "searchsorted": sought,
    "where": chosen,
    "clip": bounded,
    "tril": triangle,
    "triu": triangle,
    "astype": converted,
    "meshgrid": grid,
    **dict.fromkeys("zeros ones empty".split(), filled),
    **dict.fromkeys("zeros_like ones_like empty_like".split(), filled_like),
    "full": filled_with,
    "full_like": lambda draw: ([array(draw, dtypes=FLOATS), 0.5], {}),
    "arange": counted,
    "linspace": spaced,
    "eye": unit,
    "asarray": nested,
    "from_dlpack": unary,
    "result_type": two_dtypes,
    "can_cast": two_dtypes,
    "isdtype": of_kind,
    "finfo": lambda draw: ([draw(st.sampled_from(FLOATS))], {}),
    "iinfo": lambda draw: ([draw(st.sampled_from(INTEGERS))], {}),
}
