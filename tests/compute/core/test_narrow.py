"""int8 and int16 mean what they mean in NumPy: eagerly, compiled and in a portable file."""

# The tables hold small functions of arrays.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie.compute import jit, scan, vmap
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.ir import DTYPES, NARROW
from coterie.compute.onnx.checker import check_graph
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.text import parse, to_text
from coterie.compute.trace import TensorSpec, trace
from coterie.errors import DTypeError

Pair = Callable[[Any, Any], Any]

# Name → the function, and NumPy's.
FUNCTIONS: dict[str, tuple[Pair, Pair]] = {
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "add a number": (lambda x, y: x + 100, lambda x, y: x + 100),
    "subtract": (lambda x, y: x - y, lambda x, y: x - y),
    "multiply": (lambda x, y: x * y, lambda x, y: x * y),
    "negative": (lambda x, y: -x, lambda x, y: -x),
    "abs": (lambda x, y: abs(x), lambda x, y: abs(x)),
    "floor_divide": (lambda x, y: x // y, lambda x, y: np.floor_divide(x, y)),
    "square": (lambda x, y: x**2, lambda x, y: x * x),
    "maximum": (lambda x, y: cnp.maximum(x, y), np.maximum),
    "minimum": (lambda x, y: cnp.minimum(x, y), np.minimum),
    "greater": (lambda x, y: x > y, lambda x, y: x > y),
    "equal": (lambda x, y: x == y, lambda x, y: x == y),
    "where": (lambda x, y: cnp.where(x > y, x, y * 2), lambda x, y: np.where(x > y, x, y * 2)),
    "sum": (lambda x, y: cnp.sum(x, axis=1), lambda x, y: x.sum(axis=1, dtype="int32")),
    "max": (lambda x, y: cnp.max(x, axis=0), lambda x, y: x.max(axis=0)),
    "min": (lambda x, y: cnp.min(x, axis=0), lambda x, y: x.min(axis=0)),
    "argmax": (lambda x, y: cnp.argmax(x, axis=1), lambda x, y: x.argmax(axis=1)),
    "sort": (lambda x, y: cnp.sort(x, axis=1), lambda x, y: np.sort(x, axis=1)),
    "matmul": (lambda x, y: x @ y.T, lambda x, y: x @ y.T),
    "concat": (lambda x, y: cnp.concat([x, y[:1]], axis=0), lambda x, y: np.concatenate([x, y[:1]])),
    "pad": (lambda x, y: cnp.pad(x, ((0, 1), (1, 0))), lambda x, y: np.pad(x, ((0, 1), (1, 0)))),
    "flip": (lambda x, y: x[:, ::-1].T, lambda x, y: x[:, ::-1].T),
    "and": (lambda x, y: x & y, lambda x, y: x & y),
    "xor": (lambda x, y: x ^ ~y, lambda x, y: x ^ ~y),
    "shift": (lambda x, y: (x << 3) >> 2, lambda x, y: (x << 3) >> 2),
    "to float": (lambda x, y: x.astype("float32") * 0.5, lambda x, y: x.astype("float32") * np.float32(0.5)),
    "to bool": (lambda x, y: x.astype("bool"), lambda x, y: x.astype("bool")),
    "to fewer bits": (lambda x, y: x.astype("int8"), lambda x, y: x.astype("int8")),
    "from more bits": (
        lambda x, y: (x.astype("int32") * 1000).astype("int16"),
        lambda x, y: (x.astype("int32") * 1000).astype("int16"),
    ),
    "beside int32": (lambda x, y: x + y.astype("int32") * 300, lambda x, y: x + y.astype("int32") * 300),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=8)
@given(data=st.data(), dtype=st.sampled_from(NARROW))
def test_it_is_numpys_in_every_way_of_running(name: str, data: st.DataObject, dtype: str) -> None:
    ours, theirs = FUNCTIONS[name]
    x, y = (data.draw(hnp.arrays(dtype, (2, 3))) for _ in range(2))
    with np.errstate(all="ignore"):
        expected = np.asarray(theirs(x, y))
    eager = ours(Array(x), Array(y))
    wanted = eager.numpy().dtype
    assert wanted == expected.dtype or name == "argmax"
    np.testing.assert_array_equal(eager.numpy(), expected)
    compiled = jit(ours)
    found = compiled(x, y).numpy()
    assert (compiled.compilations, compiled.fallbacks, compiled.host_calls) == (1, (), ())
    assert found.dtype == wanted
    np.testing.assert_array_equal(found, expected)
    graph = optimise(trace(lambda *given: {"result": ours(*given)}, *[TensorSpec((2, 3), dtype)] * 2).graph)
    file = to_onnx(graph, name="narrow")
    check_graph(file)
    (made,) = Executable(file).run(dict(zip(graph.inputs, (x, y), strict=True))).values()
    assert made.dtype == wanted
    np.testing.assert_array_equal(made, expected)
    assert to_text(parse(to_text(graph))) == to_text(graph)


@pytest.mark.parametrize("one", [dtype for dtype in DTYPES if dtype.startswith(("int", "uint"))])
@pytest.mark.parametrize("other", NARROW)
def test_integers_are_promoted_as_numpy_does(one: str, other: str) -> None:
    assert cnp.result_type(one, other) == np.result_type(one, other)
    assert (Array(np.ones(2, one)) + Array(np.ones(2, other))).dtype == np.result_type(one, other)


def test_they_are_mapped_and_carried_by_loops() -> None:
    rows = np.arange(-6, 6, dtype=np.int8).reshape(3, 4) * 20
    np.testing.assert_array_equal(vmap(lambda r: cnp.sum(r * r))(Array(rows)).numpy(), (rows * rows).sum(1))

    def running(xs: Array) -> tuple[Array, Array]:
        return scan(lambda carry, x: (carry + x, carry * x), xs[0], xs)

    for found, expected in zip(jit(running)(rows), running(Array(rows)), strict=True):
        assert found.dtype == np.int8
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_numbers_beyond_them_and_floats_beside_them_are_refused() -> None:
    x = Array(np.ones(2, np.int8))
    with pytest.raises(DTypeError, match="200 does not fit dtype int8"):
        _ = x + 200
    with pytest.raises(DTypeError, match="40000 does not fit into int16"):
        cnp.asarray([40000], dtype="int16")
    with pytest.raises(DTypeError, match="different kinds"):
        _ = x * Array(np.ones(2, np.float32))
    assert [10, 20, 30][cnp.asarray(1, dtype=cnp.int8)] == 20 and cnp.iinfo("int16").max == 32767
