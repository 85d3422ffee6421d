"""Running statistics in plans: part of the model version, carried through training like state, averaged as they are,
and used by eval and infer. No optimizer and no proximal term moves them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from plan_kit import stage_of

from coterie import errors
from coterie.aggregation.aggregate import AggregateResult, aggregate_updates
from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.evaluate import evaluate
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import FedAvg, FedProx
from coterie.aggregation.plan.check import check_plan
from coterie.aggregation.server_optimizers import ServerOptimizer, server_sgd
from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.optim import adam, sgd
from coterie.compute.runtime.executable import Executable
from coterie.protocol.canonical import canonical_json, sha256_hex
from coterie.protocol.privacy import LocalLevel, Privacy, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.signing import SigningKey, sign_plan
from coterie.protocol.tensors import encode_tensors, read_file
from coterie.protocol.update import encode_update

Make = Callable[..., Experiment]
MODEL = nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))
BUFFERS = ("1.running_mean", "1.running_var")


def compiled(make_experiment: Make, **changes: Any) -> CompiledPlan:
    return compile_plan(make_experiment(model=MODEL, **changes))


def test_buffers_are_in_the_layout_and_carried_like_state(make_experiment: Make) -> None:
    plan = compiled(make_experiment, optimizer=sgd(0.1, momentum=0.9), algorithm=FedProx())
    manifest = plan.plan.manifest
    assert manifest.buffers == BUFFERS
    assert manifest.layout.names == tuple(MODEL.specs()) == tuple(plan.initial)
    assert manifest.sections[0].length == MODEL.count()
    wiring = {
        graph: {(t.name, t.source) for t in manifest.stage(graph).inputs if t.key in BUFFERS}
        for graph in ("begin", "train", "finish", "eval", "infer")
    }
    held = {f"buffer/{name}" for name in BUFFERS}
    assert wiring["begin"] == wiring["eval"] == wiring["infer"] == {(name, "model") for name in held}
    assert wiring["train"] == {(name, "state") for name in held}
    assert wiring["finish"] == wiring["train"] | {(f"base/{name}", "model") for name in BUFFERS}
    carried = manifest.stage("train").carry
    assert {carried[f"next/{name}"] for name in held} == held
    assert not [t.name for t in manifest.stage("train").inputs if t.role == "optimizer" and "running" in t.name]


@pytest.mark.parametrize(
    "level",
    [UserLevel(clip=1.0, delta=1e-5, epsilon=8.0), LocalLevel(mechanism="gaussian", epsilon=8.0, delta=1e-6)],
    ids=["user", "local"],
)
def test_no_noise_is_made_for_them(make_experiment: Make, level: Privacy) -> None:
    policy = RoundPolicy(rounds=2, cohort=5, weight_cap=1, evaluate_every=0)
    with pytest.raises(errors.ExperimentError, match="'1.running_mean' .BatchNorm.") as caught:
        compiled(make_experiment, rounds=policy, privacy=level)
    assert caught.value.reason == "experiment_combination" and "GroupNorm" in caught.value.message
    assert compiled(make_experiment, rounds=policy).plan.manifest.buffers == BUFFERS


def test_the_same_experiment_gives_the_same_plan(make_experiment: Make) -> None:
    plans = [compiled(make_experiment, algorithm=FedProx(0.1), optimizer=adam()) for _ in range(2)]
    assert plans[0].plan.id == plans[1].plan.id and plans[0].plan.graphs == plans[1].plan.graphs
    assert plans[0].initial_bytes == plans[1].initial_bytes


@pytest.mark.parametrize("algorithm", [FedAvg(), FedProx(5.0)], ids=["fedavg", "fedprox"])
def test_training_moves_them_by_the_batches_alone(
    make_experiment: Make, make_batch: Any, drive: Any, algorithm: Any
) -> None:
    """The first layer stands still (lr 0), so the statistics follow from its outputs in closed form."""
    plan = compiled(make_experiment, optimizer=sgd(0.0, weight_decay=0.5), algorithm=algorithm)
    batches = [make_batch(seed=seed, real=real) for seed, real in ((0, 6), (1, 4), (2, 0))]
    driven = drive(plan.plan, plan.initial, batches)
    mean, variance = np.zeros(5), np.ones(5)
    for batch, real in zip(batches, (6, 4), strict=False):
        hidden = batch["x"][:real] @ plan.initial["0.weight"].T
        mean += 0.1 * (hidden.mean(0) - mean)
        variance += 0.1 * (hidden.var(0, ddof=1) - variance)
    np.testing.assert_allclose(driven.state["buffer/1.running_mean"], mean, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(driven.state["buffer/1.running_var"], variance, rtol=1e-5)
    np.testing.assert_array_equal(driven.state["shared/0.weight"], plan.initial["0.weight"])
    layout = plan.plan.manifest.layout
    sent = layout.unflatten(driven.upload["delta"].astype(np.float32))
    for name in BUFFERS:
        np.testing.assert_array_equal(sent[name], driven.state[f"buffer/{name}"] - plan.initial[name])


def test_a_step_that_does_not_count_leaves_them_whatever_its_rows_hold(
    make_experiment: Make, make_batch: Any, drive: Any
) -> None:
    plan = compiled(make_experiment, optimizer=sgd(0.0))
    batch = make_batch()
    infinite = {**batch, "x": np.full_like(batch["x"], 3e38)}
    driven = drive(plan.plan, plan.initial, [batch, infinite], active=[1.0, 0.0])
    once = drive(plan.plan, plan.initial, [batch])
    for name in BUFFERS:
        assert np.isfinite(once.state[f"buffer/{name}"]).all()
        np.testing.assert_array_equal(driven.state[f"buffer/{name}"], once.state[f"buffer/{name}"])


def test_eval_and_infer_use_the_running_statistics(make_experiment: Make, make_batch: Any) -> None:
    plan = compiled(make_experiment, metrics={}, infer_batch=6)
    random = np.random.default_rng(0)
    version = {name: random.uniform(0.5, 2, value.shape).astype(np.float32) for name, value in plan.initial.items()}
    rows = make_batch()
    logits = MODEL({name: Array(value) for name, value in version.items()}, Array(rows["x"]))
    feeds = {t.name: version[t.key] for t in plan.plan.manifest.stage("infer").from_source("model")}
    output = Executable(plan.plan.graphs["infer"]).run(feeds | {"batch/x": rows["x"]})["output"]
    np.testing.assert_allclose(output, logits.numpy(), rtol=1e-5, atol=1e-6)
    sums = evaluate(plan.plan.graphs, plan.plan.manifest, version, {name: rows[name] for name in ("x", "y")}).means()
    expected = softmax_cross_entropy(logits, Array(rows["y"])).numpy().mean()
    assert sums["loss"] == pytest.approx(expected, rel=1e-5)


def aggregated(
    plan: CompiledPlan,
    folder: Path,
    base: Mapping[str, npt.NDArray[Any]],
    deltas: Sequence[npt.NDArray[Any]],
    weights: Sequence[int],
    server: ServerOptimizer,
    state: Path | None = None,
) -> AggregateResult:
    """The round's job on these deltas."""
    manifest = plan.plan.manifest
    folder.mkdir()
    (folder / "base").write_bytes(encode_tensors(base))
    for index, (weight, delta) in enumerate(zip(weights, deltas, strict=True)):
        update = encode_update(
            task=f"task-{index}",
            plan=manifest.id,
            base=sha256_hex((folder / "base").read_bytes()),
            weight=weight,
            steps=1,
            specs=manifest.sections,
            sections={"delta": delta, "metrics": np.ones(len(manifest.metrics), np.float32)},
        ).data
        (folder / f"update-{index}").write_bytes(update)
    return aggregate_updates(
        manifest,
        base=folder / "base",
        updates=sorted(folder.glob("update-*")),
        server=server,
        server_state=state,
        out=folder / "out",
    )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_server_averages_them_whatever_its_optimizer(
    make_experiment: Make, tmp_path: Path, momentum: float
) -> None:
    plan, weights = compiled(make_experiment), (1, 3)
    layout = plan.plan.manifest.layout
    base, state, velocity = plan.initial, None, np.zeros(layout.size)
    random = np.random.default_rng(0)
    for number in range(2):
        deltas = random.normal(0, 0.05, (2, layout.size)).astype(np.float32)
        result = aggregated(plan, tmp_path / str(number), base, list(deltas), weights, server_sgd(0.5, momentum), state)
        state = None if result.state is None else Path(result.state)
        mean = np.average(deltas.astype(np.float64), 0, weights)
        velocity = momentum * velocity + mean
        after = {name: np.asarray(array) for name, array in read_file(Path(result.weights)).items()}
        moved = layout.flatten({name: after[name] - base[name] for name in layout.names})
        for name, (start, stop) in layout.slices.items():
            expected = mean if name in BUFFERS else 0.5 * velocity
            np.testing.assert_allclose(moved[start:stop], expected[start:stop], rtol=1e-3, atol=1e-6, err_msg=name)
        base = after


def test_one_client_is_central_training(make_experiment: Make, make_batch: Any, drive: Any, tmp_path: Path) -> None:
    """The plan's steps and the round's mean, against a plain loop over the same batches."""
    rule = sgd(0.3, momentum=0.9)
    plan = compiled(make_experiment, optimizer=rule)
    batches = [make_batch(seed=seed, real=real) for seed, real in enumerate((6, 6, 4))]
    driven = drive(plan.plan, plan.initial, batches)
    result = aggregated(plan, tmp_path / "round", plan.initial, [driven.upload["delta"]], [16], server_sgd())
    version = read_file(Path(result.weights))

    params = {name: Array(value) for name, value in plan.initial.items()}
    trained = {name: params.pop(name) for name, spec in MODEL.specs().items() if spec.role == "shared"}
    state = rule.init(trained)
    hyper = {name: Array(np.array([value], np.float32)) for name, value in rule.hyper.items()}
    for batch in batches:
        real = int(batch["sample_weight"].sum())

        def loss(moving: dict[str, Array], batch: Any = batch, real: int = real) -> tuple[Array, dict[str, Array]]:
            prediction, after = nn.forward(MODEL, {**params, **moving}, Array(batch["x"][:real]), nn.train())  # noqa: B023
            return xp.mean(softmax_cross_entropy(prediction, Array(batch["y"][:real]))), after

        (_, after), gradients = value_and_grad(loss, has_aux=True)(trained)
        trained, state = rule.update(gradients, state, trained, hyper, Array(np.ones(1, np.float32)))
        params = after
    for name, value in {**trained, **params}.items():
        np.testing.assert_allclose(version[name], value.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def as_weight(manifest: dict[str, Any], graph: str, name: str) -> None:
    """Call a buffer a weight in one graph."""
    for tensor in stage_of(manifest, graph)["inputs"]:
        if tensor["name"] == f"buffer/{name}":
            tensor["role"] = "shared"


def uncarried(manifest: dict[str, Any]) -> None:
    tensor = next(t for t in stage_of(manifest, "train")["outputs"] if t["key"] == "buffer/1.running_mean")
    tensor["key"] = "buffer/1.spare"


def from_zeros(manifest: dict[str, Any]) -> None:
    tensor = next(t for t in stage_of(manifest, "train")["inputs"] if t["name"] == "buffer/1.running_var")
    tensor["source"] = "zeros"


def renamed(manifest: dict[str, Any]) -> None:
    """A buffer of no model version, in all graphs."""
    text = json.dumps(manifest["stages"]).replace("buffer/1.running_var", "buffer/unknown")
    manifest["stages"] = json.loads(text)
    for stage in manifest["stages"]:
        for tensor in stage["inputs"]:
            if tensor["name"] == "buffer/unknown":
                tensor["key"] = "unknown"


TAMPERED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a weight in eval": (lambda manifest: as_weight(manifest, "eval", "1.running_mean"), "both a weight and a buffer"),
    "a weight in infer": (lambda manifest: as_weight(manifest, "infer", "1.running_var"), "both a weight and a buffer"),
    "not carried": (uncarried, "takes nothing named 'buffer/1.spare'"),
    "from zeros": (from_zeros, "cannot have the role 'buffer' with source 'zeros'"),
    "unknown": (renamed, "has nothing named 'unknown'"),
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_tampering_is_refused(make_experiment: Make, kind: str) -> None:
    """A signed manifest that wires a buffer wrongly is refused before its graphs are looked at."""
    key = SigningKey.generate()
    plan = compiled(make_experiment).plan
    manifest = json.loads(plan.manifest.data)
    change, message = TAMPERED[kind]
    change(manifest)
    data = canonical_json(manifest)
    with pytest.raises(errors.PlanRefused, match=message) as caught:
        check_plan(
            data,
            plan.graphs,
            signature=sign_plan(key, sha256_hex(data)),
            signer=key.public,
            allowed_signers=[key.public],
        )
    assert caught.value.reason == "plan_wiring"


def test_the_untouched_plan_is_accepted(make_experiment: Make) -> None:
    plan = compiled(make_experiment).plan.sign(key := SigningKey.generate())
    checked = check_plan(
        plan.manifest.data, plan.graphs, signature=plan.signature, signer=plan.signer, allowed_signers=[key.public]
    )
    assert checked.manifest.buffers == BUFFERS
