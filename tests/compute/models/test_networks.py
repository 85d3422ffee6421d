"""Random networks: layers drawn at random, three depths. Their gradients equal central differences in float64 and those
of PyTorch; as ONNX they give what the reference evaluator gives.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.ir import NDArray
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.onnx.checker import check_graph
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.reference import evaluate
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from tests.compute.models.torch_answers import answer, answers

Shape = tuple[int, ...]
Peer = Callable[[Any, Any, Any, Any], Any]
ROWS, CLASSES = 4, 3
DEPTHS = {"shallow": 2, "middle": 5, "deep": 9}
SEEDS = range(15)


@dataclass(frozen=True)
class Drawn:
    """A layer, and the same in PyTorch: (torch, parameters by name, x, uniform numbers) → y."""

    layer: nn.Module
    peer: Peer


def activation(rng: np.random.Generator, shape: Shape) -> Drawn:
    kinds: list[tuple[nn.Module, Peer]] = [
        (nn.ReLU(), lambda t, p, x, u: t.relu(x)),
        (nn.Tanh(), lambda t, p, x, u: t.tanh(x)),
        (nn.Sigmoid(), lambda t, p, x, u: t.sigmoid(x)),
        (nn.GELU(), gelu),
        (nn.Softmax(), lambda t, p, x, u: t.softmax(x, -1)),
    ]
    return Drawn(*kinds[rng.integers(len(kinds))])


def gelu(t: Any, p: Any, x: Any, u: Any) -> Any:
    return t.nn.functional.gelu(x, approximate="tanh")


def dropout(rng: np.random.Generator, shape: Shape) -> Drawn:
    rate = float(rng.choice([0.1, 0.4]))
    return Drawn(nn.Dropout(rate), lambda t, p, x, u: x * t.tensor((u(tuple(x.shape)) >= rate) / (1 - rate)))


def linear(rng: np.random.Generator, shape: Shape) -> Drawn:
    layer = nn.Linear(shape[-1], int(rng.integers(3, 7)), bool(rng.integers(2)))
    return Drawn(layer, lambda t, p, x, u: t.nn.functional.linear(x, p["weight"], p.get("bias")))


def layer_norm(rng: np.random.Generator, shape: Shape) -> Drawn:
    def peer(t: Any, p: Any, x: Any, u: Any) -> Any:
        return t.nn.functional.layer_norm(x, shape[-1:], p["weight"], p["bias"], 1e-3)

    return Drawn(nn.LayerNorm(shape[-1], epsilon=1e-3), peer)


def rms_norm(rng: np.random.Generator, shape: Shape) -> Drawn:
    def peer(t: Any, p: Any, x: Any, u: Any) -> Any:
        return t.nn.functional.rms_norm(x, shape[-1:], p["weight"], 1e-3)

    return Drawn(nn.RMSNorm(shape[-1], epsilon=1e-3), peer)


def group_norm(rng: np.random.Generator, shape: Shape) -> Drawn:
    groups = int(rng.choice([n for n in range(1, shape[1] + 1) if shape[1] % n == 0 and shape[1:] != (n,)]))

    def peer(t: Any, p: Any, x: Any, u: Any) -> Any:
        return t.nn.functional.group_norm(x, groups, p["weight"], p["bias"], 1e-3)

    return Drawn(nn.GroupNorm(groups, shape[1], epsilon=1e-3), peer)


def instance_norm(rng: np.random.Generator, shape: Shape) -> Drawn:
    return Drawn(nn.InstanceNorm(shape[1], epsilon=1e-3), lambda t, p, x, u: t.nn.functional.instance_norm(x, eps=1e-3))


def batch_norm(rng: np.random.Generator, shape: Shape) -> Drawn:
    kind = nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d

    def peer(t: Any, p: Any, x: Any, u: Any) -> Any:
        return t.nn.functional.batch_norm(x, None, None, p["weight"], p["bias"], training=True, eps=1e-2)

    return Drawn(kind(shape[1], epsilon=1e-2), peer)


def convolution(rng: np.random.Generator, shape: Shape) -> Drawn:
    groups = int(rng.choice([n for n in (1, 2) if shape[1] % n == 0]))
    outputs = 2 * int(rng.integers(1, 3))
    stride, padding, dilation = int(rng.integers(1, 3)), int(rng.integers(0, 3)), int(rng.integers(1, 3))
    kernel = int(rng.integers(2, 4)) if min(shape[2:]) + 2 * padding > 2 * dilation else 1
    layer = nn.Conv2d(shape[1], outputs, kernel, stride, padding, dilation, groups)

    def peer(t: Any, p: Any, x: Any, u: Any) -> Any:
        return t.nn.functional.conv2d(x, p["weight"], p["bias"], stride, padding, dilation, groups)

    return Drawn(layer, peer)


def transposed(rng: np.random.Generator, shape: Shape) -> Drawn:
    groups = int(rng.choice([n for n in (1, 2) if shape[1] % n == 0]))
    stride, dilation = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    more = int(rng.integers(stride))
    layer = nn.ConvTranspose2d(shape[1], 2, 3, stride, 1, more, dilation, groups)

    def peer(t: Any, p: Any, x: Any, u: Any) -> Any:
        return t.nn.functional.conv_transpose2d(x, p["weight"], p["bias"], stride, 1, more, groups, dilation)

    return Drawn(layer, peer)


def max_pool(rng: np.random.Generator, shape: Shape) -> Drawn:
    kernel, stride = int(rng.integers(2, 4)), int(rng.integers(1, 4))
    return Drawn(
        nn.MaxPool2d(kernel, stride, padding=1), lambda t, p, x, u: t.nn.functional.max_pool2d(x, kernel, stride, 1)
    )


def average_pool(rng: np.random.Generator, shape: Shape) -> Drawn:
    kernel, stride = int(rng.integers(2, 4)), int(rng.integers(1, 4))
    return Drawn(
        nn.AvgPool2d(kernel, stride, padding=1), lambda t, p, x, u: t.nn.functional.avg_pool2d(x, kernel, stride, 1)
    )


def adaptive_pool(rng: np.random.Generator, shape: Shape) -> Drawn:
    rows, columns = (int(rng.choice([n for n in range(1, size + 1) if size % n == 0])) for size in shape[2:])
    return Drawn(
        nn.AdaptiveAvgPool2d((rows, columns)),
        lambda t, p, x, u: t.nn.functional.adaptive_avg_pool2d(x, (rows, columns)),
    )


def flatten(rng: np.random.Generator, shape: Shape) -> Drawn:
    return Drawn(nn.Flatten(), lambda t, p, x, u: x.flatten(1))


def mean_pool(rng: np.random.Generator, shape: Shape) -> Drawn:
    return Drawn(nn.MeanPool(), lambda t, p, x, u: x.mean(1))


def embedding(rng: np.random.Generator, shape: Shape) -> Drawn:
    return Drawn(nn.Embedding(9, 6), lambda t, p, x, u: t.nn.functional.embedding(x, p["weight"]))


def positions(rng: np.random.Generator, shape: Shape) -> Drawn:
    return Drawn(nn.PositionalEmbedding(7, shape[2]), lambda t, p, x, u: x + p["weight"][: x.shape[1]])


def attend(t: Any, p: Any, x: Any, heads: int, causal: bool) -> Any:
    apart = (x.shape[0], x.shape[1], heads, x.shape[2] // heads)
    thirds = t.nn.functional.linear(x, p["qkv.weight"], p["qkv.bias"]).split(x.shape[2], dim=2)
    q, k, v = (third.reshape(apart).transpose(1, 2) for third in thirds)
    mixed = t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return t.nn.functional.linear(mixed.transpose(1, 2).reshape(x.shape), p["out.weight"], p["out.bias"])


def head_count(rng: np.random.Generator, shape: Shape) -> int:
    return int(rng.choice([n for n in (1, 2, 3) if shape[2] % n == 0]))


def attention(rng: np.random.Generator, shape: Shape) -> Drawn:
    heads, causal = head_count(rng, shape), bool(rng.integers(2))
    layer = nn.MultiHeadAttention(shape[2], heads, causal)
    return Drawn(layer, lambda t, p, x, u: attend(t, p, x, heads, causal))


def block(rng: np.random.Generator, shape: Shape) -> Drawn:
    heads, causal = head_count(rng, shape), bool(rng.integers(2))

    def peer(t: Any, p: Any, x: Any, u: Any) -> Any:
        inner = {name.removeprefix("attention."): value for name, value in p.items()}

        def norm(name: str, x: Any) -> Any:
            return t.nn.functional.layer_norm(x, shape[2:], p[f"{name}.weight"], p[f"{name}.bias"])

        def line(name: str, x: Any) -> Any:
            return t.nn.functional.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])

        x = x + attend(t, inner, norm("norm1", x), heads, causal)
        return x + line("down", gelu(t, p, line("up", norm("norm2", x)), u))

    return Drawn(nn.TransformerBlock(shape[2], heads, 5, causal), peer)


def recurrent(kind: str, rng: np.random.Generator, shape: Shape) -> Drawn:
    hidden, unroll = int(rng.integers(2, 6)), bool(rng.integers(2))

    def peer(t: Any, p: Any, x: Any, u: Any) -> Any:
        module = getattr(t.nn, kind)(shape[2], hidden, batch_first=True)
        named = {f"{name}_l0": value for name, value in p.items()}
        return t.func.functional_call(module, named, (x,))[0]

    return Drawn(getattr(nn, kind)(shape[2], hidden, unroll), peer)


gru, lstm = partial(recurrent, "GRU"), partial(recurrent, "LSTM")

# What can follow, by what there is: ids [B, T], rows [B, D], a sequence [B, T, D], images [B, C, H, W].
Draw = Callable[[np.random.Generator, Shape], Drawn]
CHOICES: dict[int, list[Draw]] = {
    2: [linear, activation, dropout, layer_norm, rms_norm, group_norm, batch_norm],
    3: [linear, activation, dropout, layer_norm, rms_norm, positions, attention, block, gru, lstm, mean_pool, flatten],
    4: [
        convolution, convolution, transposed, max_pool, average_pool, adaptive_pool, group_norm, instance_norm,
        batch_norm, activation, dropout, flatten,
    ],
}  # fmt: skip
INPUTS: dict[str, Shape] = {"rows": (5,), "images": (2, 7, 6), "sequence": (4, 6), "pictures": (4, 5, 5), "ids": (4,)}


@dataclass(frozen=True)
class Network:
    model: nn.Sequential
    peers: tuple[Peer, ...]
    x: NDArray
    y: NDArray
    weight: NDArray
    seed: int

    def first(self) -> dict[str, NDArray]:
        """Parameters in float64; buffers apart from them never reach the loss of a training step."""
        rng = np.random.default_rng(self.seed)
        specs = {name: spec for name, spec in self.model.specs().items() if spec.role == "shared"}
        return {name: rng.normal(0.1, 0.6, spec.shape) for name, spec in specs.items()}

    def buffers(self) -> dict[str, NDArray]:
        specs = self.model.specs()
        return {name: value for name, value in self.model.init(0).items() if specs[name].role == "buffer"}

    def uniform(self) -> Callable[[Shape], NDArray]:
        """The same numbers from every call of this method."""
        rng = np.random.default_rng(self.seed + 1)
        return lambda shape: rng.uniform(size=shape)


@cache
def draw(depth: str, seed: int) -> Network:
    rng = np.random.default_rng([DEPTHS[depth], seed])
    kind = list(INPUTS)[seed % 5]
    ids = kind == "ids"
    shape = (ROWS, *INPUTS[kind])
    x = rng.integers(0, 9, shape).astype(np.int32) if ids else rng.normal(size=shape)
    drawn: list[Drawn] = []
    probe = Array(x)

    def append(make: Draw) -> None:
        nonlocal probe
        found = make(rng, probe.shape)
        drawn.append(found)
        params = {name: Array(np.asarray(value, np.float64)) for name, value in found.layer.init(0).items()}
        probe = found.layer(params, probe)

    if ids:
        append(embedding)
    for _ in range(DEPTHS[depth]):
        options = CHOICES[probe.ndim]
        append(options[rng.integers(len(options))])
    if probe.ndim > 2:
        append(flatten)
    drawn.append(
        Drawn(
            nn.Linear(probe.shape[1], CLASSES),
            lambda t, p, x, u: t.nn.functional.linear(x, p["weight"], p["bias"]),
        )
    )
    return Network(
        nn.Sequential(*(found.layer for found in drawn)),
        tuple(found.peer for found in drawn),
        x,
        rng.integers(0, CLASSES, ROWS).astype(np.int32),
        rng.uniform(0.5, 1.5, ROWS),
        seed,
    )


each = pytest.mark.parametrize(("depth", "seed"), [(depth, seed) for depth in DEPTHS for seed in SEEDS])


def loss_of(network: Network, params: Mapping[str, Array], x: Array, y: Array, weight: Array, mode: nn.Mode) -> Array:
    return xp.sum(softmax_cross_entropy(network.model(params, x, mode), y) * weight)


def eager(network: Network, params: Mapping[str, NDArray]) -> tuple[float, dict[str, NDArray]]:
    """Loss and gradients in float64."""
    uniform = network.uniform()
    mode = nn.train(lambda shape: Array(uniform(shape)))
    held = {name: Array(value.astype(np.float64)) for name, value in network.buffers().items()}
    x, y, weight = Array(network.x), Array(network.y), Array(network.weight)

    def loss(given: dict[str, Array]) -> Array:
        return loss_of(network, {**held, **given}, x, y, weight, mode)

    value, gradients = value_and_grad(loss)({name: Array(array) for name, array in params.items()})
    return value.item(), {name: gradient.numpy() for name, gradient in gradients.items()}


@each
def test_gradients_equal_central_differences(depth: str, seed: int):
    network = draw(depth, seed)
    params = network.first()
    _, gradients = eager(network, params)
    rng, step = np.random.default_rng(seed), 1e-6
    for _ in range(2):
        way: dict[str, NDArray] = {name: rng.normal(size=value.shape) for name, value in params.items()}
        ahead, behind = (
            eager(network, {name: value + side * step * way[name] for name, value in params.items()})[0]
            for side in (1, -1)
        )
        slope = sum(float(np.vdot(gradients[name], way[name])) for name in params)
        assert slope == pytest.approx((ahead - behind) / (2 * step), rel=1e-5, abs=1e-6)


def products(gradients: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """The products of each gradient with two vectors drawn for its name and size: of two numbers."""
    found: dict[str, NDArray] = {}
    for name, gradient in gradients.items():
        rng = np.random.default_rng([gradient.size, *name.encode()])
        found[name] = rng.normal(size=(2, gradient.size)) @ gradient.reshape(-1)
    return found


@each
def test_gradients_equal_those_of_torch(depth: str, seed: int):
    network = draw(depth, seed)
    value, gradients = eager(network, network.first())
    assert value == pytest.approx(answer(f"networks/{depth}/{seed}").item(), rel=1e-9)
    expected, found = answers(f"networks/{depth}/{seed}"), products(gradients)
    assert found.keys() == expected.keys()
    for name, told in expected.items():
        # As far as the sum of so many numbers tells: what cancels in it is not better known than its terms.
        size = 1e-8 + 1e-4 * float(np.linalg.norm(gradients[name]))
        np.testing.assert_allclose(found[name], told, rtol=1e-4, atol=size, err_msg=name)


@each
def test_the_step_as_onnx_equals_the_reference(depth: str, seed: int):
    network = draw(depth, seed)
    buffers = network.buffers()
    params = {name: value.astype(np.float32) for name, value in network.first().items()}

    def step(inputs: GraphInputs) -> dict[str, Array]:
        count = iter(range(100))
        mode = nn.train(lambda shape: inputs.request(f"random/{next(count)}", TensorSpec(shape)))

        def loss(given: dict[str, Array]) -> Array:
            held = {name: Array(value) for name, value in buffers.items()}
            return loss_of(network, {**held, **given}, inputs["x"], inputs["y"], inputs["weight"], mode)

        value, gradients = value_and_grad(loss)({name: inputs[f"p/{name}"] for name in params})
        return {"loss": value} | {f"gradient/{name}": gradient for name, gradient in gradients.items()}

    x = network.x if network.x.dtype.kind == "i" else network.x.astype(np.float32)
    specs = {f"p/{name}": TensorSpec(array.shape) for name, array in params.items()}
    specs |= {"x": TensorSpec(x.shape, x.dtype.name), "y": TensorSpec((ROWS,), "int32"), "weight": TensorSpec((ROWS,))}
    graph = optimise(trace_named(step, specs))
    data = to_onnx(graph, name="train")
    check_graph(data)
    uniform = network.uniform()
    feeds: dict[str, NDArray] = {f"p/{name}": array for name, array in params.items()}
    feeds |= {"x": x, "y": network.y, "weight": network.weight.astype(np.float32)}
    numbers = sorted((name for name in graph.inputs if name.startswith("random/")), key=lambda name: int(name[7:]))
    feeds |= {name: uniform(graph.inputs[name].type.shape).astype(np.float32) for name in numbers}
    expected = evaluate(graph, feeds)
    # Some gradients are 0 but for rounding, as those of a bias before a norm: rounding is relative to the others.
    largest = max(1.0, *(float(np.abs(value).max()) for value in expected.values()))
    for name, found in Executable(data).run(feeds).items():
        close = expected[name].reshape(found.shape)
        np.testing.assert_allclose(found, close, rtol=1e-3, atol=1e-5 * largest, err_msg=name)


def test_every_kind_of_layer_is_drawn():
    seen = {type(layer) for depth in DEPTHS for seed in SEEDS for layer in draw(depth, seed).model.layers}
    wanted = {
        nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.BatchNorm1d,
        nn.BatchNorm2d, nn.GroupNorm, nn.InstanceNorm, nn.LayerNorm, nn.RMSNorm, nn.MultiHeadAttention,
        nn.TransformerBlock, nn.GRU, nn.LSTM, nn.Embedding, nn.PositionalEmbedding, nn.MeanPool, nn.Flatten,
        nn.Dropout, nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.Softmax,
    }  # fmt: skip
    assert wanted <= seen, wanted - seen
    convolutions = [
        layer
        for depth in DEPTHS
        for seed in SEEDS
        for layer in draw(depth, seed).model.layers
        if isinstance(layer, nn.Conv2d)
    ]
    assert {(c.groups > 1, c.dilation != 1, c.stride != 1) for c in convolutions} >= {
        (True, False, False),
        (False, True, False),
        (False, False, True),
    }
