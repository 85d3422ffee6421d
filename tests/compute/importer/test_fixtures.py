"""Graphs of other exporters become functions: the runtime's outputs, true gradients, and training (A15, G1)."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest

from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.autodiff import grad, value_and_grad
from coterie.compute.interactive.jit import jit
from coterie.compute.ir import NDArray
from coterie.compute.nn import losses
from coterie.compute.onnx import ImportedModel, load
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.trace import TensorSpec, trace
from coterie.errors import GraphRefused
from tests.compute.importer.foreign_models import FIXTURES, MODELS, runtime

RNG = np.random.default_rng(2)
ORACLE = Path(__file__).parent / "gradients.npz"
# Exporters' graphs that are one operator's gradient each, on top of layers that others have too.
TRAINED = ["cnn_20", "transformer_17", "gru_17", "tensorflow", "sk_logistic_17", "sk_mlp_18"]


def results(run: Callable[..., Any], *given: Any) -> tuple[Array, ...]:
    """Of a model, or of a compiled one: as many arrays as there are outputs."""
    found = run(*given)
    return cast("tuple[Array, ...]", found if isinstance(found, tuple) else (found,))


def scored(name: str) -> ImportedModel:
    """The model up to what it is trained by: of a classifier, its scores."""
    model = load(MODELS[name].source)
    return model if MODELS[name].score is None else model.cut(str(MODELS[name].score))


@pytest.mark.capability("A15", "G1")
@pytest.mark.parametrize("name", MODELS)
def test_an_imported_graph_computes_what_the_runtime_does(name: str) -> None:
    given = MODELS[name]
    model = load(given.source)
    assert len(model.parameters) == given.weights
    for batch, run in ((1, model), (4, jit(model, fullgraph=True))):
        x = given.draw(RNG, batch)
        expected = runtime(given.source, x)
        for told, output in zip(results(run, model.parameters, x), model.outputs, strict=True):
            np.testing.assert_allclose(told.numpy(), expected[output], rtol=1e-5, atol=1e-5)


@pytest.mark.capability("A15", "G1")
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_finite_differences(name: str) -> None:
    model = scored(name).astype("float64")  # so that the differences are true
    params = {key: Array(value) for key, value in model.parameters.items()}
    x = MODELS[name].draw(RNG, 3)
    x = x.astype(np.float64) if x.dtype == np.float32 else x
    weight = cast("NDArray", RNG.normal(size=model(params, x).shape))

    def loss(params: dict[str, Array]) -> Array:
        return cnp.sum(model(params, x) * weight)

    told = grad(loss)(params)
    assert set(told) == set(params)
    for key, value in params.items():
        direction = RNG.normal(size=value.shape)
        step = 1e-6
        ends = [loss({**params, key: value + Array(sign * step * direction)}).item() for sign in (1, -1)]
        slope = float(np.sum(told[key].numpy() * direction))
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-7), key


def answers() -> dict[str, dict[str, NDArray]]:
    """What onnx-ad says, by file; see make_gradients.py."""
    found: dict[str, dict[str, NDArray]] = {}
    with np.load(ORACLE) as file:
        for key in file.files:
            name, _, rest = key.partition("/")
            found.setdefault(name, {})[rest] = file[key]
    return found


@pytest.mark.capability("G1")
@pytest.mark.parametrize(("name", "told"), answers().items())
def test_gradients_are_those_of_another_differentiator_of_onnx_files(name: str, told: dict[str, NDArray]) -> None:
    model = load(MODELS[name].source)

    def loss(params: dict[str, Array]) -> Array:
        return cnp.sum(results(model, params, told["x"])[-1] * told["seed"])

    params = model.parameters
    gradients = grad(loss)({key: Array(value) for key, value in params.items()})
    compared: set[str] = set()
    for key in (key for key in params if f"weight/{key}" in told):
        expected = told[f"weight/{key}"]
        # Exporters write equal tensors once: the gradient by that one is the sum of the gradients by all of them.
        merged = [other for other in params if np.array_equal(params[other], params[key])]
        found = np.sum([gradients[other].numpy() for other in merged], axis=0)
        scale = max(float(np.abs(expected).max()), 1e-3)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * scale, err_msg=key)
        compared.update(merged)
    assert compared == set(params)


@pytest.mark.capability("G1")
@pytest.mark.parametrize("name", TRAINED)
def test_an_imported_model_trains_and_is_exported_again(name: str) -> None:
    model = scored(name)
    x, labels = MODELS[name].draw(RNG, 8), np.arange(8, dtype=np.int32) % 3

    def loss(params: dict[str, Array]) -> Array:
        return cnp.mean(losses.softmax_cross_entropy(model(params, x), Array(labels)))

    @jit(fullgraph=True)
    def step(params: dict[str, Array]) -> Any:
        value, gradients = value_and_grad(loss)(params)
        return value, {key: value - 0.2 * gradients[key] for key, value in params.items()}

    params: Any = {key: Array(value) for key, value in model.parameters.items()}
    history: list[float] = []
    for _ in range(25):
        value, params = step(params)
        history.append(value.item())
    assert history[-1] < 0.85 * history[0]
    traced = trace(partial(model, params), TensorSpec(x.shape, x.dtype.name))
    exported = to_onnx(optimise(traced.graph), name="again")
    (again,) = runtime(exported, x).values()
    np.testing.assert_allclose(again, model(params, x).numpy(), rtol=1e-4, atol=1e-5)


def test_weights_beside_the_file_are_read_by_path_only(tmp_path: Path) -> None:
    proto = onnx.load(str(FIXTURES / "mlp_13.onnx"))  # pyright: ignore[reportUnknownMemberType]
    path = tmp_path / "model.onnx"
    save = cast(Any, onnx).save_model
    save(proto, str(path), save_as_external_data=True, location="weights", size_threshold=0)
    assert (tmp_path / "weights").stat().st_size > 0
    whole = load(FIXTURES / "mlp_13.onnx")
    for name, array in load(path).parameters.items():
        np.testing.assert_array_equal(array, whole.parameters[name])
    with pytest.raises(GraphRefused, match="weights lie in another file"):
        load(path.read_bytes())


def test_an_open_size_is_given_by_name_or_by_the_call() -> None:
    model = load(FIXTURES / "cnn_13.onnx")
    assert model.inputs[0].sizes == ("batch", 2, 8, 8) and model.outputs == ("y",)
    assert model.specs(batch=8) == (TensorSpec((8, 2, 8, 8)),)
    assert load((FIXTURES / "cnn_13.onnx").read_bytes()).parameters.keys() == model.parameters.keys()
