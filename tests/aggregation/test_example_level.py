"""Example-level privacy in the plan: what a step computes, what it is fed, what it costs, and what is refused."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import FedProx, FedSGD, Moon, Scaffold
from coterie.aggregation.plan.check import check_manifest
from coterie.aggregation.plan.manifest import METRICS, Manifest
from coterie.aggregation.plan.private_steps import SLACK, PrivateSteps, StepNoise
from coterie.aggregation.promises.claims import claim_of
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork, TrainOptions
from coterie.client_sdk.device.trainers.plan import PlanTrainer, step_feeds
from coterie.compute.array import Array
from coterie.compute.nn import BatchNorm1d, Dropout, Linear, ReLU, Sequential, Tanh
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.optim import adam, sgd
from coterie.compute.runtime.executable import Executable
from coterie.errors import ExperimentError, PlanRefused
from coterie.protocol.privacy import ExampleLevel, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

LEVEL = ExampleLevel(clip=0.7, delta=1e-5, noise_multiplier=0.9, rows=50)
LINEAR = Experiment(
    name="rows",
    model=Sequential(Linear(4, 3)),
    schema=DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2)),
    loss=softmax_cross_entropy,
    optimizer=sgd(0.5),
    rounds=RoundPolicy(rounds=4, cohort=3, weight_cap=1, evaluate_every=0),
    batch_size=8,
    privacy=LEVEL,
)
DEEP = replace(LINEAR, model=Sequential(Linear(4, 6), Tanh(), Linear(6, 5), ReLU(), Linear(5, 3)), optimizer=sgd(1.0))
TASK = LocalTask(experiment="exp", round=1, seed=7)
Arrays = dict[str, NDArray[Any]]


def rows(count: int, seed: int = 0) -> Arrays:
    generator = np.random.default_rng(seed)
    return {
        "x": (3 * generator.normal(size=(count, 4))).astype(np.float32),
        "y": generator.integers(0, 3, count).astype(np.int32),
    }


def work_on(plan: CompiledPlan, data: Arrays, options: TrainOptions | None = None) -> LocalWork:
    return LocalWork(plan=plan.plan, task=TASK, weights=plan.initial, rows=data, options=options or TrainOptions())


@cache
def compiled(name: str) -> tuple[CompiledPlan, Executable]:
    experiments = {
        "linear": LINEAR,
        "adam": replace(LINEAR, optimizer=adam(0.1)),
        "deep": DEEP,
        "dropout": replace(LINEAR, model=Sequential(Linear(4, 6), Dropout(0.4), Linear(6, 3))),
        "proximal": replace(LINEAR, algorithm=FedProx(0.5)),
    }
    plan = compile_plan(experiments[name])
    return plan, Executable(plan.plan.graphs["train"])


def step(name: str, weights: Arrays, batch: Arrays, noise: Arrays | None = None, active: float = 1.0) -> Arrays:
    """One step of the train graph from fresh state; the batch is padded with weight 0."""
    plan, executable = compiled(name)
    count = len(batch["x"])
    size = plan.plan.manifest.training.batch_size
    feeds: Arrays = {}
    for tensor in plan.plan.manifest.stage("train").inputs:
        match tensor.source:
            case "state" | "model":
                feeds[tensor.name] = weights[tensor.key]
            case "active":
                feeds[tensor.name] = np.array([active], np.float32)
            case "hyper":
                feeds[tensor.name] = np.array([plan.plan.manifest.hyper[tensor.key]], np.float32)
            case "noise":
                given = (noise or {}).get(tensor.key, np.zeros(tensor.shape))
                feeds[tensor.name] = np.rint(given / noise_terms(plan.plan.manifest).grid).astype(np.int32)
            case "random":
                feeds[tensor.name] = np.random.default_rng(5).random(tensor.shape, np.float32)
            case "batch" if tensor.key == "sample_weight":
                feeds[tensor.name] = (np.arange(size) < count).astype(np.float32)
            case "batch":
                feeds[tensor.name] = np.zeros(tensor.shape, tensor.dtype)
                feeds[tensor.name][:count] = batch[tensor.key]
            case _:
                feeds[tensor.name] = np.zeros(tensor.shape, tensor.dtype)
    found = dict(executable.run(feeds))
    return {key.removeprefix("next/"): value for key, value in found.items()}


def noise_terms(manifest: Manifest) -> StepNoise:
    """What the host draws for a step of a plan all of whose weights are trained."""
    training = manifest.training
    assert training.private is not None
    return training.private.noise(batch=training.batch_size, length=manifest.layout.size)


def noise_of(name: str, seed: int = 3) -> Arrays:
    """In units of the gradient, for every weight."""
    generator = np.random.default_rng(seed)
    inputs = compiled(name)[0].plan.manifest.stage("train").from_source("noise")
    return {tensor.key: generator.normal(size=tensor.shape) for tensor in inputs}


def by_loop(weights: Arrays, batch: Arrays, clip: float) -> Arrays:
    """The sum of clipped gradients of a linear softmax classifier, row by row, in float64."""
    w, b = weights["0.weight"].astype(np.float64), weights["0.bias"].astype(np.float64)
    total = {"0.weight": np.zeros_like(w), "0.bias": np.zeros_like(b)}
    for x, y in zip(batch["x"].astype(np.float64), batch["y"], strict=True):
        logits = w @ x + b
        p = np.exp(logits - logits.max())
        d = p / p.sum() - np.eye(3)[y]
        gradient = {"0.weight": np.outer(d, x), "0.bias": d}
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        if np.isfinite(norm):
            for key, value in gradient.items():
                total[key] += value * min(1.0, clip / norm)
    return total


@pytest.mark.parametrize("name", ["linear", "adam"])
@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_the_step_is_the_loop_over_rows_with_the_noise_given(name: str, count: int) -> None:
    weights, batch, noise = dict(compiled(name)[0].initial), rows(count), noise_of(name)
    found = step(name, weights, batch, noise)
    total = by_loop(weights, batch, LEVEL.clip)
    for key, weight in weights.items():
        gradient = (total[key] + noise[key]) / LINEAR.batch_size
        if name == "adam":
            # Its first step: both moments are corrected to the gradient and its square.
            gradient = 0.2 * gradient / (np.abs(gradient) + 1e-8)
        np.testing.assert_allclose(found[f"shared/{key}"], weight - 0.5 * gradient, rtol=2e-5, atol=2e-6)


def test_an_inactive_step_changes_no_bit_and_an_empty_batch_is_noise_alone() -> None:
    for name in ("adam", "dropout", "proximal"):
        weights, noise = dict(compiled(name)[0].initial), noise_of(name)
        still = step(name, weights, rows(6), noise, active=0.0)
        assert all(np.array_equal(still[f"shared/{key}"], value) for key, value in weights.items())
        assert all(not value.any() for key, value in still.items() if not key.startswith("shared/"))
    weights, noise = dict(compiled("linear")[0].initial), noise_of("linear")
    empty = step("linear", weights, rows(0), noise)
    for key, value in weights.items():
        np.testing.assert_allclose(empty[f"shared/{key}"], value - 0.5 * noise[key] / 8, rtol=1e-6, atol=1e-7)


BAD = [np.nan, np.inf, -np.inf, 1e38, 1e25]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1 << 30),
    count=st.integers(1, 20),
    size=st.sampled_from([1e-20, 1e-3, 1.0, 30.0, 1e4, 1e12]),
    bad=st.none() | st.sampled_from(BAD),
    others_bad=st.booleans(),
)
def test_one_row_moves_the_noiseless_sum_by_the_clip_at_most(
    seed: int, count: int, size: float, bad: float | None, others_bad: bool
) -> None:
    """Whatever the rows hold, and whatever weights: add one row, take it away, or look at it alone."""
    generator = np.random.default_rng(seed)
    plan = compiled("deep")[0]
    weights = {
        key: (generator.normal(size=value.shape) * generator.choice([0.1, 1.0, 20.0])).astype(np.float32)
        for key, value in plan.initial.items()
    }
    batch = rows(count, seed)
    batch["x"][0] *= np.float32(size)
    if bad is not None:
        batch["x"][0, generator.integers(4)] = bad
    if others_bad and count > 1:
        batch["x"][1] = np.nan
    without = {key: value[1:] for key, value in batch.items()}
    after, before = step("deep", weights, batch), step("deep", weights, without)
    square = 0.0
    for key in weights:
        assert np.isfinite(after[f"shared/{key}"]).all()
        square += float(((after[f"shared/{key}"].astype(np.float64) - before[f"shared/{key}"]) ** 2).sum())
    # Weights of float32 that are moved by lr / expected = 1 / 8 lose what is below their last place.
    place = 8 * np.sqrt(sum(float((np.spacing(np.abs(w) + 1) ** 2).sum()) for w in weights.values()))
    assert np.sqrt(square) * 8 <= LEVEL.clip * (1 + SLACK) + place


def test_what_leaves_says_nothing_of_metrics_rows_or_weights() -> None:
    plan = compiled("linear")[0]
    for count in (3, 300):
        result = PlanTrainer().train(work_on(plan, rows(count)))
        assert not result.sections[METRICS].any()
        assert (result.weight, result.steps) == (1, plan.plan.manifest.training.max_steps)


def test_noise_is_fresh_at_every_step_and_not_in_the_task() -> None:
    plan, data = compiled("linear")[0], rows(60)
    inputs = plan.plan.manifest.stage("train").from_source("noise")

    def noises(options: TrainOptions) -> NDArray[Any]:
        feeds = step_feeds(work_on(plan, data, options))
        return np.stack([np.concatenate([fed[tensor.name].ravel() for tensor in inputs]) for fed in feeds])

    first, again = noises(TrainOptions()), noises(TrainOptions())
    assert len(first) == plan.plan.manifest.training.max_steps
    everything = np.concatenate([first, again]).ravel()
    assert len(np.unique(everything)) > 0.99 * len(everything)
    fixed = TrainOptions(entropy=lambda count: bytes(count))
    assert np.array_equal(noises(fixed), noises(fixed))
    assert not np.array_equal(noises(fixed), first)


def test_noise_has_the_deviation_that_the_plan_states_and_batches_its_rate() -> None:
    plan = compile_plan(replace(LINEAR, max_steps=400, epochs=60))
    private, data = plan.plan.manifest.training.private, rows(200)
    assert private is not None and private.rate(200) == 8 / 200 and private.rate(10) == 8 / 50
    drawn: list[NDArray[Any]] = []
    sizes: list[float] = []
    options = TrainOptions(entropy=lambda count: bytes([7] * count))
    for fed in step_feeds(work_on(plan, data, options)):
        drawn.append(fed["random/noise/0.weight"].ravel())
        sizes.append(float(fed["batch/sample_weight"].sum()))
        assert fed["batch/x"].shape == (plan.plan.manifest.training.batch_size, 4)
    terms = noise_terms(plan.plan.manifest)
    assert np.std(np.concatenate(drawn)) * terms.grid == pytest.approx(0.9 * 0.7, rel=0.05)
    assert np.mean(sizes) == pytest.approx(8, rel=0.1)
    assert len(sizes) == 400


@given(
    clip=st.floats(1e-9, 1e9),
    multiplier=st.floats(1e-9, 1e4),
    batch=st.integers(1, 1 << 31),
    length=st.integers(1, 10**7),
)
def test_noise_is_made_for_the_clip_and_for_moving_to_its_grid(
    clip: float, multiplier: float, batch: int, length: int
) -> None:
    """A sum and its noise stay in range, and the noise is the multiplier times what one row moves on the grid."""
    private = PrivateSteps(clip=clip, noise_multiplier=multiplier, expected=1, rows=1)
    terms = private.noise(batch=batch, length=length)
    assert np.frexp(terms.grid)[0] == 0.5
    assert clip * batch <= terms.grid * 2**30
    assert terms.deviation <= terms.grid * 2**25
    assert terms.deviation >= multiplier * (clip + terms.grid * length**0.5)
    # A finer grid would leave one of the ranges.
    finer = terms.grid / 2
    assert clip * batch > finer * 2**30 or multiplier * (1 + SLACK) * (clip + finer * length**0.5) > finer * 2**25


def test_noise_that_no_whole_number_holds_is_refused_when_the_plan_is_made() -> None:
    level = ExampleLevel(clip=0.7, delta=1e-5, noise_multiplier=1e6, rows=50)
    with pytest.raises(ExperimentError, match="noise multiplier of 1e"):
        compile_plan(replace(LINEAR, model=Sequential(Linear(4, 400), Linear(400, 3)), privacy=level))


def test_the_public_numbers_are_in_the_signed_manifest_and_come_back() -> None:
    manifest = compiled("linear")[0].plan.manifest
    stated = json.loads(manifest.data)["training"]
    assert stated["private"] == {"clip": 0.7, "noise_multiplier": 0.9, "expected": 8, "rows": 50}
    assert stated["max_steps"] == 7 and stated["batch_size"] > 8
    assert Manifest.from_bytes(manifest.data) == manifest
    assert "private" not in json.loads(compile_plan(replace(LINEAR, privacy=None)).plan.manifest.data)["training"]


def test_no_task_can_turn_clip_or_noise_down() -> None:
    assert set(compiled("linear")[0].plan.manifest.hyper) == {"lr"}


def test_epsilon_of_the_mnist_tutorial_through_an_experiment() -> None:
    """z = 1.1, q = 256 / 60000, 14040 steps: 2.379644 by loss distributions, 2.594363 by Rényi divergences."""
    tutorial = replace(
        LINEAR,
        rounds=RoundPolicy(rounds=1, cohort=3, weight_cap=1, evaluate_every=0),
        batch_size=256,
        epochs=60,
        max_steps=14_040,
        privacy=ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.1, rows=60_000),
    )
    claim = claim_of(tutorial, length=15)
    assert claim is not None
    assert claim.claim.epsilon == pytest.approx(2.379644, abs=1e-3)
    assert claim.claim.epsilon_rdp == pytest.approx(2.594363, abs=1e-3)
    assert (claim.trusts, claim.claim.delta) == ("device", 1e-5)


@pytest.mark.parametrize("algorithm", [FedProx(0.1), Scaffold(clients=9), FedSGD(), Moon()], ids=lambda a: a.name)
def test_methods_compile_with_private_steps(algorithm: Any) -> None:
    model = Sequential(Linear(4, 5), Tanh(), Linear(5, 3))
    plan = compile_plan(replace(LINEAR, algorithm=algorithm, model=model))
    result = PlanTrainer().train(work_on(plan, rows(60), TrainOptions(max_steps=2)))
    assert all(np.isfinite(section).all() for section in result.sections.values())


def test_rows_that_see_each_other_are_refused_by_name() -> None:
    model = Sequential(Linear(4, 6), BatchNorm1d(6), Linear(6, 3))
    with pytest.raises(ExperimentError, match="BatchNorm.*ExampleLevel"):
        compile_plan(replace(LINEAR, model=model))


def test_batches_without_room_are_refused() -> None:
    with pytest.raises(ExperimentError, match="max_batch") as refused:
        compile_plan(replace(LINEAR, privacy=LEVEL.but(max_batch=8)))
    assert refused.value.reason == "privacy_invalid"


def changed(**fields: Any) -> Manifest:
    manifest = compiled("linear")[0].plan.manifest
    return replace(manifest, training=replace(manifest.training, **fields))


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (lambda: changed(private=None), "states none"),
        (lambda: changed(max_steps=None), "max_steps alone"),
        (lambda: changed(epochs=2), "max_steps alone"),
        (lambda: replace(compile_plan(replace(LINEAR, privacy=None)).plan.manifest, training=changed().training), "no"),
    ],
    ids=["noise not stated", "steps not stated", "epochs", "no noise"],
)
def test_a_plan_whose_statement_and_graphs_differ_is_refused(manifest: Any, message: str) -> None:
    with pytest.raises(PlanRefused, match=message) as refused:
        check_manifest(manifest())
    assert refused.value.reason in ("plan_private", "plan_wiring")


def test_user_level_privacy_leaves_the_steps_as_they_are() -> None:
    user = replace(LINEAR, privacy=UserLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0))
    assert compile_plan(user).plan.id == compile_plan(replace(LINEAR, privacy=None)).plan.id


def comparing(prediction: Array, label: Array, sample_weight: Array) -> Array:
    return softmax_cross_entropy(prediction, label) * sample_weight


@pytest.mark.parametrize("loss", [comparing, {"one": softmax_cross_entropy, "two": comparing}])
def test_a_loss_that_compares_rows_is_refused(loss: Any) -> None:
    with pytest.raises(ExperimentError, match="compares the rows of a batch"):
        compile_plan(replace(LINEAR, loss=loss))
