"""GRU and LSTM: equal to the formulas in NumPy float64 and to PyTorch, unrolled and scanned
alike, both as ONNX.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import grad, value_and_grad
from coterie.compute.batching import vmap
from coterie.compute.ir import NDArray
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.onnx.checker import check_graph
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.reference import evaluate
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.errors import InputError, ShapeError
from tests.compute.models.torch_answers import answer

Named = Mapping[str, NDArray]
UNROLL = pytest.mark.parametrize("unroll", [True, False], ids=["unrolled", "scan"])


def arrays(params: Named) -> dict[str, Array]:
    return {name: Array(value) for name, value in params.items()}


def random_parameters(module: nn.Module) -> dict[str, NDArray]:
    rng = np.random.default_rng(3)
    return {name: rng.normal(size=spec.shape) for name, spec in module.specs().items()}


def sigma(x: NDArray) -> NDArray:
    return 1 / (1 + np.exp(-x))


def gru(p: Named, x: NDArray, h: NDArray) -> tuple[NDArray, NDArray]:
    outputs: list[NDArray] = []
    for t in range(x.shape[1]):
        ir, iz, i_n = np.split(x[:, t] @ p["weight_ih"].T + p["bias_ih"], 3, axis=1)
        hr, hz, hn = np.split(h @ p["weight_hh"].T + p["bias_hh"], 3, axis=1)
        r, z = sigma(ir + hr), sigma(iz + hz)
        h = (1 - z) * np.tanh(i_n + r * hn) + z * h
        outputs.append(h)
    return np.stack(outputs, axis=1), h


def lstm(p: Named, x: NDArray, h: NDArray, c: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    outputs: list[NDArray] = []
    for t in range(x.shape[1]):
        i, f, g, o = np.split(
            x[:, t] @ p["weight_ih"].T + p["bias_ih"] + h @ p["weight_hh"].T + p["bias_hh"], 4, axis=1
        )
        c = sigma(f) * c + sigma(i) * np.tanh(g)
        h = sigma(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs, axis=1), h, c


X = np.random.default_rng(1).normal(size=(3, 4, 2))
H: NDArray = np.random.default_rng(2).normal(size=(3, 5))
C: NDArray = np.random.default_rng(4).normal(size=(3, 5))
ZERO = np.zeros((3, 5))


@UNROLL
def test_the_gru_equals_the_formula(unroll: bool):
    layer = nn.GRU(2, 5, unroll)
    params = random_parameters(layer)
    np.testing.assert_allclose(layer(arrays(params), Array(X)).numpy(), gru(params, X, ZERO)[0], rtol=1e-9)
    outputs, last = layer.run(arrays(params), Array(X), Array(H))
    for ours, expected in zip((outputs, last), gru(params, X, H), strict=True):
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-9)


@UNROLL
def test_the_lstm_equals_the_formula(unroll: bool):
    layer = nn.LSTM(2, 5, unroll)
    params = random_parameters(layer)
    np.testing.assert_allclose(layer(arrays(params), Array(X)).numpy(), lstm(params, X, ZERO, ZERO)[0], rtol=1e-9)
    outputs, (h, c) = layer.run(arrays(params), Array(X), (Array(H), Array(C)))
    for ours, expected in zip((outputs, h, c), lstm(params, X, H, C), strict=True):
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-9)


@UNROLL
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_gradients_equal_finite_differences(
    kind: type[nn.GRU] | type[nn.LSTM], unroll: bool, check_gradients: Callable[..., None]
):
    layer = kind(2, 3, unroll)
    weigh = Array(np.random.default_rng(5).normal(size=(3, 4, 3)))

    def scalar(given: dict[str, Array]) -> Array:
        return (layer(given, given["x"]) * weigh).sum()

    check_gradients(scalar, random_parameters(layer) | {"x": X})


def test_the_state_is_differentiated():
    layer = nn.GRU(2, 5)
    params = arrays(random_parameters(layer))

    def last(h: Array) -> Array:
        return layer.run(params, Array(X), h)[1].sum()

    gradient = grad(last)(Array(H)).numpy()
    step = 1e-6 * np.random.default_rng(0).normal(size=(3, 5))
    ahead, behind = last(Array(H + step)).item(), last(Array(H - step)).item()
    assert np.vdot(gradient, step) == pytest.approx((ahead - behind) / 2, rel=1e-5)


@UNROLL
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_rows_of_float64_meet_weights_of_float32(kind: type[nn.GRU] | type[nn.LSTM], unroll: bool):
    layer = kind(2, 5, unroll)
    params = {name: Array(value) for name, value in layer.init(0).items()}

    def total(params: dict[str, Array]) -> Array:
        return layer(params, Array(X)).sum()

    gradients = grad(total)(params)
    assert {value.dtype.name for value in gradients.values()} == {"float32"} and X.dtype.name == "float64"


@UNROLL
@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_the_weights_of_torch_give_its_output(kind: str, unroll: bool):
    layer = getattr(nn, kind)(2, 5, unroll)
    y = layer(arrays(random_parameters(layer)), Array(X))
    np.testing.assert_allclose(y.numpy(), answer(f"recurrent/{kind}"), rtol=1e-9, atol=1e-12)


@UNROLL
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_both_directions_equal_what_torch_says(kind: type[nn.GRU] | type[nn.LSTM], unroll: bool):
    """bidirectional.npz is from make_bidirectional.py: outputs, last states and gradients of PyTorch, float64."""
    layer = kind(2, 3, unroll, bidirectional=True)
    with np.load(Path(__file__).parent / "bidirectional.npz") as file:
        prefix = f"{kind.__name__}/"
        told = {name.removeprefix(prefix): file[name] for name in file.files if name.startswith(prefix)}
    weights = {name: told[f"weight/{name}"] for name in layer.specs()}
    assert {name: spec.shape for name, spec in layer.specs().items()} == {n: w.shape for n, w in weights.items()}
    states = [name.removeprefix("state/") for name in told if name.startswith("state/")]

    def run(given: dict[str, Array]) -> tuple[Array, tuple[Array, ...]]:
        if isinstance(layer, nn.GRU):
            y, h = layer.run(given, given["x"], given["0"])
            return y, (h,)
        return layer.run(given, given["x"], (given["0"], given["1"]))

    given = arrays(weights | {"x": told["x"]} | {name: told[f"state/{name}"] for name in states})
    y, last = run(given)
    np.testing.assert_allclose(y.numpy(), told["y"], rtol=1e-9)
    for name, array in zip(states, last, strict=True):
        np.testing.assert_allclose(array.numpy(), told[f"last/{name}"], rtol=1e-9)

    def total(given: dict[str, Array]) -> Array:
        return (run(given)[0] * Array(told["seed"])).sum()

    for name, value in grad(total)(given).items():
        np.testing.assert_allclose(value.numpy(), told[f"gradient/{name}"], rtol=1e-8, atol=1e-12, err_msg=name)


@UNROLL
@pytest.mark.parametrize("both", [False, True], ids=["forward", "bidirectional"])
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_loss_and_gradients_as_onnx(kind: type[nn.GRU] | type[nn.LSTM], both: bool, unroll: bool):
    """The unrolled form stays in the portable subset; the scan is a Loop, for CPU providers."""
    layer = kind(4, 6, unroll, bidirectional=both)
    model = nn.Sequential(nn.Embedding(7, 4), layer, nn.Linear(12 if both else 6, 7))
    first = model.init(0)
    ids = np.random.default_rng(0).integers(0, 7, (3, 6)).astype(np.int32)

    def step(inputs: GraphInputs) -> dict[str, Array]:
        def loss(params: dict[str, Array]) -> Array:
            return xp.mean(softmax_cross_entropy(model(params, inputs["x"], nn.train()), inputs["y"]))

        value, gradients = value_and_grad(loss)({name: inputs[f"p/{name}"] for name in first})
        return {"loss": value} | {f"gradient/{name}": gradient for name, gradient in gradients.items()}

    specs = {f"p/{name}": TensorSpec(array.shape) for name, array in first.items()}
    graph = optimise(trace_named(step, specs | {"x": TensorSpec((3, 5), "int32"), "y": TensorSpec((3, 5), "int32")}))
    data = to_onnx(graph, name="train", target="portable" if unroll else "cpu")
    if unroll:
        check_graph(data)
    feeds: dict[str, NDArray] = {f"p/{name}": array for name, array in first.items()}
    feeds |= {"x": ids[:, :-1].copy(), "y": ids[:, 1:].copy()}
    expected = evaluate(graph, feeds)
    for name, value in Executable(data).run(feeds).items():
        np.testing.assert_allclose(value, expected[name].reshape(value.shape), rtol=1e-4, atol=1e-6)


def test_the_scan_does_not_grow_with_the_steps():
    def nodes(unroll: bool, steps: int) -> int:
        layer = nn.GRU(2, 3, unroll)
        specs = {name: TensorSpec(spec.shape) for name, spec in layer.specs().items()}

        def step(inputs: GraphInputs) -> dict[str, Array]:
            params = {name: inputs[name] for name in layer.specs()}

            def total(given: dict[str, Array]) -> Array:
                return xp.sum(layer(given, inputs["x"]))

            return {f"d/{name}": gradient for name, gradient in grad(total)(params).items()}

        return len(optimise(trace_named(step, specs | {"x": TensorSpec((2, steps, 2))})).nodes)

    assert nodes(False, 4) == nodes(False, 40)
    assert nodes(True, 40) > 3 * nodes(True, 4)


def test_models_have_the_stated_size():
    for unroll in (True, False):
        model = nn.zoo.gru(unroll=unroll)
        assert model.count() == 41_472
        assert model(arrays(model.init(0)), Array(np.zeros((2, 5), np.int32))).shape == (2, 5, 128)


def test_mistakes_are_named():
    with pytest.raises(InputError, match="GRU: hidden must be a whole number"):
        nn.GRU(2, 0)
    layer = nn.LSTM(2, 5)
    params = arrays(random_parameters(layer))
    for unroll in (True, False):
        empty = nn.LSTM(2, 5, unroll)
        with pytest.raises(ShapeError, match=r"takes sequences of at least one step, got \[3, 0, 2\]"):
            empty({name: Array(value) for name, value in empty.init(0).items()}, Array(np.zeros((3, 0, 2), np.float32)))
    with pytest.raises(ShapeError, match=r"takes \[B, T, 2\], got \[3, 4, 3\]"):
        layer(params, Array(np.zeros((3, 4, 3))))
    with pytest.raises(ShapeError, match=r"takes a state \[3, 5\], got \[1, 5\]"):
        layer.run(params, Array(X), (Array(ZERO[:1]), Array(ZERO)))
    both = nn.LSTM(2, 5, bidirectional=True)
    params = arrays(random_parameters(both))
    with pytest.raises(ShapeError, match=r"takes a state \[2, 3, 5\], got \[3, 5\]"):
        both.run(params, Array(X), (Array(ZERO), Array(ZERO)))
    del params["bias_hh_reverse"]
    with pytest.raises(InputError, match="bias_hh_reverse"):
        both(params, Array(X))


@UNROLL
def test_examples_of_a_vmap_are_those_of_a_loop(unroll: bool):
    layer = nn.GRU(2, 5, unroll)
    params = arrays(random_parameters(layer))

    def one(x: Array) -> Array:
        def total(given: dict[str, Array]) -> Array:
            return xp.sum(layer(given, xp.reshape(x, (1, 4, 2))) ** 2)

        return grad(total)(params)["weight_hh"]

    together = vmap(one)(Array(X)).numpy()
    np.testing.assert_allclose(together, np.stack([one(Array(x)).numpy() for x in X]), rtol=1e-9, atol=1e-12)
