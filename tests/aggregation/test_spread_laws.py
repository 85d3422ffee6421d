"""A plan's step, cut for several processes, is the step that one makes: over models, methods and optimizers."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import IFCA, Algorithm, FedDyn, FedNova, FedProx, Moon, QFedAvg, Scaffold
from coterie.compute.array import Array
from coterie.compute.nn import Linear, ReLU, Sequential
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.onnx.spread.placement import Unspreadable
from coterie.compute.optim import Optimizer, adam, clipped, sgd
from coterie.compute.runtime.executable import Executable
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from tests.aggregation.test_padding_laws import CASES, ROWS, batch_of, compiled
from tests.compute.spread.in_turn import InTurn

Arrays = dict[str, NDArray[Any]]
STEPS = 3
BOUND = 1e-5
# Its inverse roots make of the rounding of batch statistics, whose gradients cancel, more than the bound.
ILL_CONDITIONED = {("batch norm", "fedprox", "shampoo")}
SHARED = [case for case in CASES if case not in ILL_CONDITIONED]
SCHEMA = DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2))


def feeds_of(plan: CompiledPlan, batch: Any, step: int, *, active: float = 1.0) -> Arrays:
    """What a step is fed in the middle of a training: every state and constant is something."""
    random = np.random.default_rng(step)
    manifest = plan.plan.manifest
    found: Arrays = {}
    for tensor in manifest.stage("train").inputs:
        match tensor.source:
            case "batch":
                found[tensor.name] = batch[tensor.key]
            case "hyper":
                found[tensor.name] = np.array([manifest.hyper[tensor.key]], np.float32)
            case "active":
                found[tensor.name] = np.array([active], np.float32)
            case "random":
                found[tensor.name] = random.random(tensor.shape, np.float32)
            case "noise":
                found[tensor.name] = random.integers(-9, 9, tensor.shape).astype(tensor.dtype)
            case _:
                values = random.normal(0, 0.3, tensor.shape)
                positive = tensor.role in ("optimizer", "buffer")
                found[tensor.name] = (np.abs(values) + 0.1 if positive else values).astype(tensor.dtype)
    return found


def in_turn(plan: CompiledPlan, processes: int) -> InTurn:
    stage = plan.plan.manifest.stage("train")
    batch = [tensor.name for tensor in stage.from_source("batch") if tensor.key != "sample_weight"]
    return InTurn(plan.plan.graphs["train"], batch=batch, processes=processes)


def assert_same_steps(plan: CompiledPlan, batches: list[Any], processes: int) -> InTurn:
    alone, shared = Executable(plan.plan.graphs["train"]), in_turn(plan, processes)
    for step, batch in enumerate(batches):
        feeds = feeds_of(plan, batch, step)
        right, found = alone.run(feeds), shared.run(feeds)
        for name, value in right.items():
            np.testing.assert_allclose(found[name], value, rtol=BOUND, atol=BOUND, err_msg=f"{step} {name}")
    return shared


@pytest.mark.capability("B8")
@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("case", SHARED, ids="-".join)
def test_b8_parts_of_the_rows_make_the_step_of_all(case: tuple[str, str, str], processes: int, make_batch: Any) -> None:
    """The last rows weigh nothing, so that one process of four has nothing but padding."""
    plan = compiled(*case)
    batches = [batch_of(make_batch, case[0], seed=seed, real=ROWS - 2) for seed in range(STEPS)]
    assert_same_steps(plan, batches, processes)


METHODS: dict[str, tuple[Algorithm, Optimizer]] = {
    "scaffold": (Scaffold(clients=4), sgd(0.2)),
    "moon": (Moon(), sgd(0.2, momentum=0.9)),
    "feddyn": (FedDyn(4, 0.2), sgd(0.2)),
    "fednova": (FedNova(), sgd(0.2, momentum=0.9)),
    "q-fedavg": (QFedAvg(), sgd(0.2)),
    "ifca": (IFCA(2), sgd(0.2)),
    "fedprox, clipped": (FedProx(0.5), clipped(adam(0.05), 0.01)),
}


def experiment(**changes: Any) -> Experiment:
    given: dict[str, Any] = {
        "name": "spread",
        "model": Sequential(Linear(4, 8), ReLU(), Linear(8, 3)),
        "schema": SCHEMA,
        "loss": softmax_cross_entropy,
        "optimizer": sgd(0.2),
        "rounds": RoundPolicy(rounds=1, cohort=2, weight_cap=1, evaluate_every=0),
        "batch_size": ROWS,
        **changes,
    }
    return Experiment(**given)


def batches_of(make_batch: Any) -> list[Any]:
    return [make_batch((4,), dtype="float32", seed=seed, real=ROWS - 1) for seed in range(STEPS)]


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_what_they_were(method: str, make_batch: Any) -> None:
    algorithm, optimizer = METHODS[method]
    plan = compile_plan(experiment(algorithm=algorithm, optimizer=optimizer))
    assert_same_steps(plan, batches_of(make_batch), 3)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_half_precision_sums_in_float32_what_was_rounded_row_by_row(precision: str, make_batch: Any) -> None:
    """A product over rows is rounded in each process, so that the sum differs by roundings of half precision."""
    plan = compile_plan(experiment(precision=precision))
    alone, shared = Executable(plan.plan.graphs["train"]), in_turn(plan, 2)
    feeds = feeds_of(plan, batches_of(make_batch)[0], 0)
    if precision == "float16":
        feeds["optimizer/amp.scale"] = np.array([256.0], np.float32)
    right, found = alone.run(feeds), shared.run(feeds)
    for name, value in right.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-2, atol=1e-3, err_msg=name)


def test_rows_that_are_clipped_each_by_itself_are_clipped_alike(make_batch: Any) -> None:
    level = ExampleLevel(clip=0.1, delta=1e-5, noise_multiplier=0.9, rows=50)
    plan = compile_plan(experiment(privacy=level, model=Sequential(Linear(4, 3))))
    count = plan.plan.manifest.training.batch_size
    batches = [make_batch((4,), dtype="float32", seed=seed, rows=count, real=count - 9) for seed in range(STEPS)]
    assert_same_steps(plan, batches, 2)


def test_an_inactive_step_returns_the_state_bit_for_bit(make_batch: Any) -> None:
    plan = compiled("batch norm", "fedprox", "adam")
    feeds = feeds_of(plan, batch_of(make_batch, "batch norm"), 0, active=0.0)
    found = in_turn(plan, 3).run(feeds)
    carry = plan.plan.manifest.stage("train").carry
    assert len(carry) > 8
    for output, taken in carry.items():
        assert found[output].tobytes() == feeds[taken].tobytes(), taken


def compares(prediction: Array, label: Array) -> Array:
    """Each row's loss knows the others' predictions."""
    scores = prediction[:, 0]
    return ((scores[:, None] - scores[None, :]) ** 2).mean(axis=1) + softmax_cross_entropy(prediction, label)


def test_a_loss_that_compares_rows_is_refused_by_the_node(make_batch: Any) -> None:
    plan = compile_plan(experiment(loss=compares))
    with pytest.raises(Unspreadable, match=r"makes 'Sub_\d+' \(Sub\) takes rows of the batch together"):
        in_turn(plan, 2)


def test_more_processes_than_rows_are_refused(make_batch: Any) -> None:
    with pytest.raises(Unspreadable, match="7 processes cannot share a batch of 6 rows") as caught:
        in_turn(compile_plan(experiment()), ROWS + 1)
    assert caught.value.hint == "Use at most 6."


def test_meetings_are_as_few_as_the_sums_need(make_batch: Any) -> None:
    """Gradients and metrics in one; a norm over all gradients and statistics of a batch need their own."""
    models = {"mlp": 1, "conv": 1, "attention": 1, "recurrent": 1, "batch norm": 4}
    assert {model: in_turn(compiled(model, "fedavg", "sgd"), 2).cut.meetings for model in models} == models
