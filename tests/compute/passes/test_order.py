"""Operators change places where that takes fewer operations and keeps the meaning."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.passes.cost import flops
from coterie.compute.passes.inference import fold_constants, reorder_operators
from tests.compute.passes.graphs import answers, numbers, of

W, C = numbers(4, 4), numbers(4)
MOVED: Mapping[str, tuple[Callable[[Array], Array], tuple[int, ...]]] = {
    "crop before functions": (lambda x: cnp.tanh(x * C)[1:3, :2], (8, 4)),
    "crop before a product": (lambda x: (x @ W)[1:2, 1:3], (8, 4)),
    "crop before stacked products": (lambda x: (x @ W)[:, -1], (2, 6, 4)),
    "crop before stacked products with a bias": (lambda x: (x @ W + C)[:, -1:], (2, 6, 4)),
    "crop before softmax": (lambda x: ops.softmax(x, axis=-1)[:1], (8, 4)),
    "crop before a transposition": (lambda x: cnp.permute_dims(cnp.exp(x), (0, 2, 1))[:, :, :1], (2, 6, 4)),
    "crop before a reshape": (lambda x: cnp.reshape(cnp.tanh(x), (6, 2, 2))[:2], (6, 4)),
    "crop before a concatenation": (lambda x: cnp.concat([cnp.tanh(x), x], axis=0)[9:], (8, 4)),
    "pooling before relu": (lambda x: ops.max_pool2d(ops.relu(x), 2), (1, 2, 4, 4)),
    "pooling before tanh": (lambda x: ops.max_pool2d(cnp.tanh(x), 2), (1, 2, 4, 4)),
    "maximum before sigmoid": (lambda x: cnp.max(ops.sigmoid(x), axis=1), (8, 4)),
    "average before scale": (lambda x: ops.avg_pool2d(x * numbers(2, 1, 1), 2), (1, 2, 4, 4)),
    "average before shift": (lambda x: ops.avg_pool2d(x + numbers(2, 1, 1), 2), (1, 2, 4, 4)),
    "sum before scale": (lambda x: cnp.sum(x * C, axis=0), (8, 4)),
    "sum before scale, axes kept": (lambda x: cnp.sum(x * 3.0, axis=1, keepdims=True), (8, 4)),
}


@pytest.mark.capability("G5")
@pytest.mark.parametrize("case", MOVED)
def test_g5_another_order_takes_fewer_operations(case: str) -> None:
    fn, shape = MOVED[case]
    graph = of(fn, *shape)
    after = reorder_operators(graph)
    assert flops(after) < flops(graph)
    np.testing.assert_allclose(answers(after), answers(graph), rtol=1e-12, atol=1e-12)


KEPT: Mapping[str, tuple[Callable[[Array], Array], tuple[int, ...]]] = {
    "what is read twice": (lambda x: _twice(cnp.tanh(x)), (8, 4)),
    "a crop along a softmax": (lambda x: ops.softmax(x, axis=-1)[:, :1], (8, 4)),
    "a scale that differs along the sum": (lambda x: cnp.sum(x * C, axis=1), (8, 4)),
    "a function that turns order": (lambda x: ops.max_pool2d(-x, 2), (1, 2, 4, 4)),
}


def _twice(x: Array) -> Array:
    return x[:1] + cnp.sum(x, axis=0)


@pytest.mark.capability("G5")
@pytest.mark.parametrize("case", KEPT)
def test_g5_nothing_moves_where_the_meaning_would_change_or_nothing_is_saved(case: str) -> None:
    fn, shape = KEPT[case]
    graph = of(fn, *shape)
    assert flops(reorder_operators(graph)) == flops(fold_constants(graph))
    np.testing.assert_array_equal(answers(reorder_operators(graph)), answers(graph))
