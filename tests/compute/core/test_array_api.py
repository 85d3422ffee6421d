"""Conformance to the array API standard 2024.12, with array-api-strict as the oracle: over drawn operands every
function accepts and refuses the same, and gives the same dtype, shape and values.

coterie's default dtypes are float32 and int32 where the oracle's have twice the bits, and that of positions is int32.
What does not apply stands in coterie.compute.numpy.absent.
"""

# The oracle has no types, and the table holds small functions of drawn values.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false

import re
from collections.abc import Callable, Iterator
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.ir import DTYPES
from coterie.compute.numpy.absent import ABSENT, NARROWER
from coterie.compute.trace import TensorSpec, trace
from coterie.errors import CoterieError
from tests.compute.core.standard import TABLE, matrices, positive_binary


@pytest.fixture(autouse=True)
def version() -> Iterator[None]:
    strict.set_array_api_strict_flags(api_version="2024.12")
    yield
    strict.reset_array_api_strict_flags()


# Why a difference is none: the dtype is a default, or the oracle refuses what the standard leaves open.
DEFAULTS = frozenset(
    "sum prod count_nonzero argmax argmin argsort searchsorted cumulative_sum cumulative_prod zeros ones empty full "
    "arange linspace eye asarray".split()
)
# The oracle refuses bool here, which the standard leaves undefined; coterie counts it as 0 and 1.
LENIENT = frozenset("isfinite isinf isnan positive sum prod cumulative_sum cumulative_prod".split())
HALF = {"int64": "int32", "float64": "float32", "uint64": "int32", "uint8": "int32"}


def convert(namespace: Any, x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return namespace.asarray(x)
    if isinstance(x, list):
        return [convert(namespace, part) for part in x]
    if isinstance(x, str) and x in DTYPES:
        return getattr(namespace, x)
    return x.removeprefix("kind:") if isinstance(x, str) else x


def outcome(namespace: Any, name: str, args: list[Any], named: dict[str, Any]) -> Any:
    """The result, or the exception that refused the call."""
    positional = [convert(namespace, x) for x in args]
    try:
        with np.errstate(all="ignore"):
            return getattr(namespace, name)(*positional, **{key: convert(namespace, x) for key, x in named.items()})
    except (CoterieError, TypeError, ValueError, IndexError, ZeroDivisionError) as error:
        return error


def result_dtype(name: str, told: str, ours: str) -> bool:
    return told == ours or (name in DEFAULTS and HALF.get(told) == ours)


@pytest.mark.capability("A13")
@pytest.mark.parametrize("name", TABLE)
@settings(max_examples=20)
@given(data=st.data())
def test_a_function_does_what_the_standard_says(name: str, data: st.DataObject) -> None:
    args, named = TABLE[name](data.draw)
    told, ours = outcome(strict, name, args, named), outcome(cnp, name, args, named)
    note = f"{name}({args}, {named}): {told!r} / {ours!r}"
    if isinstance(told, Exception) or isinstance(ours, Exception):
        lenient = name in LENIENT and isinstance(told, Exception)
        narrower = name in NARROWER and isinstance(ours, Exception)
        assert lenient or narrower or isinstance(told, Exception) == isinstance(ours, Exception), note
        if isinstance(ours, Exception):
            assert_helpful(name, ours, note)
        return
    pairs = zip(told, ours, strict=True) if isinstance(told, (list, tuple)) else [(told, ours)]
    for theirs, mine in pairs:
        if not isinstance(mine, Array):
            compare_plain(theirs, mine, note)
            continue
        expected = np.asarray(theirs._array)
        assert mine.shape == expected.shape, note
        assert result_dtype(name, expected.dtype.name, mine.dtype.name), note
        if expected.dtype.kind in "iu":  # half the bits: what overflows is the same modulo 2**32
            expected = expected.astype(mine.dtype)
        if not name.startswith("empty"):
            tolerance = 1e-5 if "float32" in (mine.dtype.name, expected.dtype.name) else 1e-12
            np.testing.assert_allclose(mine.numpy(), expected, rtol=tolerance, atol=tolerance, err_msg=note)


def assert_helpful(name: str, error: Exception, note: str) -> None:
    """It names the user's line, the function that was called, the operands, and what to do."""
    assert isinstance(error, CoterieError), note
    assert re.search(rf"test_array_api\.py:\d+: {name}\(.*\): .", str(error)), note
    assert error.hint, note


def compare_plain(theirs: Any, mine: Any, note: str) -> None:
    if isinstance(mine, bool):
        assert mine == theirs, note
    elif isinstance(mine, np.dtype):
        assert mine.name == str(theirs).rpartition(".")[2], note
    else:
        assert (mine.bits, mine.min, mine.max) == (theirs.bits, theirs.min, theirs.max), note


def test_every_name_of_the_standard_is_here_or_told_to_be_absent() -> None:
    names = {name for name in strict.__all__ if not name.startswith("__version")} - {
        "ArrayAPIStrictFlags",
        "get_array_api_strict_flags",
        "reset_array_api_strict_flags",
    }
    names -= {"set_array_api_strict_flags", "Device", "broadcast_shapes", "isin"}  # the last two came in 2025.12
    here = {name for name in names if hasattr(cnp, name)}
    assert names - here <= set(ABSENT)
    assert not here & set(ABSENT)
    functions = {name for name in here if callable(getattr(cnp, name)) and not isinstance(getattr(cnp, name), np.dtype)}
    assert functions - set(TABLE) <= {"__array_namespace_info__"}
    assert cnp.__array_api_version__ == "2024.12"
    assert (cnp.pi, cnp.e, cnp.inf, cnp.newaxis) == (strict.pi, strict.e, strict.inf, strict.newaxis)


@pytest.mark.parametrize("name", ABSENT)
def test_an_absent_name_says_why_and_what_to_use(name: str) -> None:
    why, instead = ABSENT[name]
    with pytest.raises(AttributeError, match=f"has no {name}: ") as caught:
        getattr(cnp, name)
    assert why in str(caught.value) and instead in str(caught.value)


def test_an_unknown_name_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'frobnicate'"):
        getattr(cnp, "frobnicate")  # noqa: B009


def test_what_is_narrower_is_a_name_of_the_namespace_or_a_method() -> None:
    assert all(hasattr(cnp, name) or hasattr(Array, name) for name in NARROWER)
    assert all(reason.strip() for reason in NARROWER.values())


def test_the_namespace_tells_about_itself() -> None:
    info = cnp.__array_namespace_info__()
    assert Array(np.zeros(2)).__array_namespace__(api_version="2024.12") is cnp
    assert info.capabilities() == {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 32}
    assert (info.default_device(), info.devices()) == ("cpu", ["cpu"])
    assert {kind: dtype.name for kind, dtype in info.default_dtypes().items()} == {
        "real floating": cnp.asarray(0.5).dtype.name,
        "integral": cnp.asarray(1).dtype.name,
        "indexing": cnp.argmax(cnp.ones(2)).dtype.name,
    }
    assert set(info.dtypes()) == set(DTYPES) - {"float16"}, "the standard has no name for it"
    assert set(info.dtypes(kind="integral")) == {"int8", "int16", "int32", "int64", "uint8"}
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "@": lambda a, b: a @ b,
    "reflected": lambda a, b: 3 - a + 2 * b,
    "- ": lambda a, b: -a + +b,
    "abs": lambda a, b: abs(a) + abs(b),
    "~": lambda a, b: ~a,
}


@pytest.mark.parametrize("sign", OPERATORS)
@settings(max_examples=15)
@given(data=st.data())
def test_operators_do_what_the_standard_says(sign: str, data: st.DataObject) -> None:
    (a, b), _ = matrices(data.draw) if sign == "@" else positive_binary(data.draw)
    results: list[Any] = []
    for namespace in (strict, cnp):
        try:
            with np.errstate(all="ignore"):
                results.append(OPERATORS[sign](convert(namespace, a), convert(namespace, b)))
        except (CoterieError, TypeError, ValueError) as error:
            results.append(error)
    theirs, mine = results
    note = f"{a!r} {sign} {b!r}: {theirs!r} / {mine!r}"
    if isinstance(theirs, Exception) or isinstance(mine, Exception):
        assert isinstance(mine, Exception) and isinstance(theirs, Exception), note
        return
    assert mine.dtype.name == np.asarray(theirs._array).dtype.name, note
    np.testing.assert_allclose(mine.numpy(), theirs._array, rtol=1e-5, err_msg=note)


INDICES: list[Any] = [
    (),
    0,
    -1,
    slice(None),
    (slice(1, None), 0),
    (..., slice(None, None, -1)),
    (slice(None), None, slice(0, 3, 2)),
    (None, ..., 1),
    (0, 1, 2),
    np.asarray([1, 0, 1]),
    np.asarray([[-1], [0]]),
    (np.asarray([0, 1, 1]), np.asarray([2, -1, 0])),
    (np.asarray([0, 1]), np.asarray([[2], [-3]])),
    (np.asarray([0, 1]), 1, np.asarray([3, -4])),
    (np.asarray([0, 1]), np.asarray([1, 2]), np.asarray([3, 0])),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indices_select_what_numpy_selects(index: Any) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    parts = index if isinstance(index, tuple) else (index,)
    ours = tuple(Array(part) if isinstance(part, np.ndarray) else part for part in parts)
    expected = x[index]
    np.testing.assert_array_equal(Array(x)[ours if isinstance(index, tuple) else ours[0]].numpy(), expected)


def test_an_index_outside_an_axis_is_refused_and_does_not_reach_into_the_next_row() -> None:
    x = Array(np.arange(6, dtype=np.float32).reshape(2, 3))
    for rows, columns in (([0], [3]), ([0], [-4]), ([2], [0]), ([-3], [2])):
        with pytest.raises(CoterieError, match="gather_along: the indices"):
            x[Array(np.asarray(rows, np.int32)), Array(np.asarray(columns, np.int32))]


@pytest.mark.capability("D7")
def test_an_array_tells_its_shape_dtype_device_and_name() -> None:
    x = Array(np.zeros((2, 3), np.float16))
    assert (x.shape, x.ndim, x.size, x.dtype, x.device, x.name) == ((2, 3), 2, 6, np.float16, "cpu", "")
    assert (x.T.shape, x.mT.shape, len(x), x.to_device("cpu") is x) == ((3, 2), (3, 2), 2, True)
    seen: list[tuple[str, str, tuple[int, ...]]] = []

    def look(params: dict[str, Array], y: Array) -> Array:
        for value in (params["weight"], y, params["weight"] + 1.0):
            seen.append((value.name, value.device, value.shape))
        return y

    trace(look, {"weight": TensorSpec((2,))}, TensorSpec((3,), "int32"))
    assert seen == [("0.weight", "cpu", (2,)), ("1", "cpu", (3,)), ("", "cpu", (2,))]
    with pytest.raises(CoterieError, match="device 'cpu', not 'cuda'"):
        x.to_device("cuda")
    np.testing.assert_array_equal(np.from_dlpack(x), x.numpy())
    assert x.__dlpack_device__() == (1, 0)


def test_there_are_as_many_axes_as_the_namespace_says() -> None:
    most = cnp.__array_namespace_info__().capabilities()["max dimensions"]
    x = cnp.ones((1,) * most)
    assert (cnp.where(x > 0.5, x + x, cnp.zeros(())).ndim, cnp.sum(x).item()) == (most, 1.0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_limits_of_floats_are_numbers_of_python(dtype: str) -> None:
    told, info = np.finfo(dtype), cnp.finfo(cnp.ones(2, dtype=dtype))
    for name in ("eps", "max", "min", "smallest_normal"):
        assert isinstance(getattr(info, name), float)
        assert getattr(info, name) == float(getattr(told, name))
    assert (info.bits, info.dtype) == (told.bits, np.dtype(dtype))


@pytest.mark.parametrize("copy", [None, True])
@pytest.mark.parametrize("version", [None, (0, 8), (1, 0)])
def test_memory_that_may_not_be_written_is_exported(version: tuple[int, int] | None, copy: bool | None) -> None:
    assert not (x := cnp.ones((2, 3))).numpy().flags.writeable
    assert "dltensor" in repr(x.__dlpack__(max_version=version, copy=copy))


def test_an_axis_that_does_not_exist_is_an_error_of_indices_and_one_that_stays_of_values() -> None:
    for axis in (-4, 3):
        with pytest.raises(IndexError, match=f"axis {axis} does not exist"):
            cnp.expand_dims(cnp.ones((2, 3)), axis)
    with pytest.raises(ValueError, match="not all of size 1"):
        cnp.squeeze(cnp.ones((2, 3)), 0)


@pytest.mark.parametrize("function", [cnp.round, cnp.asinh, cnp.trunc])
def test_the_sign_of_zero_stays(function: Callable[[Any], Array]) -> None:
    told = function(cnp.asarray([-0.0, 0.0])).numpy()
    assert np.signbit(told).tolist() == [True, False]


def test_an_array_of_one_element_is_a_complex_number_and_reshape_takes_copy() -> None:
    assert complex(cnp.asarray(0.5)) == 0.5
    assert cnp.reshape(cnp.ones(6), (2, 3), copy=True).shape == cnp.ones((2, 3)).shape
