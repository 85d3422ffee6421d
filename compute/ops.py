"""Neural functions, made of array functions and of a few primitives of their own. All take and give arrays; gradients
of every order follow.
"""

from collections.abc import Sequence
from math import pi, sqrt

import numpy as np

from coterie.compute.array import Array, ArrayLike, as_array, bind, promote, refuse
from coterie.compute.control.derived import custom_vjp
from coterie.compute.numpy import creation, elementwise, manipulation, reduction
from coterie.compute.numpy.manipulation import axis_of
from coterie.compute.primitives import rules
from coterie.compute.primitives.indexing import check_known
from coterie.compute.source import asked_operation, operation, user_source
from coterie.errors import DTypeError, InputError, ShapeError


def relu(x: ArrayLike) -> Array:
    """max(x, 0); its gradient at 0 is 0. Gradients are multiplied by a mask, also those of where, maximum and max: an
    infinite one, as of sqrt(relu(x)) at x < 0, becomes NaN, so keep roots and logarithms away from 0.
    """
    return bind("relu", as_array(x))


def sigmoid(x: ArrayLike) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    return bind("sigmoid", as_array(x))


def tanh(x: ArrayLike) -> Array:
    """The hyperbolic tangent."""
    return bind("tanh", as_array(x))


def softplus(x: ArrayLike) -> Array:
    """log(1 + exp(x)), without overflow."""
    return bind("softplus", as_array(x))


@operation
def log_sigmoid(x: ArrayLike) -> Array:
    """log(sigmoid(x)), without overflow."""
    return bind("negative", bind("softplus", bind("negative", as_array(x))))


@operation
def gelu(x: ArrayLike) -> Array:
    """The Gaussian error linear unit in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415): Erf is missing on some
    providers.
    """
    return _gelu(as_array(x))


# 0.5 (1 + tanh(u)) = sigmoid(2 u), so gelu is x sigmoid(2 u) with 2 u = x (a + b x²): fewer passes over x.
_GELU_A = 2.0 * sqrt(2.0 / pi)
_GELU_B = 0.044715 * _GELU_A


def _gelu_gradient(x: Array, y: Array, gradient: Array) -> Array:
    square = x * x
    gate = sigmoid(x * (_GELU_A + _GELU_B * square))
    return gradient * (gate + (y - y * gate) * (_GELU_A + 3.0 * _GELU_B * square))


@custom_vjp(_gelu_gradient)
def _gelu(x: Array) -> Array:
    return x * sigmoid(x * (_GELU_A + _GELU_B * (x * x)))


def erf(x: ArrayLike) -> Array:
    """The error function. float64 is evaluated and cannot be exported: no provider has it in double precision."""
    return bind("erf", as_array(x))


@operation
def top_k(x: ArrayLike, k: int, *, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
    """The k greatest (or smallest) elements along an axis in order, and their int32 positions; the first of equal ones
    comes first. Gradients pass through the elements.
    """
    array = as_array(x)
    place = axis_of("top_k", array, axis)
    places = bind("top_k", array, k=k, axis=place, largest=largest)
    return bind("gather_along", array, places, axis=place), places


@operation
def scatter_add(x: ArrayLike, indices: ArrayLike, updates: ArrayLike, *, axis: int = 0) -> Array:
    """x with updates[..., indices, ...] added to its slices at these positions of an axis; a position that is named
    twice gets both. updates have the shape of take(x, indices, axis), and positions obey its rules. The cost is that of
    the updates, not of x.
    """
    (array, added), places = promote("scatter_add", x, updates), as_array(indices)
    place = axis_of("scatter_add", array, axis)
    check_known("scatter_add", array, places, place)
    if place == 0:
        return bind("scatter_add", array, places, added)
    expected = (*array.shape[:place], *places.shape, *array.shape[place + 1 :])
    if added.shape != expected:
        fix = f"Give updates of shape {list(expected)}."
        refuse(ShapeError, "scatter_add", (array, places, added), "the updates do not fit the indices.", fix)
    inner = range(place, place + places.ndim)
    rows = manipulation.permute_dims(added, (*inner, *(i for i in range(added.ndim) if i not in inner)))
    return manipulation.moveaxis(bind("scatter_add", manipulation.moveaxis(array, place, 0), places, rows), 0, place)


@operation
def softmax(x: ArrayLike, axis: int = -1) -> Array:
    """exp(x) / sum(exp(x)) along an axis, without overflow."""
    array = as_array(x)
    return bind("softmax", array, axis=axis_of("softmax", array, axis))


@operation
def log_softmax(x: ArrayLike, axis: int = -1) -> Array:
    """log(softmax(x)) along an axis, without overflow and without LogSoftmax, which some providers lack."""
    array = as_array(x)
    place = axis_of("log_softmax", array, axis)
    # The shift cancels, so no gradient passes through it.
    shifted = array - stop_gradient(reduction.max(array, axis=place, keepdims=True))
    return shifted - elementwise.log(reduction.sum(elementwise.exp(shifted), axis=place, keepdims=True))


@operation
def logsumexp(x: ArrayLike, axis: int = -1, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) along an axis, without overflow; infinite where all elements are -inf, or one is inf."""
    array = as_array(x)
    if not array.type.is_float:
        refuse(
            DTypeError, "logsumexp", (array,), "the operand must be a float.", 'Convert it with astype(x, "float32").'
        )
    place = axis_of("logsumexp", array, axis)
    most = float(np.finfo(array.dtype).max)  # a finite shift: inf - inf is no number
    top = stop_gradient(elementwise.clip(reduction.max(array, axis=place, keepdims=True), -most, most))
    result = elementwise.log(reduction.sum(elementwise.exp(array - top), axis=place, keepdims=True)) + top
    return result if keepdims else manipulation.squeeze(result, place)


@operation
def one_hot(ids: ArrayLike, n: int, *, dtype: str = "float32") -> Array:
    """ids[...] of int32 or int64 → [..., n]: 1 at the id, else 0; an id outside 0..n-1 gives a row of zeros."""
    array = as_array(ids)
    if array.type.dtype not in ("int32", "int64"):
        refuse(
            DTypeError,
            "one_hot",
            (array,),
            "the ids must be int32 or int64.",
            'Convert them with astype(ids, "int32").',
        )
    steps = Array(np.arange(n, dtype=array.type.dtype))
    return rules.equal_mask(manipulation.expand_dims(array, -1), steps, dtype)


@operation
def embedding(table: ArrayLike, ids: ArrayLike) -> Array:
    """Rows of table[V, D] at ids[...] → [..., D]. The gradient of the table is a product with the transposed one-hot
    matrix. An id outside 0 .. V - 1 is refused when numbers are there, in graphs too: -1 is not the last row.
    """
    return manipulation.take(table, _from_front(table, ids), axis=0)


def _from_front(table: ArrayLike, ids: ArrayLike) -> Array:
    """The ids, of which a negative one does not count from the end, as it would in NumPy and in ONNX."""
    array, shape = as_array(ids), as_array(table).shape
    rows = shape[0] if shape else 0
    if array.type.dtype not in ("int32", "int64"):
        return array
    if array.recorder is not None:
        # Runtimes read -1 as the last row, and refuse this; Where is not among the operators that all have.
        below = creation.astype(elementwise.less(array, 0), array.type.dtype)
        return array + below * (1 << 30)
    if array.size and (lowest := int(array.numpy().min())) < 0:
        raise InputError(
            f"{user_source()}: {asked_operation('embedding')}: the id {lowest} is below 0, and ids are in 0 .. "
            f"{rows - 1}.",
            hint="Give what is missing, or padding, an id of its own.",
        )
    return array


def _add_rows(table: Array, ids: Array, _rows: Array, gradient: Array) -> tuple[Array, None]:
    return bind("scatter_add", rules.zeros(table.type), ids, gradient), None


@custom_vjp(_add_rows)
def _touching(table: Array, ids: Array) -> Array:
    return manipulation.take(table, ids, axis=0)


@operation
def touching_embedding(table: ArrayLike, ids: ArrayLike) -> Array:
    """:func:`embedding` whose gradient adds to the rows that were read, instead of multiplying by a one-hot matrix: its
    cost does not grow with V. For providers that have ScatterElements (CPU, CUDA, WebGPU, TensorRT, CANN, OpenVINO).
    """
    return _touching(as_array(table), _from_front(table, ids))


@operation
def split(x: ArrayLike, sizes: Sequence[int], *, axis: int) -> tuple[Array, ...]:
    """The array cut along an axis into parts of these sizes, as ``numpy.split`` cuts it. For parts that are all used:
    the gradient puts the parts' gradients side by side, where that of slices would add up one padded array for each.
    """

    def together(_x: Array, _parts: tuple[Array, ...], gradients: tuple[Array, ...]) -> Array:
        return manipulation.concat(gradients, axis=axis)

    @custom_vjp(together)
    def cut(x: Array) -> tuple[Array, ...]:
        return tuple(manipulation.split(x, sizes, axis=axis))

    array = as_array(x)
    # Numbers that are no floats have no gradient to put together.
    return cut(array) if array.type.is_float else tuple(manipulation.split(array, sizes, axis=axis))


def stop_gradient(x: ArrayLike) -> Array:
    """x, through which no gradient passes."""
    return bind("stop_gradient", as_array(x))


Pair = int | tuple[int, int]
Padding = int | tuple[tuple[int, int], tuple[int, int]] | tuple[int, int]


def _pair(x: Pair) -> tuple[int, int]:
    return (x, x) if isinstance(x, int) else (int(x[0]), int(x[1]))


def _padding(x: Padding) -> tuple[tuple[int, int], tuple[int, int]]:
    rows, columns = (x, x) if isinstance(x, int) else x
    return _pair(rows), _pair(columns)


@operation
def conv2d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Array:
    """Cross-correlation of images x[N, C, H, W] with w[O, C / groups, kh, kw] → [N, O, H', W'], plus bias[O].

    padding: one number, (rows, columns), or ((top, bottom), (left, right)), filled with zeros. H' = (H + top + bottom -
    dilation * (kh - 1) - 1) // stride + 1.
    """
    operands = promote("conv2d", x, w) if bias is None else promote("conv2d", x, w, bias)
    return bind(
        "conv", *operands, stride=_pair(stride), padding=_padding(padding), dilation=_pair(dilation), groups=groups
    )


@operation
def conv1d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    stride: int = 1,
    padding: Pair = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Array:
    """Cross-correlation of sequences x[N, C, L] with w[O, C / groups, k] → [N, O, L'], plus bias[O]: :func:`conv2d` of
    images of one row. padding: one number, or (left, right).
    """
    operands = promote("conv1d", x, w) if bias is None else promote("conv1d", x, w, bias)
    if operands[0].ndim != 3 or operands[1].ndim != 3:
        fix = "Sequences are [N, C, L], weights [O, C / groups, k]."
        refuse(ShapeError, "conv1d", operands, "sequences and weights have three axes each.", fix)
    images, weights = (manipulation.expand_dims(operand, 2) for operand in operands[:2])
    sides = ((0, 0), _pair(padding))
    done = conv2d(
        images, weights, *operands[2:], stride=(1, stride), padding=sides, dilation=(1, dilation), groups=groups
    )
    return manipulation.squeeze(done, 2)


@operation
def conv_transpose2d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    output_padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Array:
    """The transpose of a convolution: images x[N, C, H, W] with w[C, O / groups, kh, kw] → [N, O, H', W'], plus
    bias[O].

    H' = (H - 1) stride - 2 padding + dilation (kh - 1) + output_padding + 1. It is the gradient of ``conv2d`` with the
    same weights with respect to images of that size; output_padding, below the stride, chooses among the sizes that the
    convolution maps to H.
    """
    operands = promote("conv_transpose2d", x, w) if bias is None else promote("conv_transpose2d", x, w, bias)
    image, weights = operands[:2]
    by, pads, extra, apart = (_pair(value) for value in (stride, padding, output_padding, dilation))
    if image.ndim != 4 or weights.ndim != 4:
        fix = "Images are [N, C, H, W], weights [C, O / groups, kh, kw]."
        refuse(ShapeError, "conv_transpose2d", operands, "images and weights have four axes each.", fix)
    if not all(0 <= extra[i] < by[i] for i in (0, 1)):
        reason = f"output_padding {extra} is not below the stride {by}."
        refuse(ShapeError, "conv_transpose2d", operands, reason, "It chooses among sizes that a stride makes one.")
    sizes = [
        (image.shape[2 + i] - 1) * by[i] - 2 * pads[i] + apart[i] * (weights.shape[2 + i] - 1) + extra[i] + 1
        for i in (0, 1)
    ]
    made = bind(
        "conv_input_gradient",
        image,
        weights,
        size=(sizes[0], sizes[1]),
        stride=by,
        padding=((pads[0], pads[0]), (pads[1], pads[1])),
        dilation=apart,
        groups=groups,
    )
    return made if bias is None else made + manipulation.reshape(operands[2], (1, -1, 1, 1))


@operation
def max_pool2d(x: ArrayLike, kernel: Pair, stride: Pair | None = None, padding: Padding = 0) -> Array:
    """The greatest element of each window of images x[N, C, H, W]; padding never wins. stride is the kernel unless
    given.
    """
    window = _pair(kernel)
    return bind(
        "max_pool",
        as_array(x),
        kernel=window,
        stride=window if stride is None else _pair(stride),
        padding=_padding(padding),
    )


@operation
def avg_pool2d(x: ArrayLike, kernel: Pair, stride: Pair | None = None, padding: Padding = 0) -> Array:
    """The mean of each window of images x[N, C, H, W]; padding counts as zeros. stride is the kernel unless given."""
    window, array = _pair(kernel), as_array(x)
    widths = _padding(padding)
    if widths != ((0, 0), (0, 0)):
        array = manipulation.pad(array, ((0, 0), (0, 0), *widths))
    return bind("average_pool", array, kernel=window, stride=window if stride is None else _pair(stride))
