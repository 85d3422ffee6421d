"""Passes for inference: each keeps the meaning, can be repeated without effect, makes nothing dearer, and is refused on
graphs that train.
"""

from collections.abc import Callable

import numpy as np
import pytest

from coterie.compute import nn
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph
from coterie.compute.nn.zoo import gru, transformer
from coterie.compute.passes.cost import flops
from coterie.compute.passes.inference import (
    INFERENCE_PASSES,
    bind_weights,
    fold_constants,
    in_float16,
    optimise_for_inference,
    optimise_for_integers,
)
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.errors import GraphRefused, InputError
from tests.compute.passes.graphs import GRAPHS, answers, held, kinds, model, numbers, weights_of

PASSES = {**INFERENCE_PASSES, "all": optimise_for_inference, "all for integers": optimise_for_integers}


@pytest.mark.capability("G2", "G3", "G4", "G5", "G6")
@pytest.mark.parametrize("case", GRAPHS)
@pytest.mark.parametrize("name", PASSES)
def test_a_pass_keeps_the_meaning_and_makes_nothing_dearer(name: str, case: str) -> None:
    graph, run = GRAPHS[case](), PASSES[name]
    after = run(graph)
    np.testing.assert_allclose(answers(after), answers(graph), rtol=1e-9, atol=1e-9)
    assert list(after.inputs) == list(graph.inputs) and list(after.outputs) == list(graph.outputs)
    assert [v.type for v in after.outputs.values()] == [v.type for v in graph.outputs.values()]
    assert flops(after) <= flops(graph)
    assert run(after) is after


@pytest.mark.parametrize("make", [transformer, gru])
def test_models_over_tokens_keep_their_answers(make: Callable[..., nn.Module]) -> None:
    module = make(vocabulary=11, width=8)
    weights = held(module.init(0))
    graph = trace_named(lambda given: {"y": module(weights, given["x"])}, {"x": TensorSpec((2, 5), "int32")})
    x = np.random.default_rng(0).integers(0, 11, (2, 5)).astype(np.int32)
    before = interpret(graph, {"x": x})["y"]
    after = optimise_for_inference(graph)
    np.testing.assert_allclose(interpret(after, {"x": x})["y"], before, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(interpret(in_float16(after), {"x": x})["y"], before, atol=0.02)
    assert flops(after) <= flops(graph)


def _training(name: str) -> Graph:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))
    w = weights_of(net)
    specs = {"x": TensorSpec((2, 2, 4, 4), "float64"), "w": TensorSpec(w["0.weight"].shape, "float64")}

    def loss(weight: Array, x: Array) -> Array:
        return cnp.sum(net({**held(w), "0.weight": weight}, x) ** 2)

    def step(given: GraphInputs) -> dict[str, Array]:
        match name:
            case "an update":
                return {"next/w": given["w"] * 0.5}
            case "a gradient":
                return {"g": grad(loss)(given["w"], given["x"])}
            case _:
                return {"y": net({**held(w), "0.weight": given["w"]}, given["x"], nn.Mode(training=True))}

    return trace_named(step, specs)


@pytest.mark.capability("G2", "G3")
@pytest.mark.parametrize("run", [*PASSES.values(), in_float16], ids=[*PASSES, "float16"])
@pytest.mark.parametrize("sign", ["an update", "a gradient", "statistics of the batch"])
def test_g2_g3_graphs_that_train_are_refused(run: Callable[[Graph], Graph], sign: str) -> None:
    with pytest.raises(GraphRefused, match="the graph trains") as refused:
        run(_training(sign))
    assert refused.value.reason == "training_graph"
    assert "test_inference.py" in refused.value.message or sign == "an update" or "normalis" in refused.value.message


@pytest.mark.parametrize(
    "module", [nn.LayerNorm(4), nn.RMSNorm(4), nn.GroupNorm(2, 4), nn.InstanceNorm(4), nn.BatchNorm1d(4)]
)
def test_normalisation_of_single_examples_is_no_training(module: nn.Module) -> None:
    shape = (2, 4, 3, 3) if isinstance(module, nn.GroupNorm | nn.InstanceNorm) else (3, 4)
    graph = model(module, *shape)
    np.testing.assert_allclose(answers(optimise_for_inference(graph)), answers(graph), rtol=1e-9, atol=1e-9)


@pytest.mark.capability("G3")
def test_g3_what_depends_on_constants_alone_is_one_constant() -> None:
    a, b = numbers(3, 3), numbers(3, seed=1)
    graph = bind_weights(
        trace_named(
            lambda given: {"y": given["x"] @ (cnp.tanh(given["a"]).T * given["b"])},
            {name: TensorSpec(shape, "float64") for name, shape in (("x", (2, 3)), ("a", (3, 3)), ("b", (3,)))},
        ),
        {"a": a, "b": b},
    )
    after = fold_constants(graph)
    assert kinds(after) == {"constant": 1, "matmul": 1}
    (held,) = (node.attributes["value"] for node in after.nodes if node.primitive == "constant")
    np.testing.assert_array_equal(held, np.tanh(a).T * b)
    assert fold_constants(after) is after


def test_weights_are_bound_by_name_and_type() -> None:
    graph = trace_named(
        lambda given: {"y": given["x"] * given["w"]},
        {"x": TensorSpec((2,), "float32"), "w": TensorSpec((2,), "float32")},
    )
    with pytest.raises(InputError, match="no input v"):
        bind_weights(graph, {"v": np.ones(2, np.float32)})
    with pytest.raises(InputError, match=r"'w' is float32\[2\], got float64\[2\]"):
        bind_weights(graph, {"w": np.ones(2)})
    assert list(bind_weights(graph, {"w": np.ones(2, np.float32)}).inputs) == ["x"]
