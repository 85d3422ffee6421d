"""Models whose gradients are clipped, and the loop that says what clipping is."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.compute import nn, ops, vmap, while_loop
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.clipping.transform import Clip, Clipped, clipped_grad
from coterie.compute.ir import NDArray
from coterie.compute.nn.losses import mean_squared_error, softmax_cross_entropy

Losses = Callable[..., Array]


@dataclass(frozen=True)
class Model:
    """fn(params, *batch) → [B]; params and the batch are float32 unless they are ids."""

    name: str
    fn: Losses
    params: Mapping[str, tuple[int, ...]]
    batch: Sequence[NDArray]
    start: Mapping[str, NDArray] = field(default_factory=dict[str, NDArray])

    def weights(self) -> dict[str, Array]:
        """Parameters, float32."""
        rng = np.random.default_rng(7)
        drawn = {name: (0.4 * rng.normal(size=shape)).astype(np.float32) for name, shape in self.params.items()}
        return {name: Array(value) for name, value in {**drawn, **self.start}.items()}

    @property
    def size(self) -> int:
        """Examples in the batch."""
        return len(self.batch[0])


B = 6
RNG = np.random.default_rng(11)


def floats(*shape: int) -> NDArray:
    return RNG.normal(size=shape).astype(np.float32)


def ids(most: int, *shape: int) -> NDArray:
    return RNG.integers(0, most, shape).astype(np.int32)


def of_module(name: str, module: nn.Module, x: NDArray, y: NDArray | None = None) -> Model:
    """Classification where there are labels; else the mean square of the output."""
    start = module.init(3)

    def fn(params: Mapping[str, Array], x: Array, *y: Array) -> Array:
        out = module(params, x, nn.train())
        if y:
            return softmax_cross_entropy(out, y[0])
        return xp.mean(xp.reshape(out * out, (out.shape[0], -1)), axis=1)

    return Model(name, fn, {}, [x] if y is None else [x, y], start)


def square(y: Array, target: Array) -> Array:
    return mean_squared_error(y, target)


def tied(params: Mapping[str, Array], ids: Array, target: Array) -> Array:
    """The table that embeds also decodes."""
    hidden = xp.tanh(ops.embedding(params["table"], ids) @ params["mix"])
    logits = hidden @ xp.matrix_transpose(params["table"])
    return square(xp.mean(logits, axis=1), target)


def unrolled(params: Mapping[str, Array], x: Array, target: Array) -> Array:
    """A recurrent cell, step by step: each weight is used once a step."""
    state = xp.zeros((x.shape[0], 3))
    for step in range(x.shape[1]):
        state = xp.tanh(x[:, step] @ params["in"] + state @ params["state"] + params["bias"])
    return square(state, target)


def twice(params: Mapping[str, Array], x: Array, target: Array) -> Array:
    """One weight, used plain and transposed."""
    return square(xp.tanh(x @ params["w"]) @ xp.matrix_transpose(params["w"]), target)


def as_is_and_square(params: Mapping[str, Array], x: Array, target: Array) -> Array:
    """A gradient that is no sum of products of one form."""
    w = params["w"]
    return square(x @ (w * w) + x @ w, target)


def reshaped(params: Mapping[str, Array], x: Array, target: Array) -> Array:
    """Weights kept in another shape than they are used in, and subtracted."""
    return square(0.5 * x - x @ xp.reshape(xp.permute_dims(params["w"], (2, 0, 1)), (4, 4)), target)


def heads(params: Mapping[str, Array], x: Array, target: Array) -> Array:
    """A product for each of two heads at once."""
    return square(xp.sum(xp.expand_dims(x, 1) @ params["w"], axis=(1, 2)), target)


def picked(params: Mapping[str, Array], ids: Array, target: Array) -> Array:
    """Rows picked by one-hot vectors, of which those of ids out of range are zero."""
    return square(xp.sum(xp.tanh(ops.one_hot(ids, 30) @ params["table"]), axis=1), target)


def unused(params: Mapping[str, Array], x: Array, target: Array) -> Array:
    return square(x @ params["w"], target)


def until_long(params: Mapping[str, Array], x: Array, target: Array) -> Array:
    """A loop that takes as many steps as each example decides."""

    def grown(row: Array) -> Array:
        return while_loop(lambda h: xp.sum(h * h) < 30.0, lambda h: 1.5 * h + xp.tanh(h @ params["w"]), row)

    return square(vmap(grown)(x @ params["in"]), target)


def positions(params: Mapping[str, Array], x: Array, target: Array) -> Array:
    return square(xp.sum(xp.tanh(x + params["p"]), axis=1), target)


def conv(name: str, channels: int, outputs: int, kernel: int, **options: Any) -> Model:
    def fn(params: Mapping[str, Array], x: Array) -> Array:
        y = ops.conv2d(x, params["w"], params["b"], **options)
        return xp.mean(xp.reshape(y * y, (y.shape[0], -1)), axis=1)

    weight = (outputs, channels // options.get("groups", 1), kernel, kernel)
    return Model(name, fn, {"w": weight, "b": (outputs,)}, [floats(B, channels, 7, 7)])


def matrix(name: str, fn: Losses, **params: tuple[int, ...]) -> Model:
    return Model(name, fn, params, [floats(B, 4), floats(B, 4)])


MODELS = (
    of_module("mlp", nn.zoo.mlp([5, 8, 3]), floats(B, 5), ids(3, B)),
    of_module("linear on sequences", nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), floats(B, 7, 5)),
    of_module("long sequences", nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)), floats(B, 40, 2)),
    of_module("cnn", nn.zoo.lenet(), floats(2, 1, 28, 28), ids(10, 2)),
    of_module("embedding", nn.zoo.embedding_classifier(9, 4, 3, hidden=5), ids(9, B, 7), ids(3, B)),
    of_module("layer norm", nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 2)), floats(B, 4, 5)),
    of_module("group norm", nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten()), floats(B, 2, 5, 5)),
    of_module("attention", nn.MultiHeadAttention(8, 2), floats(B, 5, 8)),
    of_module("transformer", nn.TransformerBlock(8, 2), floats(B, 5, 8)),
    of_module("gru", nn.GRU(3, 4), floats(B, 4, 3)),
    of_module("rms norm", nn.Sequential(nn.Linear(5, 6), nn.RMSNorm(6)), floats(B, 5)),
    of_module("transposed convolution", nn.ConvTranspose2d(2, 3, 3, stride=2), floats(B, 2, 4, 4)),
    of_module("last rows", nn.Embedding(30, 9), ids(3, B, 4) + 27),
    Model("picked", picked, {"table": (30, 9)}, [ids(33, B, 4) - 1, floats(B, 9)]),
    of_module("gru in a loop", nn.GRU(3, 4, unroll=False), floats(B, 4, 3)),
    Model("tied", tied, {"table": (9, 4), "mix": (4, 4)}, [ids(9, B, 5), floats(B, 9)]),
    Model("unrolled", unrolled, {"in": (4, 3), "state": (3, 3), "bias": (3,)}, [floats(B, 5, 4), floats(B, 3)]),
    Model("positions", positions, {"p": (3, 4)}, [floats(B, 3, 4), floats(B, 4)]),
    Model("heads", heads, {"w": (2, 4, 3)}, [floats(B, 5, 4), floats(B, 3)]),
    matrix("twice", twice, w=(4, 6)),
    matrix("as it is and its square", as_is_and_square, w=(4, 4)),
    matrix("reshaped", reshaped, w=(2, 4, 2)),
    matrix("unused", unused, w=(4, 4), other=(2,)),
    conv("conv", 2, 3, 3),
    conv("conv, padding and stride", 2, 3, 3, padding=1, stride=2),
    conv("conv, dilation", 2, 3, 3, dilation=2),
    conv("conv, groups", 4, 6, 3, groups=2, padding=(1, 0)),
    conv("conv, depthwise", 3, 3, 3, groups=3),
    conv("conv, all in one place", 8, 9, 7),
    conv("conv, 1x1", 3, 2, 1),
    Model("while loop", until_long, {"in": (4, 4), "w": (4, 4)}, [floats(B, 4), floats(B, 4)]),
)


def loop(
    model: Model, clip: float | Mapping[str, float], weight: NDArray, microbatch: int = 1
) -> tuple[dict[str, NDArray], NDArray]:
    """The definition: gradients one by one, clipped and added. The sum, and the norms [units] (a column for each name
    of a clip by names).
    """
    params = model.weights()
    total = {name: np.zeros(value.shape) for name, value in params.items()}
    norms: list[Any] = []
    for start in range(0, model.size, microbatch):
        rows = slice(start, start + microbatch)

        def objective(params: dict[str, Array], rows: slice = rows) -> Array:
            losses = model.fn(params, *(Array(array[rows]) for array in model.batch))
            return xp.sum(losses * Array(weight[rows])) * (1.0 / microbatch)

        gradient = {name: np.float64(value.numpy()) for name, value in grad(objective)(params).items()}
        squares = {name: float((value**2).sum()) for name, value in gradient.items()}
        groups = {name: [name] for name in clip} if isinstance(clip, Mapping) else {"": list(gradient)}
        found: list[float] = []
        for group, names in groups.items():
            norm = float(np.sqrt(sum(squares[name] for name in names)))
            limit = clip[group] if isinstance(clip, Mapping) else clip
            for name in names:
                total[name] += gradient[name] * (min(1.0, limit / norm) if norm else 1.0)
            found.append(norm)
        norms.append(found if isinstance(clip, Mapping) else found[0])
    return total, np.asarray(norms)


BY_NAME = {model.name: model for model in MODELS}


def clip_of(model: Model, clip: Clip, weight: NDArray | None = None, microbatch: int = 1) -> Clipped:
    arrays = [Array(array) for array in model.batch]
    return clipped_grad(model.fn, clip, microbatch=microbatch)(model.weights(), *arrays, sample_weight=weight)


def assert_agree(found: Mapping[str, Array], expected: Mapping[str, NDArray]) -> None:
    assert list(found) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].numpy(), value, rtol=2e-4, atol=2e-6, err_msg=name)


def length(gradient: Mapping[str, Array]) -> float:
    return float(np.sqrt(sum((np.float64(value.numpy()) ** 2).sum() for value in gradient.values())))
