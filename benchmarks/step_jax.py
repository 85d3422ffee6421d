"""The training steps of benchmarks/train_step.py in JAX, in the forms that are fastest there: the whole step compiled,
state donated, weights as [inputs, outputs], images with channels last, the GRU a scan.
"""

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from step_data import HEADS, LENGTH, WIDTH, Workload, batches

Net = Callable[[Any, Any], Any]


def prepare(
    workload: Workload, weights: Mapping[str, Any], threads: int
) -> tuple[Callable[[], None], Callable[[], float]]:
    """A function that makes one step, and one that reads the last loss. weights: the first ones, by coterie's names.
    threads: as many as the process has cores, which the caller bounds.
    """
    params, net = _NETS[workload.kind]({name: np.array(value) for name, value in weights.items()})

    def loss(params: Any, x: Any, y: Any) -> Any:
        logits = jax.nn.log_softmax(net(params, x))
        return -jnp.mean(jnp.take_along_axis(logits, y[..., None], -1))

    update = {"sgd": _sgd, "adam": _adam}[workload.optimizer](workload.rate)
    zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
    state = (
        (params,)
        if workload.optimizer == "sgd"
        else (params, zeros, jax.tree_util.tree_map(jnp.copy, zeros), jnp.zeros(()))
    )

    def whole(state: Any, x: Any, y: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(state[0], x, y)
        return update(state, gradient), value

    compiled = jax.jit(whole, donate_argnums=0)
    feeds = cycle([(_image(x), y) for x, y in batches(workload)])
    box: dict[str, Any] = {"state": state, "loss": None}

    def step() -> None:
        box["state"], box["loss"] = compiled(box["state"], *next(feeds))
        jax.block_until_ready(box["state"])

    return step, lambda: float(box["loss"])


def _image(x: Any) -> Any:
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if x.ndim == 4 else x


def _sgd(rate: float) -> Callable[[Any, Any], Any]:
    return lambda state, gradient: (jax.tree_util.tree_map(lambda p, g: p - rate * g, state[0], gradient),)


def _adam(rate: float) -> Callable[[Any, Any], Any]:
    def update(state: Any, gradient: Any) -> Any:
        params, first, second, count = state
        count = count + 1
        first = jax.tree_util.tree_map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree_util.tree_map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
        a, b = 1 - 0.9**count, 1 - 0.999**count
        params = jax.tree_util.tree_map(
            lambda p, m, v: p - rate * (m / a) / (jnp.sqrt(v / b) + 1e-8), params, first, second
        )
        return params, first, second, count

    return update


def _dense(weights: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"w": jnp.asarray(weights[f"{name}.weight"].T), "b": jnp.asarray(weights[f"{name}.bias"])}


def _apply(p: Any, h: Any) -> Any:
    return h @ p["w"] + p["b"]


def _layers(params: Any, h: Any) -> Any:
    for p in params[:-1]:
        h = jax.nn.relu(_apply(p, h))
    return _apply(params[-1], h)


def _mlp(weights: Mapping[str, Any]) -> tuple[Any, Net]:
    return [_dense(weights, name.removesuffix(".weight")) for name in weights if name.endswith(".weight")], _layers


def _images(padding: str) -> Callable[[Mapping[str, Any]], tuple[Any, Net]]:
    def make(weights: Mapping[str, Any]) -> tuple[Any, Net]:
        names = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
        convolutions = [
            {"w": jnp.asarray(weights[f"{n}.weight"].transpose(2, 3, 1, 0)), "b": jnp.asarray(weights[f"{n}.bias"])}
            for n in names[:2]
        ]
        dense = [_dense(weights, name) for name in names[2:]]
        channels = weights[f"{names[1]}.weight"].shape[0]
        inputs, outputs = dense[0]["w"].shape
        side = round((inputs / channels) ** 0.5)
        # The rows of the first dense weight follow the image, whose channels are last here.
        rows = np.asarray(dense[0]["w"]).reshape(channels, side, side, outputs).transpose(1, 2, 0, 3)
        dense[0]["w"] = jnp.asarray(rows.reshape(inputs, outputs))
        return {"convolutions": convolutions, "dense": dense}, net

    def convolved(p: Any, h: Any, padding: str) -> Any:
        h = lax.conv_general_dilated(h, p["w"], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")) + p["b"]
        return lax.reduce_window(jax.nn.relu(h), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def net(params: Any, h: Any) -> Any:
        h = convolved(params["convolutions"][0], h, "SAME")
        h = convolved(params["convolutions"][1], h, padding)
        return _layers(params["dense"], h.reshape(h.shape[0], -1))

    return make


def _norm(p: Any, h: Any) -> Any:
    mean = h.mean(-1, keepdims=True)
    variance = ((h - mean) ** 2).mean(-1, keepdims=True)
    return (h - mean) * lax.rsqrt(variance + 1e-5) * p["g"] + p["b"]


def _transformer(weights: Mapping[str, Any]) -> tuple[Any, Net]:
    def norm(name: str) -> dict[str, Any]:
        return {"g": jnp.asarray(weights[f"{name}.weight"]), "b": jnp.asarray(weights[f"{name}.bias"])}

    count = max(int(name.split(".")[0]) for name in weights) - 3
    params = {
        "embedding": jnp.asarray(weights["0.weight"]),
        "positions": jnp.asarray(weights["1.weight"]),
        "blocks": [
            {"norm1": norm(f"{i}.norm1"), "norm2": norm(f"{i}.norm2")}
            | {part: _dense(weights, f"{i}.{part}") for part in ("attention.qkv", "attention.out", "up", "down")}
            for i in range(2, 2 + count)
        ],
        "norm": norm(f"{2 + count}"),
        "out": _dense(weights, f"{3 + count}"),
    }
    mask = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), 0.0, -1e9)

    def net(params: Any, ids: Any) -> Any:
        h = params["embedding"][ids] + params["positions"]
        b = h.shape[0]
        for p in params["blocks"]:
            parts = _apply(p["attention.qkv"], _norm(p["norm1"], h)).reshape(b, LENGTH, 3, HEADS, WIDTH // HEADS)
            q, k, v = parts.transpose(2, 0, 3, 1, 4)
            mix = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) * (WIDTH // HEADS) ** -0.5 + mask)
            h = h + _apply(p["attention.out"], (mix @ v).transpose(0, 2, 1, 3).reshape(b, LENGTH, WIDTH))
            h = h + _apply(p["down"], jax.nn.gelu(_apply(p["up"], _norm(p["norm2"], h))))
        return _apply(params["out"], _norm(params["norm"], h))

    return params, net


def _gru(weights: Mapping[str, Any]) -> tuple[Any, Net]:
    params = {
        "embedding": jnp.asarray(weights["0.weight"]),
        "input": {"w": jnp.asarray(weights["1.weight_ih"].T), "b": jnp.asarray(weights["1.bias_ih"])},
        "own": {"w": jnp.asarray(weights["1.weight_hh"].T), "b": jnp.asarray(weights["1.bias_hh"])},
        "out": _dense(weights, "2"),
    }

    def net(params: Any, ids: Any) -> Any:
        given = _apply(params["input"], params["embedding"][ids]).swapaxes(0, 1)

        def cell(h: Any, u: Any) -> tuple[Any, Any]:
            own = _apply(params["own"], h)
            reset = jax.nn.sigmoid(u[:, :WIDTH] + own[:, :WIDTH])
            keep = jax.nn.sigmoid(u[:, WIDTH : 2 * WIDTH] + own[:, WIDTH : 2 * WIDTH])
            new = jnp.tanh(u[:, 2 * WIDTH :] + reset * own[:, 2 * WIDTH :])
            h = (1 - keep) * new + keep * h
            return h, h

        _, outputs = lax.scan(cell, jnp.zeros((ids.shape[0], WIDTH)), given)
        return _apply(params["out"], outputs.swapaxes(0, 1))

    return params, net


_NETS: Mapping[str, Callable[[Mapping[str, Any]], tuple[Any, Net]]] = {
    "mlp": _mlp,
    "lenet": _images("VALID"),
    "cnn": _images("SAME"),
    "transformer": _transformer,
    "gru": _gru,
}
