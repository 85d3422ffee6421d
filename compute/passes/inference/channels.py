"""What a matrix product or a convolution with constant weights takes in: a number for each of its output channels, or
for each of its input channels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.compute.ir import NDArray, Node, Type, Value
from coterie.compute.passes.rewrite import View

Scaled = Callable[[NDArray, NDArray, Mapping[str, Any]], NDArray]


@dataclass(frozen=True, slots=True)
class Product:
    """How one primitive reads its weights, its operand 1.

    axis: of the channels, in operand 0 and in the result alike. outputs(w, s, attributes): the weights that give each
    output channel times its number of s. inputs(w, s, attributes): those that take each input channel times its number.
    shifts(w, t, attributes): what each output channel gains when t is added to the input channels; None where the edges
    of an image gain something else.
    """

    axis: int
    outputs: Scaled
    inputs: Scaled
    shifts: Callable[[NDArray, NDArray, Mapping[str, Any]], NDArray | None]


def _grouped(w: NDArray, attributes: Mapping[str, Any]) -> NDArray:
    """[O, C / groups, kh, kw] as [groups, O / groups, C / groups, kh, kw]."""
    groups: int = attributes["groups"]
    return w.reshape(groups, w.shape[0] // groups, *w.shape[1:])


def _conv_inputs(w: NDArray, s: NDArray, attributes: Mapping[str, Any]) -> NDArray:
    by_group = s.reshape(attributes["groups"], 1, w.shape[1], 1, 1)
    return (_grouped(w, attributes) * by_group).reshape(w.shape)


def _conv_shifts(w: NDArray, t: NDArray, attributes: Mapping[str, Any]) -> NDArray | None:
    if any(n for side in attributes["padding"] for n in side):
        return None  # the padding is not shifted
    by_group = t.reshape(attributes["groups"], 1, w.shape[1], 1, 1)
    return (_grouped(w, attributes) * by_group).sum(axis=(2, 3, 4)).reshape(-1)


def _first_axis(w: NDArray, s: NDArray, attributes: Mapping[str, Any]) -> NDArray:
    return w * s.reshape(-1, 1, 1, 1)


def _columns(w: NDArray, s: NDArray, attributes: Mapping[str, Any]) -> NDArray:
    return w * (s.reshape(-1, 1) if attributes.get("transpose_b") else s)


def _rows(w: NDArray, s: NDArray, attributes: Mapping[str, Any]) -> NDArray:
    return w * (s if attributes.get("transpose_b") else s.reshape(-1, 1))


def _row_shifts(w: NDArray, t: NDArray, attributes: Mapping[str, Any]) -> NDArray:
    return w @ t if attributes.get("transpose_b") else t @ w


_MATRIX = Product(axis=-1, outputs=_columns, inputs=_rows, shifts=_row_shifts)
PRODUCTS: Mapping[str, Product] = {
    "conv": Product(axis=1, outputs=_first_axis, inputs=_conv_inputs, shifts=_conv_shifts),
    # The transpose of a convolution: its result has the channels that the convolution reads.
    "conv_input_gradient": Product(
        axis=1, outputs=_conv_inputs, inputs=_first_axis, shifts=lambda w, t, attributes: None
    ),
    "matmul": _MATRIX,
    "gemm": _MATRIX,
}


def weights_of(node: Node, view: View) -> NDArray | None:
    """The weights of a product, when they are constant and laid out as PRODUCTS reads them."""
    weights = view.constant(node.inputs[1])
    if weights is None or node.attributes.get("transpose_a"):
        return None
    return weights if weights.ndim == (4 if node.primitive.startswith("conv") else 2) else None


def addend_of(node: Node, view: View) -> NDArray | None:
    """The constant bias of a product, one number for each output channel; zeros where it has none. None for another
    addend.
    """
    channels = node.output.type.shape[PRODUCTS[node.primitive].axis]
    if len(node.inputs) == 2:
        return np.zeros(channels, node.output.type.dtype)
    constant = view.constant(node.inputs[2])
    if constant is None or constant.size not in (1, channels) or constant.shape[-1:] not in ((), (1,), (channels,)):
        return None
    return np.broadcast_to(constant.reshape(-1), (channels,))


def emit_product(view: View, node: Node, x: Value, weights: NDArray, bias: NDArray) -> Value | None:
    """The product with other weights and another bias, both in the node's dtype; None where they leave its range."""
    dtype = node.output.type.dtype
    with np.errstate(all="ignore"):
        held, added = weights.astype(dtype), bias.astype(dtype)
    if not (np.isfinite(held).all() and np.isfinite(added).all()):
        return None
    operands = [x, view.emit_constant(held)]
    if not added.any():
        return view.emit(node.primitive, *operands, **node.attributes)
    if node.primitive == "conv":
        return view.emit("conv", *operands, view.emit_constant(added), **node.attributes)
    if node.primitive == "conv_input_gradient":
        product = view.emit(node.primitive, *operands, **node.attributes)
        return view.emit("add", product, view.emit_constant(added.reshape(-1, 1, 1)))
    if x.type.rank == 2:
        flipped = bool(node.attributes.get("transpose_b"))
        return view.emit("gemm", *operands, view.emit_constant(added), transpose_a=False, transpose_b=flipped)
    return view.emit("add", view.emit("matmul", *operands), view.emit_constant(added))


def by_channel(constant: NDArray, type_: Type, axis: int) -> NDArray | None:
    """One number for each channel of a tensor, out of a constant that broadcasts over it without making it larger; None
    for a constant that differs along another axis, or is not finite. In float64.
    """
    rank = type_.rank
    if constant.ndim > rank or not np.isfinite(constant).all():
        return None
    sizes = (1,) * (rank - constant.ndim) + constant.shape
    channels = type_.shape[axis]
    if any(n != 1 for index, n in enumerate(sizes) if index != axis % rank) or sizes[axis] not in (1, channels):
        return None
    return np.broadcast_to(constant.reshape(-1), (channels,)).astype(np.float64)
