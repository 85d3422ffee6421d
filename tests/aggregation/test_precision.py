"""bfloat16 in an experiment: what a plan computes in it, what stays float32, and what it excludes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import Algorithm, FedAvg, FedNova, FedProx, FedSGD, Moon, Scaffold
from coterie.aggregation.horizontal.algorithm import ClientPart, Objective
from coterie.aggregation.plan.strategies import strategies
from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.optim import Optimizer, adam, clipped, sgd
from coterie.compute.training import accumulate
from coterie.errors import ExperimentError
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate_full

ROWS, CLASSES = 48, 3
CENTRES = np.random.Generator(np.random.PCG64(9)).normal(size=(CLASSES, 6))
MODEL = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))
TOLERANCE = 4e-2
"""Of weights after a few steps: bfloat16 has 8 significant bits."""


def rows(seed: int) -> dict[str, Any]:
    generator = np.random.Generator(np.random.PCG64(seed))
    label = generator.integers(0, CLASSES, ROWS).astype(np.int32)
    return {"x": (CENTRES[label] + 0.3 * generator.normal(size=(ROWS, 6))).astype(np.float32), "y": label}


def experiment(**changes: Any) -> Experiment:
    usual: dict[str, Any] = {
        "name": "halves",
        "model": MODEL,
        "schema": DataSchema((Feature(name="x", shape=(6,)),), Label(name="y", low=0, high=CLASSES - 1)),
        "loss": softmax_cross_entropy,
        "optimizer": sgd(0.1),
        "batch_size": 8,
        "rounds": RoundPolicy(rounds=2, cohort=2),
        "secure_aggregation": False,
    }
    return Experiment(**usual | changes)


def trained(engine: str = "threads", **changes: Any) -> dict[str, Any]:
    result = simulate_full(experiment(**changes), [rows(seed) for seed in range(2)], engine=engine)
    assert result.history.reason == "completed"
    return dict(result.weights)


RULES: dict[str, tuple[Algorithm, Optimizer]] = {
    "fedavg": (FedAvg(), adam(0.02)),
    "fedprox": (FedProx(0.1), sgd(0.1, momentum=0.9)),
    "clipped": (FedAvg(), accumulate(clipped(sgd(0.3), 0.2), 2)),
    "scaffold": (Scaffold(clients=2), sgd(0.1)),
    "moon": (Moon(1.0, 0.5), sgd(0.1)),
    "fedsgd": (FedSGD(), sgd(0.1)),
}


# Methods that count steps exclude float16, whose steps may be skipped.
STEPS = [("bfloat16", rule) for rule in RULES] + [
    ("float16", rule) for rule in RULES if rule not in ("scaffold", "fedsgd")
]


@pytest.mark.parametrize(("precision", "rule"), STEPS)
def test_a_step_in_half_precision_follows_the_step_in_float32(precision: str, rule: str) -> None:
    algorithm, optimizer = RULES[rule]
    chosen: dict[str, Any] = {"algorithm": algorithm, "optimizer": optimizer}
    whole, half = trained(**chosen), trained(precision=precision, **chosen)
    for name, expected in whole.items():
        assert half[name].dtype == np.float32
        np.testing.assert_allclose(half[name], expected, rtol=0, atol=TOLERANCE)
    assert any((half[name] != expected).any() for name, expected in whole.items())


def near_the_round(losses: Array, context: Objective) -> Array:
    """The loss, and how far the predictions are from those of the round's model."""
    apart = context.prediction - context.predict({name: context.base[name] for name in context.params})
    return losses + xp.sum(apart * apart, axis=1)


OTHER_WEIGHTS = {
    "the model's representations": Moon(1.0, 0.5),
    "its predictions": Algorithm(name="near", parameters={}, client=ClientPart(objective=near_the_round)),
}


def train_file(**changes: Any) -> onnx.GraphProto:
    """The graph of a step, with the types of its values."""
    return onnx.shape_inference.infer_shapes(
        onnx.load_from_string(compile_plan(experiment(**changes)).plan.graphs["train"])
    ).graph


def products(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type in ("MatMul", "Gemm")]


@pytest.mark.parametrize("what", OTHER_WEIGHTS)
def test_passes_at_other_weights_are_in_float16_too(what: str) -> None:
    graph = train_file(precision="float16", algorithm=OTHER_WEIGHTS[what])
    dtypes = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
    found = products(graph)
    assert len(found) > len(products(train_file(precision="float16")))
    assert {dtypes[node.output[0]] for node in found} == {onnx.TensorProto.FLOAT16}
    casts = {node.output[0] for node in graph.node if node.op_type == "Cast"}
    rounded = {one for one in casts if dtypes[one] == onnx.TensorProto.FLOAT16}
    read = {node.input[0] for node in graph.node if node.output[0] in rounded}
    assert {f"base/{name}" for name in ("0.weight", "0.bias")} <= read
    if what == "the model's representations":
        assert {f"round_input/begin/{name}" for name in ("0.weight", "0.bias")} <= read


@pytest.mark.parametrize("what", OTHER_WEIGHTS)
def test_passes_at_other_weights_are_in_bfloat16_too(what: str) -> None:
    """Each operand of a product is what is left of a number when its lower bits are taken away."""
    graph = train_file(precision="bfloat16", algorithm=OTHER_WEIGHTS[what])
    makers = {output: node for node in graph.node for output in node.output}

    def maker(tensor: str) -> str:
        node = makers.get(tensor)
        if node is not None and node.op_type in ("Transpose", "Reshape"):
            return maker(node.input[0])
        return "an input" if node is None else node.op_type

    found = products(graph)
    assert len(found) > len(products(train_file(precision="bfloat16")))
    assert {maker(tensor) for node in found for tensor in node.input[:2]} == {"Sub"}
    # The own representation is part of the own prediction, as it is in float32.
    assert len(found) == len(products(train_file(algorithm=OTHER_WEIGHTS[what])))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_moon_follows_float32_over_rounds_in_which_clients_have_a_last_model(precision: str) -> None:
    changes: dict[str, Any] = {"algorithm": Moon(1.0, 0.5), "rounds": RoundPolicy(rounds=4, cohort=2)}
    whole, half = trained(**changes), trained(precision=precision, **changes)
    for name, expected in whole.items():
        np.testing.assert_allclose(half[name], expected, rtol=0, atol=2 * TOLERANCE)
        assert (half[name] != expected).any()


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_engines_agree_on_half_precision(precision: str) -> None:
    changes: dict[str, Any] = {"precision": precision, "optimizer": sgd(0.1, momentum=0.9)}
    one, other = trained(**changes), trained("batched", **changes)
    for name, expected in one.items():
        np.testing.assert_allclose(other[name], expected, rtol=0, atol=TOLERANCE / 4)


def steep_loss(prediction: Array, label: Array) -> Array:
    return 15_000.0 * softmax_cross_entropy(prediction, label)


def test_a_step_in_float16_that_overflows_is_skipped_and_the_rest_of_the_round_counts() -> None:
    """A gradient of 16 times 15 000 is more than float16 holds, until the scale has halved."""
    steep: dict[str, Any] = {
        "loss": steep_loss,
        "optimizer": sgd(1e-5),
        "batch_size": 1,
        "rounds": RoundPolicy(rounds=1, cohort=2),
    }
    first = compile_plan(experiment(**steep)).initial
    after = trained(precision="float16", max_steps=20, **steep)
    assert all(np.isfinite(value).all() for value in after.values())
    assert any((after[name] != first[name]).any() for name in after)
    # A training without any other step has diverged, and says so.
    wanted = experiment(precision="float16", max_steps=1, **steep)
    (record,) = simulate_full(wanted, [rows(0), rows(1)]).history.rounds
    assert (record.state, record.diverged) == ("abandoned", 2)


def test_rows_that_overflow_float16_spoil_their_own_steps_alone() -> None:
    clients = [rows(0), rows(1)]
    clients[0]["x"][5] = 70_000.0
    done = simulate_full(experiment(precision="float16"), clients)
    assert [record.state for record in done.history.rounds] == ["committed", "committed"]
    assert all(np.isfinite(record.metrics["loss"]) for record in done.history.rounds if record.metrics)
    assert all(np.isfinite(value).all() for value in done.weights.values())


@dataclass(frozen=True)
class Joined(nn.Module):
    """A model of two features; what it makes of them is also kept small, beside the loss."""

    def specs(self) -> dict[str, nn.ParameterSpec]:
        return dict(MODEL.specs())

    def __call__(self, params: Mapping[str, Array], x: Any, mode: nn.Mode = nn.EVAL) -> Array:
        output = MODEL(params, xp.concat([x["left"], x["right"]], axis=1), mode)
        if mode.penalise is not None:
            mode.penalise(0.01 * xp.sum(output * output, axis=1))
        return output


def test_several_features_and_terms_beside_the_loss_are_computed_in_bfloat16_too() -> None:
    schema = DataSchema(
        (Feature(name="left", shape=(2,)), Feature(name="right", shape=(4,))), Label(name="y", low=0, high=CLASSES - 1)
    )
    clients = [rows(seed) for seed in range(2)]
    halves = [{"left": one["x"][:, :2], "right": one["x"][:, 2:], "y": one["y"]} for one in clients]
    whole, half = (
        simulate_full(experiment(model=Joined(), schema=schema, precision=each), halves).weights
        for each in ("float32", "bfloat16")
    )
    for name, expected in whole.items():
        np.testing.assert_allclose(half[name], expected, rtol=0, atol=TOLERANCE)
        assert (half[name] != expected).any()


def test_evaluation_and_inference_are_those_of_float32_and_the_plan_says_what_trains() -> None:
    whole, half = compile_plan(experiment()).plan, compile_plan(experiment(precision="bfloat16")).plan
    assert {name: half.graphs[name] for name in ("eval", "infer")} == {
        name: whole.graphs[name] for name in ("eval", "infer")
    }
    assert half.graphs["train"] != whole.graphs["train"]
    assert [
        s["parameters"]["precision"]
        for s in (*strategies(whole.manifest), *strategies(half.manifest))
        if s["kind"] == "training"
    ] == ["float32", "bfloat16"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precision": "float8"}, "precision must be one of float32, bfloat16, float16, not 'float8'"),
        ({"precision": 16}, "precision must be 'float32', 'bfloat16' or 'float16'"),
        ({"precision": "float16", "algorithm": Scaffold(clients=2)}, "SCAFFOLD needs optim.sgd"),
        ({"precision": "float16", "algorithm": FedNova()}, "FedNova needs optim.sgd"),
        (
            {
                "precision": "bfloat16",
                "privacy": ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=100),
                "rounds": RoundPolicy(rounds=2, cohort=2, weight_cap=1, evaluate_every=0),
            },
            "precision is incompatible with ExampleLevel",
        ),
        (
            {
                "precision": "bfloat16",
                "model": nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)),
            },
            "would be rounded to bfloat16",
        ),
    ],
)
def test_what_bfloat16_excludes_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        compile_plan(experiment(**changes))
