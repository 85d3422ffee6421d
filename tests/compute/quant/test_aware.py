"""Quantisation-aware training: better than quantising afterwards, and deployed as it was trained."""

from functools import cache
from typing import Any, cast

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest

from coterie.compute import TensorSpec, nn, optim
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.nn import mode as modes
from coterie.compute.nn.calling import forward
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.quant import QuantSettings, deploy, float_model, qat, quantise
from coterie.compute.quant.aware import learned_ranges
from coterie.compute.quant.reporting import operators_run
from coterie.compute.step import amp
from coterie.compute.training import Trainer
from coterie.errors import InputError
from tests.compute.quant.graphs import CNN, exported, stripes, trained_cnn

TRAIN, TEST = stripes(1600, 0), stripes(600, 2)


@cache
def trained(settings: QuantSettings) -> tuple[nn.Module, dict[str, NDArray]]:
    """The CNN after a little training that knows of its levels, from the weights that float training found."""
    model = qat(CNN, settings)
    trainer = Trainer(model, softmax_cross_entropy, optim.adam(0.002), batch_size=32, initial=trained_cnn())
    trainer.fit(TRAIN, epochs=3, steps=150 if settings.weight_bits < 8 else 10)
    return model, trainer.params


def right(model: bytes) -> float:
    session: Any = cast(Any, onnxruntime).InferenceSession(model, providers=["CPUExecutionProvider"])
    (put,) = session.get_inputs()
    return float((session.run(None, {put.name: TEST["x"]})[0].argmax(1) == TEST["y"]).mean())


@pytest.mark.capability("G10")
@pytest.mark.parametrize("bits", [4, 3])
def test_training_that_knows_of_few_bits_is_better_than_quantising_afterwards(bits: int) -> None:
    settings = QuantSettings(weight_bits=bits, activation_bits=bits)
    plain = exported(CNN, trained_cnn(), (600, 1, 8, 8))
    afterwards = right(quantise(plain, [{"x": TRAIN["x"][:600]}], settings))
    aware = right(deploy(*trained(settings), TensorSpec((600, 1, 8, 8))))
    assert aware >= afterwards
    if bits == 3:
        assert aware > afterwards + 0.05 and aware > 0.85, "where it matters, it is much better"


SETTINGS = {
    "8 bits": QuantSettings(),
    "4 bits": QuantSettings(weight_bits=4, activation_bits=4),
    "asymmetric": QuantSettings(weights="asymmetric"),
    "one scale": QuantSettings(per_channel=False, weights="asymmetric"),
    "symmetric": QuantSettings(activations="symmetric"),
    "weights alone": QuantSettings(activations=None),
}


@pytest.mark.capability("G10")
@pytest.mark.parametrize("case", SETTINGS)
def test_the_file_computes_what_the_model_computed_in_training(case: str) -> None:
    settings = SETTINGS[case]
    model, params = trained(settings)
    file = deploy(model, params, TensorSpec((600, 1, 8, 8)))
    expected = model({name: Array(value) for name, value in params.items()}, Array(TEST["x"])).numpy()
    runtime = cast(Any, onnxruntime)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    apart = runtime.InferenceSession(file, options).run(None, {"input": TEST["x"]})[0]
    joined = runtime.InferenceSession(file).run(None, {"input": TEST["x"]})[0]
    scale = np.abs(expected).max()
    # A number that lies at the middle of two levels may fall to either side where sums round differently.
    for found in (apart, joined):
        assert (np.abs(found - expected) > 0.005 * scale).mean() < 0.01, case
        assert np.abs(found - expected).max() < 0.15 * scale
    integers = operators_run(file)
    whole = settings.activations is not None and settings.activation_bits == 8
    assert (integers["QLinearConv"], integers["QGemm"]) == ((2, 2) if whole else (0, 0))


def test_weights_keep_their_names_and_the_float_model_comes_back() -> None:
    model = qat(CNN)
    assert set(CNN.specs()) < set(model.specs())
    assert {name for name, spec in model.specs().items() if spec.role == "buffer"} == {
        f"{layer}.input_{what}" for layer in (0, 3, 6, 8) for what in ("low", "high", "seen")
    }
    assert float_model(model) == CNN and set(qat(CNN, QuantSettings(activations=None)).specs()) == set(CNN.specs())
    for name, value in model.init(3).items():
        if name in CNN.specs():
            np.testing.assert_array_equal(value, CNN.init(3)[name])


def test_running_ranges_are_the_corrected_mean_of_extremes_and_rows_without_weight_say_nothing() -> None:
    model = qat(nn.Sequential(nn.Linear(3, 2)))
    params = {name: Array(value) for name, value in model.init(0).items()}
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=(4, 3)).astype(np.float32) * (i + 1) for i in range(5)]
    low = high = seen = 0.0
    for x in batches:
        weight = np.array([1, 0, 2, 1], np.float32)
        _, after = forward(model, params, Array(x), modes.train(weight=Array(weight)))
        told = x[weight > 0]
        low, high, seen = (
            mine + 0.1 * (new - mine)
            for mine, new in ((low, min(told.min(), 0)), (high, max(told.max(), 0)), (seen, 1.0))
        )
        params |= after
    values = {name: value.numpy() for name, value in params.items()}
    np.testing.assert_allclose(learned_ranges(model, values)["0.weight"], (low / seen, high / seen), rtol=1e-5)
    _, idle = forward(model, params, Array(batches[0]), modes.train(weight=Array(np.zeros(4, np.float32))))
    for name, value in idle.items():
        np.testing.assert_array_equal(value.numpy(), params[name].numpy())
    _, still = forward(model, params, Array(batches[0]), modes.EVAL)
    assert all((value.numpy() == params[name].numpy()).all() for name, value in still.items())


def test_the_same_training_gives_the_same_bits() -> None:
    def run() -> dict[str, NDArray]:
        trainer = Trainer(qat(nn.zoo.mlp((4, 5, 3))), softmax_cross_entropy, optim.sgd(0.05), batch_size=8)
        rng = np.random.default_rng(0)
        trainer.fit({"x": rng.normal(size=(40, 4)).astype(np.float32), "y": np.arange(40, dtype=np.int32) % 3})
        return trainer.params

    for mine, theirs in zip(run().values(), run().values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("options", [{"precision": amp("O1")}, {"sink_size": 4}])
def test_levels_are_made_of_float32_in_every_way_of_training(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(64, 4)).astype(np.float32), "y": np.arange(64, dtype=np.int32) % 3}
    model = qat(nn.zoo.mlp((4, 5, 3)))
    plain, other = (
        Trainer(model, softmax_cross_entropy, optim.sgd(0.05), batch_size=8, **each) for each in ({}, options)
    )
    np.testing.assert_allclose(plain.fit(data).losses, other.fit(data).losses, atol=0.02)
    assert all(value.dtype == np.float32 for value in other.params.values())


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match=r"no nn.Linear or nn.Conv2d in Sequential"):
        qat(nn.Sequential(nn.ReLU()))
    with pytest.raises(InputError, match="no layer of quantisation-aware training"):
        deploy(CNN, trained_cnn(), TensorSpec((1, 1, 8, 8)))
    model = qat(CNN)
    with pytest.raises(InputError, match="'0.weight' has seen no batch"):
        deploy(model, model.init(0), TensorSpec((1, 1, 8, 8)))
    with pytest.raises(InputError, match="lack '0.input_seen'|lack '0.input_low'"):
        deploy(model, trained_cnn(), TensorSpec((1, 1, 8, 8)))
