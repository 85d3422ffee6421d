"""Mistakes in a user's model are answered with the user's own line, the operation, both shapes and a likely fix."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.interactive.jit import jit
from coterie.compute.trace import TensorSpec, trace, trace_named
from coterie.errors import CoterieError, DTypeError, ShapeError, TraceError

X, Y, IDS, MASK = TensorSpec((3, 4)), TensorSpec((5,)), TensorSpec((3,), "int32"), TensorSpec((3,), "bool")
IMAGE = TensorSpec((2, 3, 8, 8))

MISTAKES: list[tuple[str, Callable[..., Any], tuple[TensorSpec, ...], type[CoterieError], str]] = [
    ("add", lambda x, y: x + y, (X, Y), ShapeError, r"add\(float32\[3,4\], float32\[5\]\).*do not broadcast.*reshape"),
    ("transposed", lambda x, y: x * y, (X, TensorSpec((4, 3))), ShapeError, "looks transposed"),
    ("missing axis", lambda x, y: x * y, (X, TensorSpec((3,))), ShapeError, "expand_dims"),
    (
        "matmul",
        lambda x, y: x @ y,
        (X, X),
        ShapeError,
        r"matmul\(float32\[3,4\], float32\[3,4\]\).*inner sizes 4 and 3.*x\.mT",
    ),
    ("matmul rank", lambda x, y: x @ cnp.sum(y), (X, Y), ShapeError, "rank 0"),
    ("reshape", lambda x: cnp.reshape(x, (5, -1)), (X,), ShapeError, "12 elements"),
    ("reshape exact", lambda x: cnp.reshape(x, (5, 2)), (X,), ShapeError, "12 elements"),
    ("axis", lambda x: cnp.sum(x, axis=2), (X,), ShapeError, "axis 2 does not exist.*2 axes"),
    ("concat", lambda x, y: cnp.concat([x, y], axis=0), (X, TensorSpec((3, 5))), ShapeError, "differ on another axis"),
    ("squeeze", lambda x: cnp.squeeze(x, 0), (X,), ShapeError, "size 1"),
    ("split", lambda x: cnp.split(x, [1, 1]), (X,), ShapeError, "add up to 2, not 3"),
    ("broadcast_to", lambda x: cnp.broadcast_to(x, (3, 5)), (X,), ShapeError, "broadcast"),
    ("transpose rank", lambda y: y.T, (Y,), ShapeError, "two axes"),
    ("permute", lambda x: cnp.permute_dims(x, (0, 0)), (X,), ShapeError, "every axis once"),
    (
        "conv channels",
        lambda i, w: ops.conv2d(i, w),
        (IMAGE, TensorSpec((4, 2, 3, 3))),
        ShapeError,
        r"float32\[2,3,8,8\], float32\[4,2,3,3\].*3 image channels",
    ),
    ("conv rank", lambda x, w: ops.conv2d(x, w), (X, TensorSpec((4, 2, 3, 3))), ShapeError, r"images \[N, C, H, W\]"),
    ("conv kernel", lambda i, w: ops.conv2d(i, w), (IMAGE, TensorSpec((4, 3, 9, 9))), ShapeError, "does not fit"),
    ("conv bias", lambda i, w, b: ops.conv2d(i, w, b), (IMAGE, TensorSpec((4, 3, 3, 3)), Y), ShapeError, "bias"),
    ("pool", lambda i: ops.max_pool2d(i, 9), (IMAGE,), ShapeError, "does not fit"),
    ("pool padding", lambda i: ops.max_pool2d(i, 2, padding=2), (IMAGE,), ShapeError, "below the kernel"),
    ("kinds", lambda x, i: x[:, 0] + i, (X, IDS), DTypeError, r"float32\[3\], int32\[3\].*different kinds.*astype"),
    ("number", lambda i: i + 0.5, (IDS,), DTypeError, "0.5 does not fit dtype int32.*astype"),
    ("bool arithmetic", lambda m: m + m, (MASK,), DTypeError, "arithmetic on bool"),
    ("integer division", lambda i: i / i, (IDS,), DTypeError, "must be a float"),
    ("exp", lambda i: cnp.exp(i), (IDS,), DTypeError, "must be a float"),
    ("mean", lambda i: cnp.mean(i), (IDS,), DTypeError, "floats"),
    ("gather", lambda x, y: cnp.take(x, y), (X, Y), DTypeError, "indices must be int32"),
    ("one_hot", lambda y: ops.one_hot(y, 3), (Y,), DTypeError, "ids must be int32"),
    ("where", lambda x: cnp.where(x, x, x), (X,), DTypeError, "condition must be bool"),
    ("logical", lambda x: cnp.logical_not(x), (X,), DTypeError, "must be bool"),
    ("dtype", lambda x: cnp.astype(x, "complex64"), (X,), DTypeError, "complex64"),
    ("no dtype", lambda x: cnp.astype(x, "quaternion"), (X,), DTypeError, "quaternion"),
    ("truth", lambda x: x if cnp.sum(x) > 0 else -x, (X,), TraceError, "whether it is true.*where"),
    ("float", lambda x: float(cnp.sum(x)), (X,), TraceError, "its numbers"),
    ("numpy", lambda x: np.asarray(x), (X,), TraceError, "NumPy array"),
    ("unknown ufunc", lambda x: np.nextafter(x, x), (X,), TraceError, "np.nextafter does not work"),
    ("unknown function", lambda x: np.linalg.svd(x), (X,), TraceError, "np.svd does not work"),
    ("out", lambda x: np.add(x, x, out=np.zeros((3, 4), np.float32)), (X,), TraceError, "np.add with out"),
    ("index", lambda x: x[5], (X,), TraceError, "5 is outside axis 0 of size 3"),
    ("indices", lambda x: x[0, 0, 0], (X,), TraceError, "3 indices for 2 axes"),
    ("index of floats", lambda x, y: x[y], (X, Y), TraceError, "not static"),
]


@pytest.mark.parametrize(("fn", "specs", "kind", "message"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_a_mistake_names_the_line_the_operation_the_shapes_and_a_fix(
    fn: Callable[..., Any], specs: tuple[TensorSpec, ...], kind: type[CoterieError], message: str
) -> None:
    with pytest.raises(kind) as caught:
        trace(fn, *specs)
    text = str(caught.value)
    assert re.search(message, text, re.DOTALL), text
    line = inspect.getsourcelines(fn)[1]
    assert f"test_errors.py:{line}: " in text
    assert caught.value.hint


def test_the_same_mistake_outside_a_trace_reads_the_same() -> None:
    with pytest.raises(ShapeError, match=r"test_errors.py:\d+: add\(float32\[2\], float32\[3\]\)"):
        _ = cnp.ones(2) + cnp.ones(3)


def test_arrays_are_not_written_in_place() -> None:
    def write(x: Array) -> Array:
        x[0] = 1.0
        return x

    with pytest.raises(TraceError, match=r"test_errors.py:\d+: .*float32\[3,4\].*in place.*where"):
        trace(write, X)
    with pytest.raises(TraceError, match="in place"):
        write(cnp.ones(2))


def test_the_error_carries_its_facts_for_machines() -> None:
    with pytest.raises(ShapeError) as caught:
        _ = cnp.ones((2, 3)) @ cnp.ones((2, 3))
    assert caught.value.details["operation"] == "matmul"
    assert caught.value.details["operands"] == ["float32[2,3]", "float32[2,3]"]
    assert "test_errors.py" in caught.value.details["source"]


def test_a_missing_or_doubled_named_input_is_refused() -> None:
    with pytest.raises(TraceError, match="no input 'y'.*'x'"):
        trace_named(lambda i: {"y": i["y"]}, {"x": X})
    with pytest.raises(TraceError, match="already has an input 'x'"):
        trace_named(lambda i: {"y": i.request("x", X)}, {"x": X})


def test_a_function_that_returns_no_arrays_is_refused() -> None:
    with pytest.raises(DTypeError, match="no arrays of dtype"):
        trace(lambda x: "nothing", X)


def test_the_nodes_of_a_gradient_point_to_the_line_they_came_from() -> None:
    def loss(x: Array) -> Array:
        return cnp.sum(cnp.tanh(x))

    first = inspect.getsourcelines(loss)[1]
    sources = {node.source for node in trace(grad(loss), X).graph.nodes if node.primitive != "constant"}
    assert {source.rpartition(":")[2] for source in sources} == {str(first + 1)}


def test_jit_refuses_what_cannot_be_a_graph() -> None:
    with pytest.raises(TraceError, match="whether it is true"):
        jit(lambda x: x if x > 0 else -x, fullgraph=True)(cnp.asarray(1.0))
