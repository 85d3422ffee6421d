"""Operators become cheaper ones of the same meaning."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from coterie.compute import nn, ops
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.passes.cost import flops
from coterie.compute.passes.inference import fold_constants, optimise_for_inference, replace_operators
from tests.compute.passes.graphs import answers, kinds, model, numbers, of, parameters, weights_of


def batch_norm_of_a_file(x: Array) -> Array:
    """As importers write it: four numbers a channel."""
    scale, bias, mean, variance = (np.abs(numbers(4, 1, 1, seed=seed)) + 0.1 for seed in range(4))
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + bias


A, ONES = numbers(4, 4), np.ones(4)
REPLACED: Mapping[str, tuple[Callable[[Array], Array], dict[str, int]]] = {
    "batch norm": (batch_norm_of_a_file, {"multiply": 1, "add": 1}),
    "difference": (lambda x: x - ONES, {"add": 1}),
    "quotient": (lambda x: x / (2 * ONES), {"multiply": 1}),
    "quotient by 0 stays": (lambda x: x / (ONES * 0), {"divide": 1}),
    "scales": (lambda x: (x * ONES) * (3 * ONES), {"multiply": 1}),
    "shifts": (lambda x: (x + ONES) + (3 * ONES), {"add": 1}),
    "shifts that would be more numbers together stay": (lambda x: (x + ONES) + numbers(3, 1), {"add": 2}),
    "square": (lambda x: x ** np.float64(2), {"multiply": 1}),
    "root": (lambda x: (x * x) ** np.float64(0.5), {"multiply": 1, "sqrt": 1}),
    "maximum with 0": (lambda x: cnp.maximum(x, 0.0), {"relu": 1}),
    "relu of relu": (lambda x: ops.relu(ops.sigmoid(ops.relu(x))), {"relu": 1, "sigmoid": 1}),
    "layers with nothing between": (lambda x: (x @ A) @ A, {"gemm": 1}),
    "factors of low rank stay": (lambda x: (x @ numbers(4, 1)) @ numbers(1, 4), {"gemm": 2}),
}


@pytest.mark.capability("G4")
@pytest.mark.parametrize("case", REPLACED)
def test_g4_an_operator_becomes_a_cheaper_one(case: str) -> None:
    fn, left = REPLACED[case]
    graph = of(fn, 2, 4, 3, 3) if case == "batch norm" else of(fn, 3, 4)
    after = replace_operators(graph)
    assert {name: count for name, count in kinds(after).items() if name != "constant"} == left
    np.testing.assert_allclose(answers(after), answers(graph), rtol=1e-9, atol=1e-12)
    assert flops(after) <= flops(graph)
    assert parameters(after) <= parameters(fold_constants(graph))


def test_linear_layers_with_nothing_between_are_one_bias_and_all() -> None:
    graph = of(lambda x: (x @ A + ONES) @ A + ONES, 3, 4)
    after = optimise_for_inference(graph)
    assert kinds(after) == {"constant": 2, "gemm": 1}
    np.testing.assert_allclose(answers(after), answers(graph), rtol=1e-9)


@pytest.mark.capability("G4")
def test_g4_batch_norm_has_half_the_parameters_as_scale_and_shift() -> None:
    net = nn.BatchNorm2d(16)
    graph = model(net, 2, 16, 3, 3)
    held = sum(value.size for value in weights_of(net).values())
    assert (held, parameters(replace_operators(graph))) == (64, 32)
