"""Whole training steps as recipes: forward, backward and update of small networks, in one graph each.

A provider may have every operator and still fail on a graph that has them all, or make one wrong node of what lies side
by side. Each step returns all new values in one vector. Sizes are small: this is about what is computed, not how fast.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.clipping.transform import clipped_grad
from coterie.compute.passes.tune import before_gradients
from coterie.compute.runtime.recipes import Recipe
from coterie.compute.trace import TensorSpec

Weights: TypeAlias = Mapping[str, Array]
Network: TypeAlias = Callable[[Weights, Array], Array]
"""(weights, examples [B, ...]) → logits [B, CLASSES]."""
Update: TypeAlias = Callable[[Weights, Weights, Array], dict[str, Array]]
"""(weights, gradients, rate [1]) → new values by name."""

B, CLASSES = 4, 3
_RATE, _IDS = TensorSpec((1,)), TensorSpec((B,), "int32")


def _losses(z: Array, y: Array) -> Array:
    return ops.logsumexp(z) - xp.sum(z * ops.one_hot(y, CLASSES), axis=-1)


def _sgd(weights: Weights, gradients: Weights, rate: Array) -> dict[str, Array]:
    return {name: weights[name] - rate * gradients[name] for name in gradients}


def _flat(values: Mapping[str, Array]) -> Array:
    return xp.concat([xp.reshape(value, (value.size,)) for value in values.values()])


def _step(
    name: str, network: Network, x: TensorSpec, shapes: Mapping[str, tuple[int, ...]], update: Update = _sgd
) -> Recipe:
    """A step on the mean loss of a batch."""

    def step(*given: Array) -> Array:
        batch, ids, rate, *arrays = given
        weights = dict(zip(shapes, arrays, strict=True))

        def loss(w: Weights) -> Array:
            return xp.mean(_losses(network(w, batch), ids))

        value, gradients = value_and_grad(loss, before=before_gradients("portable"))(weights)
        return _flat({**update(weights, gradients, rate), "loss": value})

    return _recipe(name, step, x, shapes)


def _recipe(name: str, step: Callable[..., Array], x: TensorSpec, shapes: Mapping[str, tuple[int, ...]]) -> Recipe:
    inputs = (x, _IDS, _RATE, *map(TensorSpec, shapes.values()))
    return Recipe(name, step, inputs, low=-1.0, high=1.0, ids=CLASSES, differentiable=False, optimised=True)


def _dense(w: Weights, x: Array) -> Array:
    return ops.relu(x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]


def _dense_losses(w: Weights, x: Array, y: Array) -> Array:
    return _losses(_dense(w, x), y)


def _images(w: Weights, x: Array) -> Array:
    image = ops.max_pool2d(ops.relu(ops.conv2d(x, w["k1"], w["c1"], padding=1)), 2)
    image = ops.relu(ops.conv2d(image, w["k2"], groups=2, stride=2, padding=1))
    return xp.reshape(image, (B, 16)) @ w["w"] + w["b"]


def _attention(w: Weights, x: Array) -> Array:
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    normal = centred / xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True) + 1e-3) * w["scale"]
    query, key, value = normal @ w["q"], normal @ w["k"], normal @ w["v"]
    mixed = x + ops.softmax(query @ xp.matrix_transpose(key) * 0.4) @ value
    return xp.mean(ops.gelu(mixed), axis=1) @ w["w"]


def _gated(w: Weights, x: Array) -> Array:
    h = xp.zeros((B, 5))
    for time in range(x.shape[1]):
        now = x[:, time]
        update = ops.sigmoid(now @ w["xz"] + h @ w["hz"])
        h = (1.0 - update) * h + update * xp.tanh(now @ w["xh"] + h @ w["hh"])
    return h @ w["w"]


def _adam(weights: Weights, gradients: Weights, rate: Array) -> dict[str, Array]:
    """Adam's second step, from moments that are the weights themselves."""
    moved: dict[str, Array] = {}
    for name, g in gradients.items():
        first, second = 0.9 * weights[name] + 0.1 * g, 0.99 * weights[name] * weights[name] + 0.01 * g * g
        moved |= {f"{name}/first": first, f"{name}/second": second}
        moved[name] = weights[name] - rate * (first / 0.19) / (xp.sqrt(second / 0.0199) + 1e-3)
    return moved


def _clipped(*given: Array) -> Array:
    """A step on the sum of the gradients of single examples, each clipped to 1."""
    batch, ids, rate, *arrays = given
    weights = dict(zip(_DENSE, arrays, strict=True))
    found = clipped_grad(_dense_losses, 1.0)(weights, batch, ids)
    return _flat(_sgd(weights, {name: value * (1.0 / B) for name, value in found.gradient.items()}, rate))


_DENSE = {"w1": (6, 8), "b1": (8,), "w2": (8, CLASSES), "b2": (CLASSES,)}
_IMAGES = {"k1": (4, 1, 3, 3), "c1": (4,), "k2": (4, 2, 3, 3), "w": (16, CLASSES), "b": (CLASSES,)}
_HEADS = {"scale": (6,), "q": (6, 6), "k": (6, 6), "v": (6, 6), "w": (6, CLASSES)}
_GATES = {"xz": (4, 5), "hz": (5, 5), "xh": (4, 5), "hh": (5, 5), "w": (5, CLASSES)}

STEPS: tuple[Recipe, ...] = (
    _step("step of a dense network", _dense, TensorSpec((B, 6)), _DENSE),
    _step("step of a dense network by Adam", _dense, TensorSpec((B, 6)), _DENSE, _adam),
    _recipe("step of clipped examples", _clipped, TensorSpec((B, 6)), _DENSE),
    _step("step of a convolution network", _images, TensorSpec((B, 1, 8, 8)), _IMAGES),
    _step("step of attention", _attention, TensorSpec((B, 5, 6)), _HEADS),
    _step("step of a gated cell", _gated, TensorSpec((B, 3, 4)), _GATES),
)
