"""Whole trainings and a whole convolution network against references written out in NumPy, gradients included."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from coterie.compute import nn, optim
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.ir import NDArray
from coterie.compute.nn.losses import binary_cross_entropy_with_logits, softmax_cross_entropy
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named

Named = dict[str, NDArray]
STEPS = 100


# A linear model under two losses: gradients in closed form.


def cross_entropy_gradient(z: NDArray, y: NDArray) -> tuple[float, NDArray]:
    e = np.exp(z - z.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    chosen = np.eye(z.shape[1])[y]
    return float(-np.log((p * chosen).sum(1)).mean()), (p - chosen) / len(z)


def binary_gradient(z: NDArray, y: NDArray) -> tuple[float, NDArray]:
    p = 1 / (1 + np.exp(-z))
    target = y[:, None]
    loss = -(target * np.log(p) + (1 - target) * np.log(1 - p))
    return float(loss.mean()), (p - target) / len(z)


def sgd_rule(lr: float) -> Callable[[], Callable[[NDArray, NDArray], NDArray]]:
    return lambda: lambda p, g: p - lr * g


def adam_rule(lr: float) -> Callable[[], Callable[[NDArray, NDArray], NDArray]]:
    """Kingma and Ba 2015, algorithm 1."""

    def start() -> Callable[[NDArray, NDArray], NDArray]:
        m: Any = 0.0
        v: Any = 0.0
        t = 0

        def step(p: NDArray, g: NDArray) -> NDArray:
            nonlocal m, v, t
            t += 1
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            return p - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)

        return step

    return start


RULES = {"sgd": (optim.sgd(0.3), sgd_rule(0.3)), "adam": (optim.adam(0.02), adam_rule(0.02))}
LOSSES: dict[str, tuple[Callable[[Array, Array], Array], Callable[..., tuple[float, NDArray]], int]] = {
    "CrossEntropy": (softmax_cross_entropy, cross_entropy_gradient, 3),
    "BCEWithLogits": (binary_cross_entropy_with_logits, binary_gradient, 1),
}


@pytest.mark.capability("B3")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rule", RULES)
def test_a_hundred_steps_follow_the_closed_form(loss: str, rule: str):
    """The step as a graph in ONNX Runtime, float32, against the formulas of loss, gradient and update in float64."""
    function, gradient_of, outputs = LOSSES[loss]
    optimizer, reference = RULES[rule]
    model = nn.Linear(5, outputs)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS, 8, 5)).astype(np.float32)
    hidden = rng.normal(size=(5, max(outputs, 2)))
    y = (x @ hidden).argmax(2).astype(np.int32)
    first = model.init(1)
    state = {name: array.numpy() for name, array in optimizer.init({n: Array(a) for n, a in first.items()}).items()}

    def step(inputs: GraphInputs) -> dict[str, Array]:
        def group(role: str) -> dict[str, Array]:
            return {name.removeprefix(role): array for name, array in inputs.items() if name.startswith(role)}

        def objective(params: dict[str, Array]) -> Array:
            return xp.mean(function(model(params, inputs["x"]), inputs["y"]))

        value, gradients = value_and_grad(objective)(group("p/"))
        moved, after = optimizer.update(gradients, group("s/"), group("p/"), group("h/"), inputs["active"])
        return (
            {"loss": value}
            | {f"p/{name}": array for name, array in moved.items()}
            | {f"s/{name}": array for name, array in after.items()}
        )

    feeds: Named = {f"p/{name}": array for name, array in first.items()}
    feeds |= {f"s/{name}": array for name, array in state.items()}
    feeds |= {f"h/{name}": np.array([value], np.float32) for name, value in optimizer.hyper.items()}
    feeds |= {"active": np.ones(1, np.float32), "x": x[0], "y": y[0]}
    graph = trace_named(step, {name: TensorSpec(array.shape, array.dtype.name) for name, array in feeds.items()})
    # An input and an output may not share a name in a file.
    outputs_of = {f"next/{name}": value for name, value in graph.outputs.items()}
    executable = Executable(to_onnx(optimise(type(graph)(graph.inputs, graph.nodes, outputs_of)), name="step"))
    wanted = {name: array.astype(np.float64) for name, array in first.items()}
    rules = {name: reference() for name in wanted}
    losses: list[float] = []
    for index in range(STEPS):
        found = executable.run(feeds | {"x": x[index], "y": y[index]})
        feeds |= {name.removeprefix("next/"): array for name, array in found.items() if name != "next/loss"}
        losses.append(float(found["next/loss"][0]))
        value, slope = gradient_of(x[index] @ wanted["weight"].T + wanted["bias"], y[index])
        gradients = {"weight": slope.T @ x[index], "bias": slope.sum(0)}
        wanted = {name: rules[name](wanted[name], gradients[name]) for name in wanted}
        assert losses[-1] == pytest.approx(value, rel=1e-3, abs=1e-5)
        for name, array in wanted.items():
            np.testing.assert_allclose(feeds[f"p/{name}"], array, rtol=1e-3, atol=2e-4, err_msg=f"{name} at {index}")
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:10])


# A convolution network with 768 numbers before its linear layers, forward and backward by loops.


def windows(x: NDArray, size: int, kernel: int, stride: int) -> list[tuple[slice, slice, int, int]]:
    return [
        (slice(i * stride, i * stride + kernel), slice(j * stride, j * stride + kernel), i, j)
        for i in range(size)
        for j in range(size)
    ]


@dataclass
class Conv:
    """Cross-correlation with a padding of zeros."""

    name: str
    padding: int

    def forward(self, p: Named, x: NDArray) -> NDArray:
        pad = self.padding
        self.x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        w = p[f"{self.name}.weight"]
        size = self.x.shape[2] - w.shape[2] + 1
        y = np.zeros((len(x), len(w), size, size))
        for rows, columns, i, j in windows(self.x, size, w.shape[2], 1):
            y[:, :, i, j] = np.tensordot(self.x[:, :, rows, columns], w, axes=([1, 2, 3], [1, 2, 3]))
        return y + p[f"{self.name}.bias"][:, None, None]

    def backward(self, p: Named, g: NDArray) -> tuple[NDArray, Named]:
        w = p[f"{self.name}.weight"]
        dw, dx = np.zeros_like(w), np.zeros_like(self.x)
        for rows, columns, i, j in windows(self.x, g.shape[2], w.shape[2], 1):
            dw += np.tensordot(g[:, :, i, j], self.x[:, :, rows, columns], axes=(0, 0))
            dx[:, :, rows, columns] += np.tensordot(g[:, :, i, j], w, axes=(1, 0))
        inner = slice(self.padding, dx.shape[2] - self.padding)
        return dx[:, :, inner, inner], {f"{self.name}.weight": dw, f"{self.name}.bias": g.sum((0, 2, 3))}


@dataclass
class Pool:
    """Windows of 3 in steps of 2 with a padding of one: of -inf for the largest, of zeros that count for the mean."""

    largest: bool

    def forward(self, p: Named, x: NDArray) -> NDArray:
        self.x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf if self.largest else 0.0)
        size = (x.shape[2] - 1) // 2 + 1
        y = np.zeros((*x.shape[:2], size, size))
        for rows, columns, i, j in windows(self.x, size, 3, 2):
            part = self.x[:, :, rows, columns]
            y[:, :, i, j] = part.max((2, 3)) if self.largest else part.mean((2, 3))
        self.y = y
        return y

    def backward(self, p: Named, g: NDArray) -> tuple[NDArray, Named]:
        dx = np.zeros_like(self.x)
        for rows, columns, i, j in windows(self.x, g.shape[2], 3, 2):
            part = self.x[:, :, rows, columns]
            share = part == self.y[:, :, i, j][:, :, None, None] if self.largest else np.full(part.shape, 1 / 9)
            dx[:, :, rows, columns] += share * g[:, :, i, j][:, :, None, None]
        return dx[:, :, 1:-1, 1:-1], {}


@dataclass
class Relu:
    def forward(self, p: Named, x: NDArray) -> NDArray:
        self.on = x > 0
        return x * self.on

    def backward(self, p: Named, g: NDArray) -> tuple[NDArray, Named]:
        return g * self.on, {}


@dataclass
class Flat:
    def forward(self, p: Named, x: NDArray) -> NDArray:
        self.shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, p: Named, g: NDArray) -> tuple[NDArray, Named]:
        return g.reshape(self.shape), {}


@dataclass
class Dense:
    name: str

    def forward(self, p: Named, x: NDArray) -> NDArray:
        self.x = x
        return x @ p[f"{self.name}.weight"].T + p[f"{self.name}.bias"]

    def backward(self, p: Named, g: NDArray) -> tuple[NDArray, Named]:
        return g @ p[f"{self.name}.weight"], {f"{self.name}.weight": g.T @ self.x, f"{self.name}.bias": g.sum(0)}


CNN = nn.Sequential(
    nn.Conv2d(3, 6, 5, padding=2),
    nn.ReLU(),
    nn.MaxPool2d(3, stride=2, padding=1),
    nn.Conv2d(6, 12, 3, padding=1),
    nn.AvgPool2d(3, stride=2, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(768, 32),
    nn.ReLU(),
    nn.Linear(32, 10),
)
REFERENCE = [
    Conv("0", 2),
    Relu(),
    Pool(True),
    Conv("3", 1),
    Pool(False),
    Relu(),
    Flat(),
    Dense("7"),
    Relu(),
    Dense("9"),
]


@pytest.mark.capability("B2")
def test_a_convolution_network_is_its_reference():
    """Images of 32 by 32 in three colours, 12 x 8 x 8 = 768 numbers before the linear layers: logits, loss and the
    gradient of every parameter, in float64.
    """
    rng = np.random.default_rng(0)
    params = {name: value.astype(np.float64) for name, value in CNN.init(0).items()}
    x, y = rng.normal(size=(2, 3, 32, 32)), np.array([3, 7], np.int32)
    layers: Any = REFERENCE
    h = x
    for layer in layers:
        h = layer.forward(params, h)
    logits = CNN({name: Array(value) for name, value in params.items()}, Array(x))
    np.testing.assert_allclose(logits.numpy(), h, rtol=1e-9, atol=1e-12)
    assert next(layer.x.shape for layer in layers if isinstance(layer, Dense)) == (2, 768)

    expected, g = cross_entropy_gradient(h, y)
    wanted: Named = {}
    for layer in reversed(layers):
        g, found = layer.backward(params, g)
        wanted |= found

    def loss(given: Mapping[str, Array]) -> Array:
        return xp.mean(softmax_cross_entropy(CNN(given, Array(x)), Array(y)))

    value, gradients = value_and_grad(loss)({name: Array(array) for name, array in params.items()})
    assert value.item() == pytest.approx(expected, rel=1e-12)
    assert wanted.keys() == gradients.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(gradients[name].numpy(), array, rtol=1e-8, atol=1e-12, err_msg=name)


@pytest.mark.capability("B2")
def test_padding_never_wins_a_maximum_and_counts_as_zero_in_a_mean():
    x = Array(-np.ones((1, 1, 2, 2)))
    np.testing.assert_array_equal(nn.MaxPool2d(2, stride=2, padding=1)({}, x).numpy(), -np.ones((1, 1, 2, 2)))
    np.testing.assert_array_equal(nn.AvgPool2d(2, stride=2, padding=1)({}, x).numpy(), np.full((1, 1, 2, 2), -0.25))
