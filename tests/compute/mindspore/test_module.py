"""A network class is a model of coterie: it computes, learns and refuses what a graph could not do in every step."""

# Networks as their authors write them, without types.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeArgument=false

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.compute import grad, jit, optim
from coterie.compute import mindspore as ms
from coterie.compute import nn as core
from coterie.compute.array import Array
from coterie.compute.mindspore import Model, Parameter, Tensor, as_loss, as_module, as_optimizer, nn, ops
from coterie.compute.mindspore.dataset import NumpySlicesDataset
from coterie.compute.nn.calling import forward
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.training.trainer import Trainer
from coterie.errors import ArgumentTypeError, ArgumentValueError, CoterieError, InputError, ShapeError, TraceError

RNG = np.random.default_rng(11)
X = RNG.normal(size=(12, 6)).astype(np.float32)
Y = RNG.integers(0, 3, 12).astype(np.int32)
IMAGES = RNG.normal(size=(8, 2, 6, 6)).astype(np.float32)
DIGITS = RNG.integers(0, 3, 8).astype(np.int32)


class Plain(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(6, 5, activation="relu")
        self.second = nn.Dense(5, 3)

    def construct(self, x):
        return self.second(self.first(x))


class Images(nn.Cell):
    def __init__(self):
        super().__init__()
        self.features = nn.SequentialCell(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.output = nn.Dense(4 * 36, 3)

    def construct(self, x):
        return self.output(nn.Flatten()(self.features(x)))


class Tied(nn.Cell):
    """One matrix, used twice."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Dense(6, 6, has_bias=False)
        self.outer = nn.Dense(6, 6, has_bias=False)
        self.outer.weight = self.inner.weight
        self.output = nn.Dense(6, 3)

    def construct(self, x):
        return self.output(ops.tanh(self.outer(ops.tanh(self.inner(x)))))


class Shared(nn.Cell):
    """One layer under two names."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Dense(6, 6)
        self.again = self.inner
        self.output = nn.Dense(6, 3)

    def construct(self, x):
        return self.output(self.again(ops.tanh(self.inner(x))))


class Decides(nn.Cell):
    """Python on tensors, a constant of integers, a frozen factor."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(6, 3)
        self.order = Parameter(np.asarray([5, 4, 3, 2, 1, 0], np.int32), requires_grad=False)
        self.factor = Parameter(np.full((1,), 2.0, np.float32), requires_grad=False)

    def construct(self, x):
        x = ops.gather(x, self.order, 1)
        if x.sum() > 0:
            x = x * self.factor
        return self.dense(x)


NETWORKS: dict[str, tuple[Callable[[], nn.Cell], Any, Any]] = {
    "plain": (Plain, X, Y),
    "images": (Images, IMAGES, DIGITS),
    "tied": (Tied, X, Y),
    "shared": (Shared, X, Y),
    "decides": (Decides, X, Y),
}


def made(name: str) -> tuple[Any, Any, Any]:
    ms.set_seed(6)
    network, x, y = NETWORKS[name]
    return network(), x, y


@pytest.mark.capability("B5")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_module_computes_what_its_network_does(name: str) -> None:
    network, x, _ = made(name)
    module = as_module(network)
    wanted = network(Tensor(x)).asnumpy()
    params = {key: Array(value) for key, value in module.init(0).items()}
    np.testing.assert_allclose(module(params, Array(x)).numpy(), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jit(module)(params, Array(x)).numpy(), wanted, rtol=1e-5, atol=1e-6)
    # It is pure: it reads what it is given, and the network is as it was.
    moved = {key: value + 1.0 for key, value in params.items()}
    assert not np.allclose(module(moved, Array(x)).numpy(), wanted)
    assert network(Tensor(x)).asnumpy().tobytes() == wanted.tobytes() and network.training is False


def test_parameters_keep_names_values_and_roles() -> None:
    network, _, _ = made("images")
    network.output.bias.requires_grad = False
    module = as_module(network)
    roles = {name: spec.role for name, spec in module.specs().items()}
    assert roles == {
        "features.0.weight": "shared",
        "features.1.gamma": "shared",
        "features.1.beta": "shared",
        "features.1.moving_mean": "buffer",
        "features.1.moving_variance": "buffer",
        "output.weight": "shared",
        "output.bias": "frozen",
    }
    before = {name: parameter.asnumpy() for name, parameter in network.parameters_and_names()}
    network.output.weight.set_data(np.zeros((3, 144), np.float32))
    for seed in (0, 1):
        for name, value in module.init(seed).items():
            np.testing.assert_array_equal(value, before[name])
    assert set(as_module(made("tied")[0]).specs()) == {"inner.weight", "output.weight", "output.bias"}
    assert "order" not in as_module(made("decides")[0]).specs()


@pytest.mark.capability("B4")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("rule", ["SGD", "Momentum", "Adam", "AdamWeightDecay"])
def test_training_a_module_is_training_the_network(name: str, rule: str) -> None:
    """Trainer with the module, against MindSpore's own step over the Parameters, batch for batch."""

    def optimizer(network: nn.Cell) -> Any:
        options: dict[str, Any] = {"momentum": 0.9} if rule == "Momentum" else {}
        return getattr(nn, rule)(network.trainable_params(), 0.05, **options)

    network, x, y = made(name)
    loss = nn.CrossEntropyLoss()
    trainer = Trainer(as_module(network), as_loss(loss), as_optimizer(optimizer(network), network), batch_size=len(x))
    other, _, _ = made(name)
    step = nn.TrainOneStepCell(nn.WithLossCell(other, loss), optimizer(other))
    step.set_train()
    losses = [float(step(Tensor(x), Tensor(y))) for _ in range(4)]
    np.testing.assert_allclose(trainer.fit({"x": x, "y": y}, 4).losses, losses, rtol=2e-4, atol=1e-6)
    for key, value in trainer.params.items():
        np.testing.assert_allclose(value, other.parameters_dict()[key].asnumpy(), rtol=2e-3, atol=2e-5)


def test_padding_does_not_move_the_statistics() -> None:
    network, x, _ = made("images")
    module = as_module(network)
    params = {name: Array(value) for name, value in module.init(0).items()}
    weight = np.asarray([1, 1, 1, 1, 1, 0, 0, 0], np.float32)
    _, padded = forward(module, params, Array(x), core.train(weight=Array(weight)))
    _, alone = forward(module, params, Array(x[:5]), core.train())
    _, whole = forward(module, params, Array(x), core.train())
    for name, array in alone.items():
        np.testing.assert_allclose(padded[name].numpy(), array.numpy(), rtol=1e-5, atol=1e-6)
        assert not np.allclose(whole[name].numpy(), array.numpy(), rtol=1e-3)
    _, kept = forward(module, params, Array(x))
    assert all(np.array_equal(kept[name].numpy(), params[name].numpy()) for name in kept)


def test_dropout_draws_from_what_trains() -> None:
    module = as_module(nn.SequentialCell(nn.Dropout(p=0.5), nn.Dense(6, 3)))
    params = {name: Array(value) for name, value in module.init(0).items()}
    asked: list[tuple[int, ...]] = []

    def uniform(shape: tuple[int, ...]) -> Array:
        asked.append(shape)
        return Array(np.zeros(shape, np.float32))

    dropped = module(params, Array(X), core.train(uniform))
    assert asked == [X.shape]
    np.testing.assert_allclose(dropped.numpy(), np.tile(params["1.bias"].numpy(), (12, 1)))
    assert not np.allclose(module(params, Array(X)).numpy(), dropped.numpy())


def test_the_gradient_of_a_tied_weight_is_that_of_both_places() -> None:
    module = as_module(made("tied")[0])
    params = {name: Array(value) for name, value in module.init(0).items()}

    def loss(params):
        return softmax_cross_entropy(module(params, Array(X)), Array(Y)).mean()

    def untied(one, two):
        hidden = ops.tanh(ops.matmul(ops.tanh(ops.matmul(Array(X), one.T)), two.T))
        logits = ops.matmul(hidden, params["output.weight"].T) + params["output.bias"]
        return softmax_cross_entropy(logits, Array(Y)).mean()

    weight = params["inner.weight"]
    one, two = grad(untied, (0, 1))(weight, weight)
    np.testing.assert_allclose(grad(loss)(params)["inner.weight"].numpy(), (one + two).numpy(), rtol=1e-4, atol=1e-6)


class Counts(nn.Cell):
    """Moves a statistic of its own."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(6, 3)
        self.seen = Parameter(np.zeros((1,), np.float32), requires_grad=False)

    def construct(self, x):
        self.seen = self.seen + 1.0
        return self.dense(x)


def test_statistics_of_ones_own_are_buffers_that_are_named() -> None:
    trainer = Trainer(as_module(Counts(), buffers=("*seen",)), softmax_cross_entropy, optim.sgd(0.1), batch_size=4)
    trainer.fit({"x": X, "y": Y}, 2)
    assert trainer.params["seen"].tolist() == [6.0]


def test_frozen_values_are_those_that_training_begins_with() -> None:
    """They are inputs of the graph, and no constants of the network."""
    network, x, y = made("decides")
    initial = {"factor": np.zeros((1,), np.float32), "dense.bias": np.zeros((3,), np.float32)}
    trainer = Trainer(as_module(network), softmax_cross_entropy, optim.sgd(0.1), batch_size=12, initial=initial)
    shown = np.abs(x)  # so that the factor counts
    assert trainer.fit({"x": shown, "y": y}).losses[0] == pytest.approx(np.log(3), rel=1e-6)
    assert trainer.params["factor"].tolist() == [0.0]
    np.testing.assert_array_equal(trainer.params["dense.weight"], network.parameters_dict()["dense.weight"].asnumpy())


def test_a_buffer_must_be_one() -> None:
    for buffers, told in ((("none",), "no Parameter 'none'"), (("dense.bias",), "'dense.bias' has a gradient")):
        with pytest.raises(ArgumentValueError, match=told):
            as_module(Counts(), buffers=buffers)


class Attribute(Plain):
    def construct(self, x):
        self.last = x  # here
        return super().construct(x)


class Listed(Plain):
    def __init__(self):
        super().__init__()
        self.calls = []

    def construct(self, x):  # here
        self.calls.append(1)
        return super().construct(x)


class Table(Plain):
    def __init__(self):
        super().__init__()
        self.table = np.zeros(3, np.float32)

    def construct(self, x):  # here
        np.add(self.table, 1.0, out=self.table)
        return super().construct(x) + self.table


class Nested(Plain):
    def __init__(self):
        super().__init__()
        self.cache = {"steps": [0]}

    def construct(self, x):  # here
        self.cache["steps"][0] += 1
        return super().construct(x)


class Written(Plain):
    def construct(self, x):
        x[0] = 0.0  # here
        return super().construct(x)


class Trained(Plain):
    def construct(self, x):
        self.first.bias.set_data(self.first.bias * 0.5)  # here
        return super().construct(x)


class Hidden(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Dense(6, 6)]
        self.output = nn.Dense(6, 3)

    def construct(self, x):
        return self.output(self.layers[0](x))  # here


class Late(Plain):
    def construct(self, x):
        return super().construct(x) + nn.Dense(6, 3)(x)  # here


class Mode(Plain):
    def construct(self, x):
        self.set_train(False)  # here
        return super().construct(x)


@pytest.mark.parametrize(
    ("network", "told"),
    [
        (Attribute, "Attribute sets the attribute 'last'"),
        (Listed, "Listed.calls is changed in place"),
        (Table, "Table.table is changed in place"),
        (Nested, "Nested.cache is changed in place"),
        (Written, "cannot be written in place"),
        (Trained, "writes the parameter 'first.bias', which is trained"),
        (Counts, "writes the parameter 'seen', which is frozen"),
        (Hidden, "calls a Dense that is not one of its parts"),
        (Late, "makes a Parameter while it computes"),
        (Mode, "sets the attribute 'training'"),
    ],
)
def test_what_a_graph_would_do_once_is_refused_with_its_line(network: Callable[[], nn.Cell], told: str) -> None:
    lines = Path(__file__).read_text().splitlines()
    start = lines.index(f"class {network.__name__}({'nn.Cell' if network in (Hidden, Counts) else 'Plain'}):")
    mark = "self.seen = self.seen + 1.0" if network is Counts else "# here"
    line = next(number for number in range(start, len(lines)) if mark in lines[number]) + 1
    trainer = Trainer(as_module(network()), softmax_cross_entropy, optim.sgd(0.1), batch_size=4)
    with pytest.raises(TraceError, match=rf"test_module\.py:{line}: .*{re.escape(told)}") as caught:
        trainer.fit({"x": X, "y": Y})
    assert caught.value.hint


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(
    ("loss", "shapes"),
    [
        (nn.CrossEntropyLoss, ((7, 4), "int")),
        (nn.CrossEntropyLoss, ((7, 4), (7, 4))),
        (lambda reduction: nn.SoftmaxCrossEntropyWithLogits(True, reduction), ((7, 4), "int")),
        (lambda reduction: nn.SoftmaxCrossEntropyWithLogits(False, reduction), ((7, 4), (7, 4))),
        (nn.BCEWithLogitsLoss, ((7,), (7,))),
        (nn.MSELoss, ((7, 2, 3), (7, 2, 3))),
        (nn.L1Loss, ((7,), (7,))),
    ],
)
def test_a_loss_of_rows_has_the_mean_of_the_loss_class(loss: Any, shapes: Any, reduction: str) -> None:
    logits = RNG.normal(size=shapes[0]).astype(np.float32)
    labels = RNG.integers(0, 4, 7).astype(np.int32) if shapes[1] == "int" else RNG.random(shapes[1], np.float32)
    rows = as_loss(loss(reduction=reduction))(Array(logits), Array(labels))
    assert rows.shape == (7,)
    wanted = np.mean(loss(reduction=reduction)(Tensor(logits), Tensor(labels)).asnumpy())
    np.testing.assert_allclose(rows.numpy().mean(), wanted, rtol=1e-5)


def test_losses_and_optimizers_that_do_not_fit_are_refused() -> None:
    network = Plain()
    with pytest.raises(ArgumentValueError, match="sums over the batch"):
        as_loss(nn.MSELoss("sum"))
    with pytest.raises(ShapeError, match=r"MSELoss takes logits and labels of one shape, got \[5, 1\] and \[5\]"):
        as_loss(nn.MSELoss())(Array(np.zeros((5, 1), np.float32)), Array(np.zeros(5, np.float32)))
    refused: list[tuple[Callable[[], Any], type[CoterieError], str]] = [
        (lambda: as_optimizer(nn.SGD(network.second.trainable_params()), network), ArgumentValueError, "first.weight"),
        (lambda: as_optimizer(nn.SGD(network.trainable_params(), [0.1, 0.2]), network), ArgumentValueError, "changes"),
        (
            lambda: as_optimizer(nn.SGD(network.trainable_params(), loss_scale=2.0), network),
            ArgumentValueError,
            "scale",
        ),
        (lambda: as_optimizer(optim.sgd(0.1), network), ArgumentTypeError, "this is an Optimizer"),  # type: ignore[arg-type]
        (lambda: as_module(Plain), ArgumentTypeError, "takes a Cell"),  # type: ignore[arg-type]
        (lambda: as_module(network, buffers=None), ArgumentTypeError, "buffers are names"),  # type: ignore[arg-type]
        (lambda: as_module(network, buffers=(1,)), ArgumentTypeError, "buffers are names"),  # type: ignore[arg-type]
        (lambda: Model(network, nn.MSELoss()).eval(None), ArgumentTypeError, "not a NoneType"),  # type: ignore[arg-type]
        (lambda: Model(network, nn.MSELoss()).train(1, [1]), ArgumentTypeError, "not a list"),  # type: ignore[arg-type]
    ]
    for call, kind, told in refused:
        with pytest.raises(kind, match=told) as caught:
            call()
        assert caught.value.hint


class TwoInputs(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 3)

    def construct(self, left, right, factor=1.0):
        return self.dense(ops.concat([left, right], 1)) * factor


def test_several_features_reach_construct_by_its_names() -> None:
    data = {"right": X[:, 2:5], "left": X[:, :1], "y": Y}
    trainer = Trainer(as_module(TwoInputs()), softmax_cross_entropy, optim.sgd(0.1), batch_size=4)
    assert trainer.fit(data, 30).epochs[-1] < trainer.evaluate(data)["loss"] * 1.2
    with pytest.raises(InputError, match="the features are a, b, and construct of TwoInputs takes left, right, factor"):
        Trainer(as_module(TwoInputs()), softmax_cross_entropy, optim.sgd(0.1), batch_size=4).fit(
            {"a": X[:, :1], "b": X[:, 1:4], "y": Y}
        )


@pytest.mark.capability("B11")
def test_a_model_trains_evaluates_and_predicts(capsys: pytest.CaptureFixture[str]) -> None:
    ms.set_seed(2)
    network = Plain()
    dataset = NumpySlicesDataset((X, Y), ["data", "label"], shuffle=False).batch(4)
    model = ms.Model(
        network,
        nn.CrossEntropyLoss(),
        nn.Momentum(network.trainable_params(), 0.2, 0.9),
        metrics={"Accuracy": nn.Accuracy(), "loss": "loss"},
    )
    before = model.eval(dataset)
    first = model.train(10, dataset, callbacks=ms.LossMonitor(2))
    assert capsys.readouterr().out.splitlines()[0].startswith("epoch: 1 step: 2, loss is ")
    more = model.train(20, dataset)
    after = model.eval(dataset)
    assert first[-1] < first[0] and more[-1] < first[-1]
    assert after["loss"] < 0.7 * before["loss"] and after["Accuracy"] > before["Accuracy"]
    # The network itself learnt, and the metric says the same by hand.
    metric = nn.Accuracy()
    metric.update(model.predict(Tensor(X)), Tensor(Y))
    assert metric.eval() == pytest.approx(after["Accuracy"])

    # Trained in two calls or in one, it is the same; a Parameter written in between is what the next one begins with.
    ms.set_seed(2)
    again = Plain()
    once = ms.Model(again, nn.CrossEntropyLoss(), nn.Momentum(again.trainable_params(), 0.2, 0.9))
    assert once.train(30, dataset) == first + more
    again.second.weight.set_data(np.zeros((3, 5), np.float32))
    again.second.bias.set_data(np.zeros((3,), np.float32))
    assert once.train(1, NumpySlicesDataset((X, Y), shuffle=False).batch(12))[0] == pytest.approx(np.log(3), rel=1e-5)


@pytest.mark.parametrize("rate", [[0.3, 0.2, 0.1], lambda step: 0.3 / (1.0 + ops.cast(step, ms.float32))])
def test_a_model_follows_a_rate_that_changes(rate: Any) -> None:
    dataset = NumpySlicesDataset((X, Y), shuffle=False).batch(4)
    ms.set_seed(9)
    network = Plain()
    ms.Model(network, nn.CrossEntropyLoss(), nn.SGD(network.trainable_params(), rate)).train(2, dataset)
    ms.set_seed(9)
    other = Plain()
    step = nn.TrainOneStepCell(nn.WithLossCell(other, nn.CrossEntropyLoss()), nn.SGD(other.trainable_params(), rate))
    for _ in range(2):
        for data, label in dataset:
            step(data, label)
    for a, b in zip(network.get_parameters(), other.get_parameters(), strict=True):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-4, atol=1e-6)


def test_mistakes_with_a_model_are_named() -> None:
    network = Plain()
    dataset = NumpySlicesDataset((X, Y)).batch(4)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: ms.Model(network, nn.CrossEntropyLoss()).train(1, dataset), "no optimizer"),
        (lambda: ms.Model(network).eval(dataset), "no loss"),
        (lambda: ms.Model(network, nn.CrossEntropyLoss()).eval(NumpySlicesDataset((X, Y))), "no batches"),
        (lambda: ms.Model(network, metrics=["auc"]), "no metric 'auc'"),
        (lambda: ms.Model(TwoInputs(), nn.MSELoss()).eval(NumpySlicesDataset((X,) * 5).batch(2)), "takes left, right"),
    ]
    for call, told in calls:
        with pytest.raises(InputError, match=told) as caught:
            call()
        assert caught.value.hint
