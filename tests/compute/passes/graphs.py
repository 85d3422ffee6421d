"""Graphs that infer, for the tests of the passes for inference, and what is asked of them."""

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from coterie.compute import nn, ops
from coterie.compute import numpy as cnp
from coterie.compute.array import Array, as_array
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, NDArray
from coterie.compute.nn.zoo import lenet, mlp
from coterie.compute.passes.inference import bind_weights
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named


def numbers(*shape: int, seed: int = 0, dtype: str = "float64") -> NDArray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def of(fn: Callable[[Array], Array], *shape: int, dtype: str = "float64") -> Graph:
    """The graph of a function of one array, x → y."""
    return trace_named(lambda given: {"y": fn(given["x"])}, {"x": TensorSpec(shape, dtype)})


def weights_of(module: nn.Module, dtype: str = "float64") -> dict[str, NDArray]:
    """Weights in which no scale is 1, no shift 0 and no variance negative."""
    made = {name: np.asarray(value) for name, value in module.init(0).items()}
    rng = np.random.default_rng(1)
    return {
        name: (np.abs(value + rng.uniform(0.1, 1.5, value.shape)) if value.ndim == 1 else value).astype(dtype)
        for name, value in made.items()
    }


def held(weights: Mapping[str, NDArray]) -> dict[str, Array]:
    return {name: as_array(value) for name, value in weights.items()}


def model(module: nn.Module, *shape: int) -> Graph:
    """A model in evaluation mode, its weights put in afterwards."""
    weights = weights_of(module)
    specs = {name: TensorSpec(value.shape, "float64") for name, value in weights.items()}

    def answer(given: GraphInputs) -> dict[str, Array]:
        return {"y": module({name: given[name] for name in weights}, given["x"])}

    return bind_weights(trace_named(answer, specs | {"x": TensorSpec(shape, "float64")}), weights)


def answers(graph: Graph, seed: int = 7) -> NDArray:
    x = graph.inputs["x"].type
    return interpret(graph, {"x": numbers(*x.shape, seed=seed).astype(x.dtype)})["y"]


def kinds(graph: Graph) -> Counter[str]:
    return Counter(node.primitive for node in graph.nodes)


def parameters(graph: Graph) -> int:
    return sum(node.output.type.size for node in graph.nodes if node.primitive == "constant")


def residual(x: Array) -> Array:
    """A convolution that is read twice, so that nothing may be folded into it."""
    made = ops.conv2d(x, numbers(4, 4, 3, 3), padding=1)
    return made * numbers(4, 1, 1) + ops.relu(made)


HWIO = [numbers(4, 3, 3, 3, seed=1), numbers(4, 4, 3, 3, seed=2)]


def channels_last(x: Array) -> Array:
    """Images [B, H, W, C] through layers that each turn them for the convolution and back, as TensorFlow writes."""
    for weight in HWIO:
        image = ops.conv2d(cnp.permute_dims(x, (0, 3, 1, 2)), weight, padding=1)
        x = ops.relu(cnp.permute_dims(image, (0, 2, 3, 1)) * numbers(4, seed=3) + numbers(4, seed=4))
        x = cnp.pad(x, ((0, 0), (0, 1), (1, 0), (0, 0)))
    return cnp.reshape(x, (x.shape[0], -1)) @ numbers(8 * 8 * 4, 2, seed=5)


BATCH_NORM = nn.Sequential(
    nn.Conv2d(3, 4, 3, padding=1, bias=False),
    nn.BatchNorm2d(4),
    nn.ReLU(),
    nn.BatchNorm2d(4),
    nn.Conv2d(4, 6, 3, groups=2),
    nn.BatchNorm2d(6),
    nn.ReLU(),
    nn.AvgPool2d(2),
    nn.Flatten(),
    nn.Linear(24, 8),
    nn.BatchNorm1d(8),
    nn.ReLU(),
    nn.Linear(8, 5),
)
GRAPHS: Mapping[str, Callable[[], Graph]] = {
    "batch norm": lambda: model(BATCH_NORM, 2, 3, 6, 6),
    "one row": lambda: model(mlp((5, 7, 3)), 1, 5),
    "one number": lambda: model(mlp((1, 1)), 1, 1),
    "lenet": lambda: model(lenet(), 2, 1, 28, 28),
    "transposed convolution": lambda: model(
        nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), nn.BatchNorm2d(6)), 2, 4, 5, 5
    ),
    "read twice": lambda: of(residual, 2, 4, 5, 5),
    "group norm": lambda: model(nn.Sequential(nn.Conv2d(2, 4, 1), nn.GroupNorm(2, 4), nn.ReLU()), 2, 2, 4, 4),
    "channels last": lambda: of(channels_last, 2, 6, 6, 3),
}
