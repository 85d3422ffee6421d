"""BatchNorm goes into the weights beside it, as its definition says, and stays where that would change the meaning."""

import numpy as np
import pytest

from coterie.compute import nn, ops
from coterie.compute.passes.inference import fold_batch_norm, optimise_for_inference, optimise_for_integers
from tests.compute.passes.graphs import GRAPHS, held, kinds, model, of, weights_of


@pytest.mark.capability("G2")
def test_g2_batch_norm_goes_into_the_weights_beside_it() -> None:
    after = optimise_for_inference(GRAPHS["batch norm"]())
    left = kinds(after)
    assert left["conv"] == 2 and left["gemm"] == 2
    assert not {"multiply", "add", "subtract", "divide", "sqrt", "transpose"} & left.keys()


@pytest.mark.capability("G2")
def test_g2_a_convolution_with_its_batch_norm_has_the_weights_that_the_definition_gives() -> None:
    """W' = W gamma / sqrt(variance + epsilon), b' = beta + (b - mean) gamma / sqrt(variance + epsilon)."""
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    w = weights_of(net)
    graph = of(lambda x: net(held(w), x), 1, 2, 4, 4)
    after = fold_batch_norm(graph)
    made = after.producers()
    (conv,) = (node for node in after.nodes if node.primitive == "conv")
    weights, bias = (made[value].attributes["value"] for value in conv.inputs[1:])
    scale = w["1.weight"] / np.sqrt(w["1.running_var"] + 1e-5)
    np.testing.assert_allclose(weights, w["0.weight"] * scale[:, None, None, None], rtol=1e-12)
    np.testing.assert_allclose(bias, w["1.bias"] + (w["0.bias"] - w["1.running_mean"]) * scale, rtol=1e-12)


@pytest.mark.capability("G2")
def test_a_shift_before_padding_stays_and_a_scale_does_not() -> None:
    """The border is padded with 0 and not with the shift."""
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3, padding=1))
    left = kinds(optimise_for_inference(model(net, 2, 3, 5, 5)))
    assert (left["add"], left["multiply"]) == (1, 1)
    bare = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3))
    assert not {"add", "multiply"} & kinds(optimise_for_inference(model(bare, 2, 3, 5, 5))).keys()


def test_for_integers_scales_stay_before_a_product_and_go_into_the_one_behind() -> None:
    """What they bring to one size is quantised with one range."""
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2))
    left = kinds(optimise_for_integers(model(net, 2, 3, 5, 5)))
    assert (left["multiply"], left["add"], left["conv"]) == (1, 1, 1)


@pytest.mark.parametrize("scale", [np.inf, np.nan, 1e30])
def test_what_would_leave_the_range_of_the_weights_is_not_folded(scale: float) -> None:
    w = np.full((1, 1, 1, 1), 1e20, np.float32)
    graph = of(lambda x: ops.conv2d(x, w) * np.float32(scale), 1, 1, 2, 2, dtype="float32")
    assert kinds(fold_batch_norm(graph))["multiply"] == 1


def test_what_is_read_twice_is_not_folded_into() -> None:
    assert kinds(optimise_for_inference(GRAPHS["read twice"]()))["multiply"] == 1
