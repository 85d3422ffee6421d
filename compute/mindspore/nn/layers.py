"""Layers under MindSpore's names, arguments and parameter names; the computation is coterie's."""

from dataclasses import replace
from typing import Any, Literal, TypeAlias, cast

from coterie.compute import nn, ops
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.mindspore.cell import Cell
from coterie.compute.mindspore.initializer import HeUniform, Start, Uniform, initializer
from coterie.compute.mindspore.parameter import Parameter
from coterie.compute.nn.batch_normalisation import Running, by_batch
from coterie.compute.nn.module import pair
from coterie.errors import ArgumentValueError

Size: TypeAlias = int | tuple[int, int]
Padding: TypeAlias = "int | tuple[int, int, int, int]"
PadMode: TypeAlias = Literal["same", "valid", "pad"]
_KAIMING = HeUniform(5**0.5)  # what PyTorch and MindSpore start Dense and Conv2d with


class Dense(Cell):
    """x[..., in_channels] → x weightᵀ + bias. weight [out_channels, in_channels], bias [out_channels]. activation: a
    name in ``nn.activations`` or a Cell.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        weight_init: Start = None,
        bias_init: Start = None,
        has_bias: bool = True,
        activation: Any = None,
    ) -> None:
        super().__init__()
        self._module = nn.Linear(in_channels, out_channels, bias=has_bias)
        weight = _KAIMING if weight_init is None else weight_init
        self.weight = Parameter(initializer(weight, (out_channels, in_channels)))
        if has_bias:
            bias = Uniform(in_channels**-0.5) if bias_init is None else bias_init
            self.bias = Parameter(initializer(bias, (out_channels,)))
        self.has_bias = has_bias
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise ArgumentValueError(
                f"There is no activation {activation!r}.", hint=f"Choose one of {', '.join(_ACTIVATIONS)}, or a Cell."
            )
        self.activation = _ACTIVATIONS[activation]() if isinstance(activation, str) else activation

    def construct(self, x: Array) -> Any:
        params = {"weight": self.weight, "bias": self.bias} if self.has_bias else {"weight": self.weight}
        y = self._module(params, x)
        return y if self.activation is None else self.activation(y)


class Conv2d(Cell):
    """Images [N, in_channels, H, W] → [N, out_channels, H', W']; a cross-correlation.

    pad_mode: "same" gives ceil(H / stride), more zeros below and right; "valid" pads nothing; "pad" pads by
    ``padding``, one number or (top, bottom, left, right). weight [out_channels, in_channels / group, kh, kw], bias
    [out_channels].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        pad_mode: PadMode = "same",
        padding: Padding = 0,
        dilation: Size = 1,
        group: int = 1,
        has_bias: bool = False,
        weight_init: Start = None,
        bias_init: Start = None,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.dilation = pair(kernel_size), pair(stride), pair(dilation)
        if group < 1 or in_channels % group or out_channels % group:
            raise ArgumentValueError(
                f"Conv2d: {group} groups do not divide {in_channels} and {out_channels} channels.",
                hint="Both numbers of channels must be multiples of group.",
            )
        self.pad_mode, self.padding, self.group = pad_mode, _checked(pad_mode, padding), group
        shape = (out_channels, in_channels // group, *self.kernel_size)
        self.weight = Parameter(initializer(_KAIMING if weight_init is None else weight_init, shape))
        self.bias: Any = None
        if has_bias:
            bound = (shape[1] * shape[2] * shape[3]) ** -0.5
            self.bias = Parameter(initializer(Uniform(bound) if bias_init is None else bias_init, (out_channels,)))

    def construct(self, x: Array) -> Array:
        padding = _pads(self.pad_mode, self.padding, x.shape[2:], self.kernel_size, self.stride, self.dilation)
        return ops.conv2d(
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=padding,
            dilation=self.dilation,
            groups=self.group,
        )


class MaxPool2d(Cell):
    """The greatest element of each window; what is padded never wins."""

    def __init__(self, kernel_size: Size = 1, stride: Size = 1, pad_mode: PadMode = "valid", padding: int = 0) -> None:
        super().__init__()
        self.kernel_size, self.stride = pair(kernel_size), pair(stride)
        self.pad_mode, self.padding = pad_mode, _checked(pad_mode, padding)

    def construct(self, x: Array) -> Array:
        padding = _pads(self.pad_mode, self.padding, x.shape[2:], self.kernel_size, self.stride, (1, 1))
        return ops.max_pool2d(x, self.kernel_size, self.stride, padding)


class AvgPool2d(Cell):
    """The mean of each window. With padding, zeros count in ("pad" mode) or do not ("same")."""

    def __init__(self, kernel_size: Size = 1, stride: Size = 1, pad_mode: PadMode = "valid", padding: int = 0) -> None:
        super().__init__()
        self.kernel_size, self.stride = pair(kernel_size), pair(stride)
        self.pad_mode, self.padding = pad_mode, _checked(pad_mode, padding)

    def construct(self, x: Array) -> Array:
        padding = _pads(self.pad_mode, self.padding, x.shape[2:], self.kernel_size, self.stride, (1, 1))
        if padding == ((0, 0), (0, 0)):
            return ops.avg_pool2d(x, self.kernel_size, self.stride)
        summed = _padded_mean(x, padding, self.kernel_size, self.stride)
        if self.pad_mode == "pad":
            return summed
        inside = cnp.ones((1, 1, *x.shape[2:]), dtype=x.dtype)
        return summed / _padded_mean(inside, padding, self.kernel_size, self.stride)


def _padded_mean(x: Array, padding: tuple[tuple[int, int], ...], kernel: Size, stride: Size) -> Array:
    return ops.avg_pool2d(cnp.pad(x, ((0, 0), (0, 0), *padding)), kernel, stride)


def _checked(pad_mode: str, padding: Padding) -> tuple[int, int, int, int]:
    if pad_mode not in ("same", "valid", "pad"):
        raise ArgumentValueError(f"There is no pad_mode {pad_mode!r}.", hint="Choose same, valid or pad.")
    if padding not in (0, (0, 0, 0, 0)) and pad_mode != "pad":
        raise ArgumentValueError(f"padding {padding!r} has no effect with pad_mode {pad_mode!r}.", hint='Use "pad".')
    return (padding, padding, padding, padding) if isinstance(padding, int) else padding


def _pads(
    pad_mode: str,
    padding: tuple[int, int, int, int],
    size: tuple[int, ...],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
) -> tuple[tuple[int, int], tuple[int, int]]:
    """(before, after) of rows and of columns."""
    if pad_mode == "pad":
        return padding[:2], padding[2:]
    if pad_mode == "valid":
        return (0, 0), (0, 0)

    def same(axis: int) -> tuple[int, int]:
        span = dilation[axis] * (kernel[axis] - 1) + 1
        missing = max((-(-size[axis] // stride[axis]) - 1) * stride[axis] + span - size[axis], 0)
        return missing // 2, missing - missing // 2

    return same(0), same(1)


class Flatten(Cell):
    """[N, ...] → [N, the product of the rest]."""

    def construct(self, x: Array) -> Array:
        return nn.Flatten()({}, x)


class ReLU(Cell):
    """max(x, 0)."""

    def construct(self, x: Array) -> Array:
        return ops.relu(x)


class Sigmoid(Cell):
    """1 / (1 + exp(-x))."""

    def construct(self, x: Array) -> Array:
        return ops.sigmoid(x)


class Tanh(Cell):
    """tanh(x)."""

    def construct(self, x: Array) -> Array:
        return ops.tanh(x)


class GELU(Cell):
    """The tanh form of the Gaussian error linear unit, which is what ``approximate=True`` means."""

    def __init__(self, approximate: bool = True) -> None:
        super().__init__()
        if not approximate:
            raise ArgumentValueError("GELU is here in its tanh form only.", hint="Use GELU(approximate=True).")

    def construct(self, x: Array) -> Array:
        return ops.gelu(x)


class Softmax(Cell):
    """exp(x) / sum of exp(x) along an axis."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def construct(self, x: Array) -> Array:
        return ops.softmax(x, axis=self.axis)


class LogSoftmax(Cell):
    """log(softmax(x)) along an axis."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def construct(self, x: Array) -> Array:
        return ops.log_softmax(x, axis=self.axis)


_ACTIVATIONS = {"relu": ReLU, "sigmoid": Sigmoid, "tanh": Tanh, "gelu": GELU, "softmax": Softmax}


class Dropout(Cell):
    """In training zeroes elements with probability ``p`` (or 1 - keep_prob) and scales the others up."""

    def __init__(self, keep_prob: float = 0.5, p: float | None = None) -> None:
        super().__init__()
        self._module = nn.Dropout(1.0 - keep_prob if p is None else p)

    def construct(self, x: Array) -> Array:
        return self._module({}, x, self.mode())


class Embedding(Cell):
    """ids of int32 or int64 → rows of embedding_table [vocab_size, embedding_size]."""

    def __init__(self, vocab_size: int, embedding_size: int, embedding_table: Start = "normal") -> None:
        super().__init__()
        self.embedding_table = Parameter(initializer(embedding_table, (vocab_size, embedding_size)))

    def construct(self, ids: Array) -> Array:
        return ops.embedding(self.embedding_table, ids)


class LayerNorm(Cell):
    """Normalisation over the last axis; gamma and beta [normalized_shape]."""

    def __init__(self, normalized_shape: int | tuple[int] | list[int], epsilon: float = 1e-7) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        if len(shape) != 1:
            raise ArgumentValueError(
                f"LayerNorm normalises the last axis only, not {len(shape)}, as {shape} asks.",
                hint="Flatten these axes first.",
            )
        (size,) = shape
        self._module = nn.LayerNorm(size, epsilon)
        self.gamma = Parameter(initializer("ones", (size,)))
        self.beta = Parameter(initializer("zeros", (size,)))

    def construct(self, x: Array) -> Array:
        return self._module({"weight": self.gamma, "bias": self.beta}, x)


class BatchNorm1d(Cell):
    """Normalisation of each channel (axis 1) over the batch, and by moving averages in evaluation.

    gamma, beta, moving_mean and moving_variance [num_features]. moving ← momentum moving + (1 - momentum) of the batch,
    whose variance is the unbiased one for that, as in MindSpore.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.9) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.gamma = Parameter(initializer("ones", (num_features,)))
        self.beta = Parameter(initializer("zeros", (num_features,)))
        self.moving_mean = Parameter(initializer("zeros", (num_features,)), requires_grad=False)
        self.moving_variance = Parameter(initializer("ones", (num_features,)), requires_grad=False)

    def construct(self, x: Array) -> Array:
        mode = self.mode()
        if mode.training:
            running = Running(self.moving_mean, self.moving_variance, 1 - self.momentum)
            return by_batch(x, self.gamma, self.beta, running, replace(mode, record=_moved), self.eps, self)
        shape = tuple(-1 if axis == 1 else 1 for axis in range(x.ndim))
        # An average of updates that a lossy codec rounded may fall below 0.
        scale = self.gamma / cnp.sqrt(cnp.maximum(self.moving_variance, 0.0) + self.eps)
        return (x - cnp.reshape(self.moving_mean, shape)) * cnp.reshape(scale, shape) + cnp.reshape(self.beta, shape)

    def moves(self) -> list[Parameter]:
        return [self.moving_mean, self.moving_variance]


def _moved(moving: Array, after: Array) -> None:
    cast(Parameter, moving).set_data(ops.stop_gradient(after))


class BatchNorm2d(BatchNorm1d):
    """:class:`BatchNorm1d` for images [N, C, H, W]."""
