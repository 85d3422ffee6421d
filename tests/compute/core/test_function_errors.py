"""Mistakes with functions that are not of the standard, and with indices, are told with the user's line, the function,
the operands and a fix. (test_array_api holds those of the standard to the same.)
"""

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
from coterie.compute.interactive.jit import jit
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.trace import TensorSpec, trace
from coterie.errors import CoterieError, DTypeError, InputError, ShapeError, TraceError

X, Y, IDS, MASK = TensorSpec((3, 4)), TensorSpec((5,)), TensorSpec((3,), "int32"), TensorSpec((3,), "bool")
IMAGE, SEQUENCE = TensorSpec((2, 3, 8, 8)), TensorSpec((2, 3, 8))

MISTAKES: list[tuple[Callable[..., Any], tuple[TensorSpec, ...], type[CoterieError], str]] = [
    (lambda x, y: cnp.einsum("ij,j->i", x, y), (X, Y), ShapeError, r"einsum\(float32\[3,4\], float32\[5\]\).*4 and 5"),
    (lambda x: cnp.einsum("ijk->i", x), (X,), InputError, "does not name the 2 axes of float32"),
    (lambda x: cnp.einsum("ij,jk", x), (X,), InputError, "names 2 operands, and 1 are given"),
    (lambda x: cnp.einsum("ij->ijk", x), (X,), InputError, "no operand has the axis 'k'"),
    (lambda x: cnp.einsum("ij->ii", x), (X,), InputError, "names a letter twice"),
    (lambda x: cnp.einsum("i$->i", x), (X,), InputError, "only letters, commas"),
    (lambda x: cnp.einsum("...j->j", x), (X,), InputError, "output lacks the ellipsis"),
    (lambda x, i: cnp.einsum("ij,i", x, i), (X, IDS), DTypeError, r"einsum\(.*different kinds"),
    (lambda x: cnp.split(x, 5), (X,), ShapeError, r"split\(float32\[3,4\]\): 3 elements do not make 5 equal parts"),
    (lambda x: cnp.swapaxes(x, 0, 2), (X,), ShapeError, r"swapaxes\(float32\[3,4\]\): axis 2 does not exist"),
    (lambda x: cnp.roll(x, (1, 2), axis=0), (X,), ShapeError, "2 shifts for 1 axes"),
    (lambda x: cnp.repeat(x, [1, 2], axis=0), (X,), ShapeError, "2.* counts for 3 elements"),
    (lambda x, i: cnp.repeat(x, i, axis=0), (X, IDS), TraceError, "being traced"),
    (lambda x, i: cnp.take_along_axis(x, i), (X, IDS), ShapeError, r"take_along_axis\(.*another number of axes"),
    (lambda x, i: ops.scatter_add(x, i, x[:, :2]), (X, IDS), ShapeError, r"scatter_add\(.*updates.*\[3, 4\]"),
    (lambda x, i: ops.scatter_add(x, i, x, axis=1), (X, IDS), ShapeError, r"scatter_add\(.*do not fit.*\[3, 3\]"),
    (lambda x: ops.scatter_add(x, x, x), (X,), DTypeError, "indices must be int32 or int64"),
    (lambda x: ops.top_k(x, 5), (X,), ShapeError, r"top_k\(float32\[3,4\]\): there are no 5 first of 4"),
    (lambda m: ops.top_k(m, 1), (MASK,), DTypeError, "bool has no order"),
    (lambda i: ops.erf(i), (IDS,), DTypeError, r"erf\(int32\[3\]\).*float"),
    (lambda x, y: cnp.atan2(x, y), (X, Y), ShapeError, r"atan2\(float32\[3,4\], float32\[5\]\).*do not broadcast"),
    (lambda i: cnp.sinh(i), (IDS,), DTypeError, r"sinh\(int32\[3\]\).*astype"),
    (lambda x, w: ops.conv1d(x, w), (SEQUENCE, X), ShapeError, "three axes each.*N, C, L"),
    (lambda x, w: ops.conv1d(x, w), (SEQUENCE, TensorSpec((4, 2, 3))), ShapeError, r"conv1d\(.*3 image channels"),
    (lambda x, w: ops.conv_transpose2d(x, w), (IMAGE, X), ShapeError, "four axes each"),
    (
        lambda x, w: ops.conv_transpose2d(x, w, stride=2, output_padding=2),
        (IMAGE, TensorSpec((3, 4, 3, 3))),
        ShapeError,
        "not below the stride",
    ),
    (
        lambda x, w: ops.conv_transpose2d(x, w),
        (IMAGE, TensorSpec((4, 3, 3, 3))),
        ShapeError,
        r"conv_transpose2d\(float32\[2,3,8,8\], float32\[4,3,3,3\]\)",
    ),
    (lambda x, m: x[m], (X, MASK), TraceError, r"index\(float32\[3,4\]\): a mask selects.*where"),
    (lambda x, i: x[i, 1:], (X, IDS), TraceError, "arrays and slices in one index.*take"),
    (lambda x, i: x[i, i, i], (X, IDS), TraceError, "3 indices for 2 axes|not static"),
    (
        lambda x: x & 1,
        (X,),
        DTypeError,
        r"bitwise_and\(float32\[3,4\], float32\[\]\): the operands must be bool or int",
    ),
    (
        lambda m: m << True,
        (MASK,),
        DTypeError,
        r"bitwise_left_shift\(bool\[3\], bool\[\]\): the operands must be integ",
    ),
    (lambda i: cnp.nextafter(i, 1), (IDS,), DTypeError, r"nextafter\(int32\[3\], int32\[\]\): the operands must be fl"),
    (lambda x: np.gcd(x, x), (X,), TraceError, "np.gcd does not work"),
    (lambda x: np.nonzero(x), (X,), TraceError, "np.nonzero does not work.*shape of its result depends on data.*where"),
    (lambda x: np.unique(x), (X,), TraceError, "np.unique does not work"),
    (lambda x: cnp.var(x, axis=0, correction=3), (X,), ShapeError, r"var\(float32\[3,4\]\): 3 is no correction for 3"),
]


@pytest.mark.parametrize(("fn", "specs", "kind", "message"), MISTAKES)
def test_a_mistake_names_the_line_the_function_the_shapes_and_a_fix(
    fn: Callable[..., Any], specs: tuple[TensorSpec, ...], kind: type[CoterieError], message: str
) -> None:
    with pytest.raises(kind) as caught:
        trace(fn, *specs)
    text = str(caught.value)
    assert re.search(message, text, re.DOTALL), text
    lines, first = inspect.getsourcelines(fn)
    found = re.search(r"test_function_errors\.py:(\d+): ", text)
    assert found and first <= int(found[1]) < first + len(lines), text
    assert caught.value.hint


@pytest.mark.parametrize("compiled", [False, True])
def test_a_traced_or_evaluated_array_is_never_written_in_place(compiled: bool) -> None:
    def write(x: Array) -> Array:
        x[0] = 1.0
        return x

    with pytest.raises(TraceError, match=r"test_function_errors.py:\d+: .*cannot be written in place.*where"):
        jit(write, fullgraph=True)(np.zeros(3, np.float32)) if compiled else write(Array(np.zeros(3)))


def test_an_augmented_assignment_makes_a_new_array() -> None:
    x = Array(np.ones(2))
    y = x
    y += 1.0
    assert (x.numpy().tolist(), y.numpy().tolist()) == ([1.0, 1.0], [2.0, 2.0])


def test_the_truth_of_a_traced_array_is_refused_with_its_line() -> None:
    with pytest.raises(TraceError, match=r"test_function_errors.py:\d+: .*whether it is true.*where"):
        trace(lambda x: bool(cnp.any(x > 0)), X)


def test_a_dtype_without_a_kernel_is_refused_by_name_when_it_is_written() -> None:
    graph = trace(ops.erf, TensorSpec((3,), "float64")).graph
    with pytest.raises(InputError, match="erf of float64 cannot be written: no provider has Erf in double precision"):
        to_onnx(graph, name="erf")


def test_an_index_out_of_range_is_refused_when_it_is_evaluated() -> None:
    x, far = cnp.ones((3, 4)), cnp.asarray([[7]])
    for call in (
        lambda: cnp.take_along_axis(x, far, axis=1),
        lambda: ops.scatter_add(x, cnp.asarray([3]), cnp.ones((1, 4))),
        lambda: ops.touching_embedding(x, cnp.asarray([-4])),
    ):
        with pytest.raises(InputError, match=r"the indices -?\d+ to -?\d+ leave axis|the id -4 is below 0"):
            call()
    with pytest.raises(InputError, match="negative power -1"):
        cnp.pow(cnp.asarray([2]), cnp.asarray([-1]))
