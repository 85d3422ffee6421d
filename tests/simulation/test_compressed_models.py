"""Models that are pruned, taught or quantised while clients train them: what is joined keeps it."""

from typing import Any, cast

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest
from simulation_kit import CLIENTS, experiment, rows

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.horizontal import FedAvg, FedProx, Scaffold
from coterie.aggregation.server_optimizers import server_adam, server_sgd
from coterie.compute import TensorSpec, nn
from coterie.compute.array import Array
from coterie.compute.compress import by_magnitude, distilled, masked, pruned
from coterie.compute.ir import NDArray
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import adam, sgd
from coterie.compute.quant import QuantSettings, deploy, qat, quantise
from coterie.compute.quant.reporting import operators_run
from coterie.errors import ExperimentError
from coterie.protocol.privacy import ExampleLevel, LocalLevel, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import simulate_full

MODEL = mlp((4, 12, 3))
TEST = rows(200, 77)
FEW = RoundPolicy(rounds=2, cohort=4)
PRIVATE = RoundPolicy(rounds=2, cohort=4, weight_cap=1, evaluate_every=0)


def logits(file: bytes, x: NDArray) -> NDArray:
    session: Any = cast(Any, onnxruntime).InferenceSession(file, providers=["CPUExecutionProvider"])
    (put,) = session.get_inputs()
    return np.concatenate([session.run(None, {put.name: x[row : row + 1]})[0] for row in range(len(x))])


def right(file: bytes) -> float:
    return float((logits(file, TEST["x"]).argmax(1) == TEST["y"]).mean())


EXACT: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm": FedAvg()},
    "fedprox": {"algorithm": FedProx(0.1)},
    "scaffold": {"algorithm": Scaffold(clients=6)},
    "fedadam": {"server_optimizer": server_adam(0.05)},
    "momentum everywhere": {"optimizer": sgd(0.1, momentum=0.9), "server_optimizer": server_sgd(0.9, momentum=0.5)},
    "median": {"reducer": "median"},
    "the largest": {"codecs": ("topk:0.3+ef", "float32")},
    "levels at random": {"codecs": ("qsgd:4", "float32")},
}
LOSSY: dict[str, dict[str, Any]] = {
    "secure sums": {"secure_aggregation": True, "rounds": RoundPolicy(rounds=2, cohort=6, min_updates=4)},
    "int8": {"codecs": ("int8", "float32")},
    "sign": {"codecs": ("sign+ef", "float32")},
    "low rank": {"codecs": ("powersgd:2", "float32")},
    "eden": {"codecs": ("eden:4", "float32")},
    "broadcast of 8 bits": {"broadcast": "int8"},
    "noise of each client": {
        "privacy": LocalLevel(mechanism="gaussian", epsilon=8.0, delta=1e-5, clip=1.0),
        "rounds": PRIVATE,
    },
}


@pytest.mark.capability("G12")
@pytest.mark.parametrize("case", [*EXACT, *LOSSY])
def test_masks_survive_aggregation(case: str) -> None:
    masks = by_magnitude(MODEL.init(0), 0.6)
    options = {"rounds": FEW, **EXACT.get(case, LOSSY.get(case, {}))}
    result = simulate_full(experiment(model=pruned(MODEL, masks), **options), CLIENTS)
    assert set(result.weights) >= set(MODEL.specs()) and not any("mask" in name for name in result.weights)
    if case in EXACT:
        for name, mask in masks.items():
            assert (result.weights[name][mask == 0] == 0).all(), f"{name}: not a bit of a pruned weight comes back"
    clean = masked(result.weights, masks)
    # Whatever the version holds for a pruned weight: the model that is handed out is the sparse one.
    plain = MODEL({name: Array(clean[name]) for name in MODEL.specs()}, Array(TEST["x"])).numpy()
    np.testing.assert_allclose(logits(result.infer(best=False), TEST["x"]), plain, atol=2e-5)


@pytest.mark.capability("G12")
def test_clients_learn_from_a_teacher_that_no_version_and_no_exported_model_holds() -> None:
    teacher = mlp((4, 16, 3))
    taught = simulate_full(experiment(model=teacher), CLIENTS).weights
    plan = compile_plan(experiment(model=distilled(MODEL, teacher, taught), rounds=FEW))
    assert plan.plan.manifest.frozen is not None
    assert {tensor.name for tensor in plan.plan.manifest.frozen.layout.tensors} == {
        f"teacher.{name}" for name in taught
    }
    reads = {stage.name: len(stage.from_source("frozen")) for stage in plan.plan.manifest.stages}
    assert reads["train"] == len(taught) and reads["infer"] == reads["eval"] == 0

    def wrong(client: dict[str, NDArray], seed: int) -> dict[str, NDArray]:
        drawn = np.random.default_rng(seed)
        other = (client["y"] + 1) % 3
        return {**client, "y": np.where(drawn.random(len(other)) < 0.5, other, client["y"]).astype(np.int32)}

    noisy = [wrong(client, seed) for seed, client in enumerate(CLIENTS)]
    options: dict[str, Any] = {"optimizer": adam(0.02), "rounds": RoundPolicy(rounds=3, cohort=6)}
    alone = simulate_full(experiment(model=MODEL, **options), noisy)
    student = simulate_full(experiment(model=distilled(MODEL, teacher, taught, weight=4.0), **options), noisy)
    assert set(student.weights) == set(MODEL.specs())
    assert right(student.infer(best=False)) > max(0.9, right(alone.infer(best=False)))


@pytest.mark.capability("G10")
def test_clients_train_a_model_in_levels_and_its_int8_file_serves() -> None:
    model = qat(MODEL, QuantSettings(weight_bits=4))
    result = simulate_full(experiment(model=model), CLIENTS)
    assert (result.weights["0.input_seen"] > 0.9).all(), "running ranges are federated like other statistics"
    file = deploy(model, result.weights, TensorSpec((1, 4)))
    assert operators_run(file)["QGemm"] == 2
    expected = model({name: Array(value) for name, value in result.weights.items()}, Array(TEST["x"])).numpy()
    assert (np.abs(logits(file, TEST["x"]) - expected) > 0.01 * np.abs(expected).max()).mean() < 0.02
    assert right(file) > 0.9
    # What training exported computes the same levels in floats.
    np.testing.assert_allclose(logits(result.infer(best=False), TEST["x"]), expected, atol=1e-4)


@pytest.mark.capability("G9")
def test_a_model_of_an_experiment_is_quantised_by_rows_of_a_client() -> None:
    result = simulate_full(experiment(model=MODEL), CLIENTS)
    plain = result.infer(best=False)
    file = quantise(plain, [{"batch/x": CLIENTS[0]["x"]}])
    assert operators_run(file)["QGemm"] == 2 and right(file) >= right(plain) - 0.02


@pytest.mark.parametrize(
    "level",
    [
        UserLevel(clip=1.0, delta=1e-5, epsilon=10.0),
        ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=60),
    ],
)
def test_running_ranges_are_refused_under_privacy_and_weights_alone_are_not(level: Any) -> None:
    options: dict[str, Any] = {
        "privacy": level,
        "rounds": RoundPolicy(rounds=1, cohort=4, weight_cap=1, evaluate_every=0),
    }
    with pytest.raises(ExperimentError, match=r"activations=None") as refused:
        compile_plan(experiment(model=qat(MODEL), **options))
    assert "input_low" in refused.value.message
    compile_plan(experiment(model=qat(MODEL, QuantSettings(activations=None)), **options))


def test_masks_and_teachers_are_part_of_what_is_signed() -> None:
    def plan_of(model: nn.Module) -> str:
        return compile_plan(experiment(model=model)).plan.id

    masks = [by_magnitude(MODEL.init(0), share) for share in (0.5, 0.6)]
    first, again, other = (plan_of(pruned(MODEL, mask)) for mask in (masks[0], masks[0], masks[1]))
    assert first == again != other
