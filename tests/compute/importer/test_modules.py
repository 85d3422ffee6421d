"""Foreign models as layers: what is frozen stays, what is cut is gone, training is that of the same network here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from coterie.compute import nn, optim
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.clipping.transform import clipped_grad
from coterie.compute.ir import NDArray
from coterie.compute.onnx import ImportedModel, load
from coterie.compute.step.precision import amp
from coterie.compute.training.trainer import Trainer
from coterie.errors import InputError
from tests.compute.importer.foreign_models import MODELS

RNG = np.random.default_rng(6)
READINGS = MODELS["readings_17"].source


def arrays(held: dict[str, NDArray]) -> dict[str, Array]:
    return {name: Array(value) for name, value in held.items()}


def trained(module: Any, x: NDArray, **more: Any) -> tuple[dict[str, NDArray], dict[str, NDArray], float]:
    """The weights before and after some epochs, and the last loss over the first."""
    data = {"x": x, "y": np.arange(len(x), dtype=np.int32) % 3}
    trainer = Trainer(module, nn.losses.softmax_cross_entropy, optim.sgd(0.1), batch_size=8, **more)
    before = trainer.params
    epochs = trainer.fit(data, epochs=8).epochs
    return before, trainer.params, epochs[-1] / epochs[0]


def changed(before: dict[str, NDArray], after: dict[str, NDArray]) -> set[str]:
    return {name for name in before if not np.array_equal(before[name], after[name])}


def test_freezing_by_patterns_and_back() -> None:
    model = load(READINGS)
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert list(model.parameters) == names and not model.frozen
    assert str(model.freeze("0.*")) == "ImportedModel(x → y, 2 weights to train, 2 frozen)"
    part = model.freeze("0.*")
    assert list(part.parameters) == names[2:] and list(part.frozen) == names[:2]
    assert list(model.freeze("*").unfreeze("2.bias").parameters) == ["2.bias"]
    assert list(model.parameters) == names  # models are values
    x = MODELS["readings_17"].draw(RNG, 2)
    expected = model(model.parameters, x).numpy()
    np.testing.assert_array_equal(part(part.parameters, x).numpy(), expected)
    moved = {**model.parameters, "0.bias": model.parameters["0.bias"] + 1}
    assert not np.array_equal(part(moved, x).numpy(), expected)  # a frozen weight may still be given
    with pytest.raises(InputError, match=r"called 'features\.\*'") as caught:
        model.freeze("features.*")
    assert "0.weight, 0.bias" in str(caught.value.hint)


def test_cutting_at_a_tensor_drops_what_is_not_needed() -> None:
    model = load(MODELS["cnn_20"].source).freeze("0.weight", "6.running_mean")
    cut = model.cut(model.tensors[3])
    assert set(cut.parameters) == {"0.bias", "2.weight", "2.bias"} and set(cut.frozen) == {"0.weight"}
    assert set(cut.buffers) == {"2.running_mean", "2.running_var"}
    both = load(READINGS).cut("y", "/1/Relu_output_0")
    x = MODELS["readings_17"].draw(RNG, 2)
    y, hidden = both(both.parameters, x)
    assert (y.shape, hidden.shape) == ((2, 3), (2, 16))
    with pytest.raises(InputError, match="no tensor 'nowhere'"):
        model.cut("nowhere")
    with pytest.raises(InputError, match="no part without outputs"):
        model.cut()


def test_only_what_the_outputs_need_is_read() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("NonZero", ["x"], ["z"])]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])]
    results = [helper.make_empty_tensor_value_info(name) for name in "yz"]
    graph = helper.make_graph(nodes, "both", given, results)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    assert load(data, outputs=["y"])({}, np.asarray([-1, 1], np.float32)).numpy().tolist() == [0, 1]
    with pytest.raises(InputError, match="'w' is not computed") as caught:
        load(data, outputs=["w"])
    assert "y, z" in str(caught.value.hint)
    with pytest.raises(InputError, match="'label' is text"):
        load(MODELS["sk_text_13"].source, outputs=["label"])


def test_a_new_head_trains_on_a_frozen_trunk() -> None:
    trunk = load(READINGS).cut("/1/Relu_output_0").freeze("*")
    module = nn.Sequential(nn.Imported(trunk), nn.Linear(16, 5))
    before, after, drop = trained(module, MODELS["readings_17"].draw(RNG, 32))
    assert changed(before, after) == {"1.weight", "1.bias"} and drop < 0.95
    np.testing.assert_array_equal(after["0.0.weight"], trunk.frozen["0.weight"])


def test_the_whole_file_and_its_running_statistics_train() -> None:
    before, after, _ = trained(load(MODELS["cnn_20"].source), MODELS["cnn_20"].draw(RNG, 32))
    assert changed(before, after) == set(before) and "2.running_var" in before


def test_frozen_statistics_stay_and_are_used_in_training() -> None:
    model = load(MODELS["cnn_20"].source).freeze("2.running*", "6.running*")
    x = MODELS["cnn_20"].draw(RNG, 16)
    before, after, _ = trained(model, x)
    assert changed(before, after) == {name for name in before if "running" not in name}
    module = nn.Imported(model)
    params = arrays(module.init(0))
    train, evaluated = (module(params, Array(x), mode).numpy() for mode in (nn.train(), nn.EVAL))
    np.testing.assert_array_equal(train, evaluated)


def network() -> nn.Sequential:
    """The network of cnn_20, written here; its names are those of PyTorch."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.BatchNorm2d(4),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, stride=2),
        _Leaky(),
        nn.BatchNorm2d(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


@dataclass(frozen=True)
class _Leaky(nn.Module):
    def specs(self) -> dict[str, nn.ParameterSpec]:
        return {}

    def __call__(self, params: nn.Parameters, x: Array, mode: nn.Mode = nn.EVAL) -> Array:
        return cnp.where(x > 0, x, 0.01 * x)


@pytest.mark.parametrize("weights", [[1.0] * 6, [1.0, 0.0, 2.0, 1.0, 0.0, 1.0]], ids=["alike", "weighed"])
def test_a_training_step_is_that_of_the_same_network_written_here(weights: list[float]) -> None:
    foreign, native = nn.Imported(load(MODELS["cnn_20"].source)), network()
    params = arrays(foreign.init(0))
    assert params.keys() == native.specs().keys()
    assert {name: spec.role for name, spec in foreign.specs().items()} == {
        name: spec.role for name, spec in native.specs().items()
    }
    x, weight = Array(MODELS["cnn_20"].draw(RNG, 6)), Array(np.asarray(weights, np.float32))
    labels = Array(np.arange(6, dtype=np.int32) % 3)

    def step(module: nn.Module) -> Any:
        def loss(params: dict[str, Array]) -> Any:
            logits, after = nn.forward(module, params, x, nn.train(weight=weight))
            return cnp.sum(nn.losses.softmax_cross_entropy(logits, labels) * weight), after

        return value_and_grad(loss, has_aux=True)(params)

    (value, after), gradients = step(foreign)
    (same_value, same_after), same_gradients = step(native)
    assert value.item() == pytest.approx(same_value.item(), rel=1e-5)
    for told, wanted in ((after, same_after), (gradients, same_gradients)):
        assert told.keys() == wanted.keys()
        for name in wanted:
            np.testing.assert_allclose(told[name].numpy(), wanted[name].numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_layer_that_mixes_examples_is_refused_where_each_is_clipped() -> None:
    module = nn.Imported(load(MODELS["cnn_20"].source))
    params = arrays(module.init(0))

    def losses(params: Any, x: Array) -> Array:
        return cnp.sum(module(params, x, nn.train()), axis=1)

    with pytest.raises(InputError, match="normalises over the batch"):
        clipped_grad(losses, 1.0)(params, MODELS["cnn_20"].draw(RNG, 4))


def test_integers_and_floats_of_other_widths() -> None:
    ids = RNG.integers(0, 11, (16, 5)).astype(np.int32)  # the file says int64
    assert trained(load(MODELS["transformer_17"].source), ids)[2] < 1
    x = MODELS["cnn_20"].draw(RNG, 16)
    assert trained(load(MODELS["cnn_20"].source), x, precision=amp("O1"))[2] < 1
    assert trained(load(MODELS["gru_17"].source), MODELS["gru_17"].draw(RNG, 16).astype(np.float64))[2] < 1


@pytest.mark.parametrize("coefficients", [[0.0] * 3, [1.0, 2.0, 3.0]], ids=["alike", "different"])
def test_a_linear_learner_has_its_two_weights_whatever_their_numbers(coefficients: list[float]) -> None:
    """Those of a Lasso are often all zeros; what reads them for their dtype is no second reader."""
    node = helper.make_node(
        "LinearRegressor", ["x"], ["y"], "fit", domain="ai.onnx.ml", coefficients=coefficients, intercepts=[0.5]
    )
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 3])]
    graph = helper.make_graph([node], "fit", given, [helper.make_empty_tensor_value_info("y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    assert list(load(data).parameters) == ["fit.coefficients", "fit.intercepts"]


def test_the_end_is_found_behind_what_passes_it_on() -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["shares"]),
        helper.make_node("Cast", ["shares"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["cast"], ["y"]),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 3])]
    graph = helper.make_graph(nodes, "end", given, [helper.make_empty_tensor_value_info("y")])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    with pytest.raises(InputError, match="ends in a Softmax"):
        Trainer(load(data), nn.losses.softmax_cross_entropy, optim.sgd(0.1))


def test_the_end_is_found_at_the_end_of_a_sequence() -> None:
    """And not in the middle of one, where another layer makes logits of it."""
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 3])]
    end = [helper.make_empty_tensor_value_info("y")]
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"], "last")], "end", given, end)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    softmax, rule = nn.Imported(load(data)), optim.sgd(0.1)
    inner = nn.Sequential(nn.Linear(3, 3), softmax)
    for model in (inner, nn.Sequential(nn.ReLU(), inner), nn.Sequential(inner, nn.Flatten())):
        with pytest.raises(InputError, match=r"ends in a Softmax \(the node 'last'\)"):
            Trainer(model, nn.losses.softmax_cross_entropy, rule)
        Trainer(model, nn.losses.mean_squared_error, rule)
    Trainer(nn.Sequential(inner, nn.Linear(3, 2)), nn.losses.softmax_cross_entropy, rule)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_another_float_dtype_is_that_of_everything_in_the_file(dtype: str) -> None:
    """Also of what the file converts to float32, or fills with it, by name."""
    nodes = [
        helper.make_node("Cast", ["x"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
        helper.make_node("Add", ["float", "zeros"], ["sum"]),
        helper.make_node("Mul", ["sum", "k"], ["y"]),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.INT64, [2])]
    held = [
        numpy_helper.from_array(np.asarray([2]), "size"),
        numpy_helper.from_array(np.asarray([0.5, 0.1], np.float32), "k"),
    ]
    graph = helper.make_graph(nodes, "cast", given, [helper.make_empty_tensor_value_info("y")], held)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    model = load(data).astype(dtype)
    assert model(model.parameters, np.asarray([2, 3])).dtype.name == dtype


def two_inputs() -> bytes:
    node = helper.make_node("Sub", ["left", "right"], ["y"])
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", 3]) for name in ("left", "right")]
    graph = helper.make_graph([node], "two", given, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_several_inputs_come_by_name() -> None:
    model = load(two_inputs())
    a, b = (Array(RNG.normal(size=(2, 3)).astype(np.float32)) for _ in range(2))
    expected = a.numpy() - b.numpy()
    given: Any = {"right": b, "left": a, "other": b}
    np.testing.assert_array_equal(nn.Imported(model)({}, given).numpy(), expected)
    named: Any = {"first": a, "second": b}
    np.testing.assert_array_equal(nn.Imported(model, features=("first", "second"))({}, named).numpy(), expected)
    with pytest.raises(InputError, match="takes the input 'left'; it was given first, second"):
        nn.Imported(model)({}, named)
    with pytest.raises(InputError, match=r"arrays by name \(left, right\), got a Array"):
        nn.Imported(model)({}, a)


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("gives 2 outputs", lambda: nn.Imported(load(MODELS["sk_mlp_18"].source))),
    ("the model is the class ImportedModel", lambda: nn.Imported(ImportedModel)),  # pyright: ignore[reportArgumentType]
    ("the model is a str", lambda: nn.Imported("model.onnx")),  # pyright: ignore[reportArgumentType]
    ("2 features do not name", lambda: nn.Imported(load(READINGS), features=("a", "b"))),
]


@pytest.mark.parametrize(("message", "make"), REFUSED, ids=[message for message, _ in REFUSED])
def test_what_is_no_layer_is_refused(message: str, make: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("name", ["fresh_13", "fresh_18_dynamo"])
def test_tensors_that_an_exporter_merged_move_apart(name: str) -> None:
    """Two layers whose scales were both ones when the file was written."""
    before, after, _ = trained(load(MODELS[name].source), MODELS[name].draw(RNG, 32))
    ones = [key for key, value in before.items() if value.shape == (4,) and (value == 1).all() and "var" not in key]
    assert len(ones) == 2
    assert not np.array_equal(after[ones[0]], after[ones[1]])
    assert changed(before, after) == set(before)


def test_a_model_computes_with_the_numpy_arrays_that_init_gives() -> None:
    module: Any = nn.Imported(load(MODELS["cnn_20"].source))
    x = MODELS["cnn_20"].draw(RNG, 2)
    given = {name: Array(value) for name, value in module.init(0).items()}
    np.testing.assert_array_equal(module(module.init(0), x).numpy(), module(given, Array(x)).numpy())
