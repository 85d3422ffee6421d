"""What changes in a network between two calls counts at the second, compiled or not."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportMissingParameterType=false

from collections.abc import Callable

import numpy as np
import pytest

from coterie.compute import mindspore as ms
from coterie.compute.mindspore import Tensor, nn, ops
from coterie.errors import ArgumentTypeError

X = Tensor(np.asarray([[1.0, 2.0], [3.0, 4.0]], np.float32))


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(2, 3)
        self.more = nn.SequentialCell(nn.Dense(3, 3))
        self.scale = 2.0

    def construct(self, x: Tensor) -> Tensor:
        return ops.relu(self.more(self.dense(x))) * self.scale


def scaled(net: Net) -> None:
    net.scale = -3.0


def replaced(net: Net) -> None:
    net.dense = nn.Dense(2, 3)


def appended(net: Net) -> None:
    net.more.append(nn.Dense(3, 3))


def written(net: Net) -> None:
    net.dense.weight = net.dense.weight * 2


@pytest.mark.parametrize("change", [scaled, replaced, appended, written], ids=lambda change: change.__name__)
def test_a_changed_network_computes_what_its_construct_says(change: Callable[[Net], None]) -> None:
    net = Net()
    gradient = ms.grad(lambda x: net(x).sum())
    before = net(X).asnumpy(), gradient(X).asnumpy()
    change(net)
    after = net(X).asnumpy(), gradient(X).asnumpy()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        expected = net(X).asnumpy(), gradient(X).asnumpy()
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)
    for found, wanted in zip(after, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert not np.allclose(before[0], after[0])


def test_a_network_that_is_as_it_was_is_not_compiled_again() -> None:
    net = Net()
    net(X)
    for scale in (5.0, 2.0, 5.0, 2.0):
        net.scale = scale
        net(X)
    compiled = vars(net)["_compiled"]
    assert compiled.compilations == 2


def test_a_parameter_is_not_silently_replaced_by_a_number() -> None:
    optimizer = nn.SGD(Net().trainable_params(), learning_rate=0.1)
    with pytest.raises(ArgumentTypeError, match=r"test_changed_cells.py:\d+: SGD.learning_rate is a Parameter"):
        optimizer.learning_rate = 1.0
    optimizer.learning_rate = Tensor(np.asarray([1.0], np.float32))
    assert optimizer.get_lr().asnumpy() == 1.0


def test_random_numbers_of_the_process_are_not_baked_in() -> None:
    def noisy(x):
        return x * 0 + np.random.rand()

    compiled = ms.jit(noisy)
    np.random.seed(3)
    found = [float(compiled(X)[0, 0]) for _ in range(2)]
    np.random.seed(3)
    np.testing.assert_allclose(found, [np.random.rand() for _ in range(2)], rtol=1e-6)
    assert "draws random numbers" in compiled.fallbacks[0]


def test_a_generator_is_made_anew_by_every_call() -> None:
    @ms.jit
    def rows(x):
        return (row for row in (x, x * 2))

    for _ in range(2):
        assert [float(row[0, 0]) for row in rows(X)] == [1.0, 2.0]
