"""Attention, the transformer block and the transformer: equal to the formulas in NumPy float64 and to PyTorch, and
causal where they say so.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from coterie.compute import jit, nn
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.errors import InputError, ShapeError
from tests.compute.models.torch_answers import answer

Named = Mapping[str, NDArray]
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])


def random_parameters(module: nn.Module, seed: int = 3) -> dict[str, NDArray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=spec.shape) / 2 for name, spec in module.specs().items()}


def arrays(params: Named) -> dict[str, Array]:
    return {name: Array(value) for name, value in params.items()}


def attention(p: Named, x: NDArray, heads: int, causal: bool, mask: NDArray | float = 0.0) -> NDArray:
    """One head and one query at a time."""
    size = x.shape[2]
    wide = size // heads
    q, k, v = np.split(x @ p["qkv.weight"].T + p["qkv.bias"], 3, axis=2)
    added = np.broadcast_to(mask, (len(x), heads, x.shape[1], x.shape[1]))
    mixed = np.zeros_like(x)
    for b in range(len(x)):
        for h in range(heads):
            part = slice(h * wide, (h + 1) * wide)
            for t in range(x.shape[1]):
                seen = t + 1 if causal else x.shape[1]
                scores = k[b, :seen, part] @ q[b, t, part] / np.sqrt(wide) + added[b, h, t, :seen]
                share = np.exp(scores - scores.max())
                mixed[b, t, part] = (share / share.sum()) @ v[b, :seen, part]
    return mixed @ p["out.weight"].T + p["out.bias"]


def layer_norm(p: Named, name: str, x: NDArray) -> NDArray:
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return normal * p[f"{name}.weight"] + p[f"{name}.bias"]


def block(p: Named, x: NDArray, heads: int, causal: bool) -> NDArray:
    inner = {name.removeprefix("attention."): value for name, value in p.items() if name.startswith("attention.")}
    x = x + attention(inner, layer_norm(p, "norm1", x), heads, causal)
    up = layer_norm(p, "norm2", x) @ p["up.weight"].T + p["up.bias"]
    gelu = up / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
    return x + gelu @ p["down.weight"].T + p["down.bias"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_nothing_is_seen_of_the_future_however_large_the_scores(size: float, dtype: str):
    layer, rng = nn.MultiHeadAttention(8, 2, causal=True), np.random.default_rng(0)
    params = {name: array.astype(dtype) for name, array in random_parameters(layer).items()}
    x = (size * rng.normal(size=(2, 5, 8))).astype(dtype)
    other = np.concatenate([x[:, :3], (size * rng.normal(size=(2, 2, 8))).astype(dtype)], axis=1)

    def call(params: Mapping[str, Array], x: Array) -> Array:
        return layer(params, x)

    for run in (call, jit(call)):
        before, after = (run(arrays(params), Array(given)).numpy()[:, :3] for given in (x, other))
        assert before.tobytes() == after.tobytes()


@CAUSAL
def test_attention_equals_the_formula(causal: bool, check_gradients: Callable[..., None]):
    layer = nn.MultiHeadAttention(6, 2, causal=causal)
    params, x = random_parameters(layer), np.random.default_rng(1).normal(size=(2, 4, 6))
    np.testing.assert_allclose(
        layer(arrays(params), Array(x)).numpy(), attention(params, x, 2, causal), rtol=1e-9, atol=1e-12
    )
    mask = np.where(np.random.default_rng(2).uniform(size=(2, 1, 4, 4)) < 0.3, -1e4, 0.0)
    mask[..., 0] = 0
    np.testing.assert_allclose(
        layer(arrays(params), Array(x), nn.EVAL, Array(mask)).numpy(),
        attention(params, x, 2, causal, mask),
        rtol=1e-9,
        atol=1e-12,
    )
    weigh = Array(np.random.default_rng(5).normal(size=x.shape))

    def scalar(given: dict[str, Array]) -> Array:
        return (layer(given, given["x"]) * weigh).sum()

    check_gradients(scalar, params | {"x": x})


@pytest.mark.parametrize("first", [1, 3, 4])
@CAUSAL
def test_the_first_positions_alone_are_those_of_all(
    causal: bool, first: int, check_gradients: Callable[..., None]
) -> None:
    layer = nn.MultiHeadAttention(6, 2, causal=causal)
    params, x = random_parameters(layer), np.random.default_rng(1).normal(size=(2, 4, 6))
    mask = np.where(np.random.default_rng(2).uniform(size=(2, 1, 1, 4)) < 0.3, -1e4, 0.0)
    mask[..., 0] = 0
    found = layer(arrays(params), Array(x), nn.EVAL, Array(mask), first)
    np.testing.assert_allclose(found.numpy(), attention(params, x, 2, causal, mask)[:, :first], rtol=1e-9, atol=1e-12)
    weigh = Array(np.random.default_rng(5).normal(size=found.shape))

    def scalar(given: dict[str, Array]) -> Array:
        return (layer(given, given["x"], nn.EVAL, Array(mask), first) * weigh).sum()

    check_gradients(scalar, params | {"x": x})


@CAUSAL
def test_the_block_equals_the_formula(causal: bool, check_gradients: Callable[..., None]):
    layer = nn.TransformerBlock(4, 2, hidden=6, causal=causal)
    params, x = random_parameters(layer), np.random.default_rng(1).normal(size=(2, 3, 4))
    np.testing.assert_allclose(
        layer(arrays(params), Array(x)).numpy(), block(params, x, 2, causal), rtol=1e-9, atol=1e-12
    )
    weigh = Array(np.random.default_rng(5).normal(size=x.shape))

    def scalar(given: dict[str, Array]) -> Array:
        return (layer(given, given["x"]) * weigh).sum()

    check_gradients(scalar, params | {"x": x})


def test_the_block_drops_the_results_of_both_parts():
    layer = nn.TransformerBlock(4, 2, dropout=0.5)
    params, x = arrays(random_parameters(layer)), Array(np.random.default_rng(1).normal(size=(2, 3, 4)))
    np.testing.assert_array_equal(layer(params, x, nn.train(lambda shape: Array(np.zeros(shape)))).numpy(), x.numpy())
    with pytest.raises(InputError, match="rate must be at least 0"):
        nn.TransformerBlock(4, 2, dropout=1.0)


def test_a_causal_model_does_not_see_the_future():
    model = nn.zoo.transformer(vocabulary=11, width=8, heads=2, layers=2, length=6)
    params = arrays(random_parameters(model))
    ids = np.random.default_rng(0).integers(0, 11, (3, 6)).astype(np.int32)
    logits = model(params, Array(ids)).numpy()
    for step in range(1, 6):
        changed = ids.copy()
        changed[:, step:] = (changed[:, step:] + 1) % 11
        after = model(params, Array(changed)).numpy()
        np.testing.assert_array_equal(after[:, :step], logits[:, :step])
        assert np.abs(after[:, step:] - logits[:, step:]).max() > 1e-3
    np.testing.assert_allclose(model(params, Array(ids[:, :4])).numpy(), logits[:, :4], rtol=1e-9)


def test_the_transformer_has_the_stated_size():
    model = nn.zoo.transformer()
    assert model.count() == 118_656
    assert model(arrays(model.init(0)), Array(np.zeros((2, 32), np.int32))).shape == (2, 32, 128)


def test_mistakes_are_named():
    with pytest.raises(InputError, match="MultiHeadAttention: 3 heads must divide size 8"):
        nn.TransformerBlock(8, 3)
    with pytest.raises(InputError, match="TransformerBlock: hidden must be a whole number"):
        nn.TransformerBlock(8, 2, hidden=0)
    with pytest.raises(ShapeError, match=r"takes \[B, T, 8\], got \[2, 8\]"):
        nn.MultiHeadAttention(8, 2)({}, Array(np.zeros((2, 8))))
    attention = nn.MultiHeadAttention(8, 2)
    with pytest.raises(InputError, match="the first 6 of 5 positions are not there"):
        attention(arrays(random_parameters(attention)), Array(np.zeros((2, 5, 8))), first=6)
    with pytest.raises(InputError, match="first must be a whole number"):
        attention(arrays(random_parameters(attention)), Array(np.zeros((2, 5, 8))), first=0)
    with pytest.raises(ShapeError, match="at most 4 positions T, got .1, 5, 8."):
        nn.PositionalEmbedding(4, 8)(arrays({"weight": np.zeros((4, 8))}), Array(np.zeros((1, 5, 8))))


X = np.random.default_rng(1).normal(size=(2, 5, 8))
ATTENTION = {
    "qkv.weight": "in_proj_weight",
    "qkv.bias": "in_proj_bias",
    "out.weight": "out_proj.weight",
    "out.bias": "out_proj.bias",
}
BLOCK = {f"attention.{ours}": f"self_attn.{theirs}" for ours, theirs in ATTENTION.items()} | {
    f"{ours}.{name}": f"{theirs}.{name}"
    for ours, theirs in {"norm1": "norm1", "norm2": "norm2", "up": "linear1", "down": "linear2"}.items()
    for name in ("weight", "bias")
}


@CAUSAL
def test_the_weights_of_torch_give_its_output(causal: bool):
    layers = {
        "attention": nn.MultiHeadAttention(8, 2, causal=causal),
        "block": nn.TransformerBlock(8, 2, hidden=12, causal=causal),
    }
    for name, layer in layers.items():
        y = layer(arrays(random_parameters(layer)), Array(X))
        np.testing.assert_allclose(y.numpy(), answer(f"{name}/{causal}"), rtol=1e-9, atol=1e-12)
