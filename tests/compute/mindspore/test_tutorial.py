"""The tutorial's own layer, the modules that scripts import by path, and several steps a call."""

# Scripts as their authors write them, without types.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from coterie.compute import mindspore as ms
from coterie.compute.interactive.mode import use_mode
from coterie.compute.mindspore import Parameter, Tensor, nn, ops
from coterie.compute.mindspore.dataset import NumpySlicesDataset
from coterie.compute.mindspore.initializer import initializer
from coterie.errors import ArgumentTypeError, ArgumentValueError, InputError

RNG = np.random.default_rng(17)
X = RNG.normal(size=(24, 6)).astype(np.float32)
Y = RNG.integers(0, 3, 24).astype(np.int32)
PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "@": lambda x, weight: x @ weight.transpose(0, 1),
    "matmul": lambda x, weight: x.matmul(weight.transpose(0, 1)),
    "dot": lambda x, weight: x.dot(weight.transpose(1, 0)),
    "ops.matmul": lambda x, weight: ops.matmul(x, weight.transpose(0, 1)),
    "ops.MatMul": lambda x, weight: ops.MatMul()(x, weight.transpose(-1, -2)),
    "T": lambda x, weight: x @ weight.T,
    "swapaxes": lambda x, weight: x @ weight.swapaxes(0, 1),
    "one tuple": lambda x, weight: x @ weight.transpose((1, 0)),
    "none": lambda x, weight: x @ weight.transpose(),
}


@pytest.fixture(params=["graph", "eager"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with use_mode(request.param):
        yield request.param


class Linear(nn.Cell):
    """The tutorial's: x · weightᵀ + bias."""

    def __init__(self, in_features, out_features, product):
        super().__init__()
        self.weight = Parameter(initializer("normal", [out_features, in_features]), name="weight")
        self.bias = Parameter(initializer("zeros", [out_features]), name="bias")
        self.product = product

    def construct(self, x):
        return self.product(x, self.weight) + self.bias


@pytest.mark.capability("B1")
@pytest.mark.parametrize("product", PRODUCTS)
def test_the_linear_layer_of_the_tutorial_is_the_product_with_the_transpose(mode: str, product: str) -> None:
    net = Linear(6, 3, PRODUCTS[product])
    wanted = X @ net.weight.asnumpy().T + net.bias.asnumpy()
    np.testing.assert_allclose(net(Tensor(X)).asnumpy(), wanted, rtol=1e-5, atol=1e-6)


def test_an_order_of_all_axes_stays_an_order() -> None:
    cube = Tensor(np.zeros((2, 3, 4), np.float32))
    assert cube.transpose(2, 0, 1).shape == (4, 2, 3) and cube.transpose((1, 0, 2)).shape == (3, 2, 4)
    assert cube.transpose().shape == (4, 3, 2) and cube.swapaxes(0, 2).shape == (4, 3, 2)
    matrix = Tensor(np.zeros((2, 3), np.float32))
    assert matrix.permute(0, 1).shape == (2, 3) and matrix.transpose((0, 1)).shape == (2, 3)


@pytest.mark.capability("B1")
@pytest.mark.parametrize(
    ("path", "name"), [("numpy", "sum"), ("scipy", "linalg"), ("nn", "Cell"), ("ops", "matmul"), ("dataset", "Dataset")]
)
def test_modules_can_be_imported_by_path(path: str, name: str) -> None:
    module = import_module(f"coterie.compute.mindspore.{path}")
    assert getattr(ms, path) is module and hasattr(module, name)


def test_functions_of_its_numpy_give_tensors() -> None:
    mnp = ms.numpy
    found: Any = [mnp.sum(Tensor(X), axis=1), mnp.ones((2, 3)), mnp.array([1, 2]), mnp.swapaxes(Tensor(X), 0, 1)]
    assert all(isinstance(each, Tensor) for each in found)
    np.testing.assert_allclose(found[0].asnumpy(), X.sum(1), rtol=1e-5, atol=1e-6)
    assert mnp.float32 is ms.float32 and mnp.pi == np.pi
    with pytest.raises(AttributeError, match="coterie.compute.numpy.* has no"):
        mnp.unknown  # type: ignore[reportAttributeAccessIssue]  # noqa: B018


@pytest.mark.capability("B8")
def test_shard_is_that_of_coterie() -> None:
    doubled = ms.shard(lambda x: (x * 2.0).sum(), shards=2, out="sum")
    np.testing.assert_allclose(doubled(X).numpy(), 2.0 * X.sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.capability("B10")
@pytest.mark.parametrize("rule", ["SGD", "Momentum", "Adam"])
def test_a_sink_of_steps_is_the_steps_one_by_one(mode: str, rule: str) -> None:
    def made() -> tuple[Any, Any]:
        ms.set_seed(4)
        net = nn.SequentialCell(nn.Dense(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dense(8, 3))
        options: dict[str, Any] = {"momentum": 0.9} if rule == "Momentum" else {}
        optimizer = getattr(nn, rule)(net.trainable_params(), [0.1, 0.05, 0.02], **options)
        loss_fn = nn.CrossEntropyLoss()
        grad_fn = ms.value_and_grad(lambda data, label: loss_fn(net(data), label), None, optimizer.parameters)

        def train_step(data, label):
            loss, gradients = grad_fn(data, label)
            optimizer(gradients)
            return loss

        net.set_train()
        return net, train_step

    dataset = NumpySlicesDataset((X, Y), shuffle=False).batch(8)
    net, step = made()
    sink = ms.data_sink(step, dataset, sink_size=2)
    sunk = [float(sink()) for _ in range(3)]  # six steps: the dataset twice
    sink.close()
    other, by_hand = made()
    plain = [float(by_hand(data, label)) for _ in range(2) for data, label in dataset]
    np.testing.assert_allclose(sunk, plain[1::2], rtol=1e-4, atol=1e-6)
    for a, b in zip(net.get_parameters(), other.get_parameters(), strict=True):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=2e-3, atol=1e-4)


def test_a_sink_refuses_what_it_cannot_repeat() -> None:
    net = nn.SequentialCell(nn.Dropout(p=0.5), nn.Dense(6, 3)).set_train()
    rows = NumpySlicesDataset((X,), shuffle=False)
    sink = ms.data_sink(lambda x: net(x).sum(), rows.batch(8), 2)
    with pytest.raises(InputError, match="the step draws random numbers"):
        sink()
    sink.close()
    with pytest.raises(ArgumentValueError, match="no batches"):
        ms.data_sink(lambda x: x, rows)
    with pytest.raises(ArgumentTypeError, match="takes a Dataset, not a list"):
        ms.data_sink(lambda x: x, [X])  # type: ignore[reportArgumentType]
