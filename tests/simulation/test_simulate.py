"""The laws of a simulation, on a small experiment."""

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest
from simulation_kit import CLIENTS, SCHEMA, Arrays, Spoils, experiment, rows, same

from coterie.aggregation.aggregate import aggregate_updates
from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.history import History
from coterie.aggregation.horizontal import FedAvg, Scaffold
from coterie.aggregation.horizontal.algorithm import Algorithm, Finish, Finished
from coterie.aggregation.server_optimizers import server_sgd
from coterie.client_sdk.device.trainers.external import ExternalTrainer, FitResult, FitTask, Params
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute.nn import AvgPool2d, BatchNorm2d, Conv2d, Flatten, Linear, ReLU, Sequential
from coterie.compute.nn.zoo import mlp
from coterie.errors import DataError, ExperimentError
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.layout import Layout
from coterie.protocol.rounds import RoundPolicy, Target
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.tensors import read_file
from coterie.protocol.update import encode_update
from coterie.simulation import simulate, simulate_full
from coterie.simulation.assignment import Assignment
from coterie.simulation.population import Population
from coterie.simulation.work import Workplace


def test_the_model_learns_and_every_round_is_told_once() -> None:
    events: list[dict[str, Any]] = []
    result = simulate_full(experiment(), CLIENTS, on_event=lambda event: events.append(dict(event)))
    assert [event["event"] for event in events] == ["round"] * 4 + ["finished"]
    assert events[:4] == result.history.to_dicts()
    values = [value for _, value in result.history.curve("accuracy")]
    assert values[-1] > 0.9 > values[0] - 0.3
    assert all(record.evaluation == "federated" and record.accepted == 4 for record in result.history.rounds)
    assert all(record.bytes_up > 4 * 4 * 67 and record.bytes_down > 0 for record in result.history.rounds)
    session = cast(Any, onnxruntime).InferenceSession(result.infer())
    test = rows(200, 77)
    right = [
        int(np.argmax(session.run(None, {"batch/x": test["x"][i : i + 1]})[0])) == test["y"][i] for i in range(200)
    ]
    assert np.mean(right) > 0.85


def test_the_same_arguments_give_the_same_weights_whatever_the_number_of_threads() -> None:
    results = [simulate_full(experiment(), CLIENTS, workers=threads) for threads in (1, 1, 3)]
    for other in results[1:]:
        assert same(results[0].weights, other.weights)
        assert [r.model for r in results[0].history.rounds] == [r.model for r in other.history.rounds]
    assert not same(results[0].weights, simulate_full(experiment(seed=1), CLIENTS).weights)


def test_a_round_is_the_aggregate_of_its_clients_updates(tmp_path: Path) -> None:
    """One round by hand: train each client, aggregate the files; the simulation commits the same to an ulp."""

    wanted = experiment(rounds=RoundPolicy(rounds=1, cohort=6))
    compiled = compile_plan(wanted)
    (tmp_path / "base").write_bytes(compiled.initial_bytes)
    assignment = Assignment(
        experiment="tiny",
        round=1,
        base=sha256_hex(compiled.initial_bytes),
        hyper={},
        seed=0,
        weight_cap=10_000,
    )
    population = Population(SCHEMA, CLIENTS, wanted.holdout)
    workplace = Workplace(compiled.plan, {}, PlanTrainer())
    paths: list[Path] = []
    for number in reversed(range(6)):
        rows = population.shard(number).train
        trained = workplace.train(number, rows, {}, compiled.initial, assignment)
        update = encode_update(
            task=trained.task,
            plan=compiled.plan.id,
            base=assignment.base,
            weight=trained.weight,
            steps=trained.steps,
            specs=compiled.plan.manifest.sections,
            sections=trained.sections,
        ).data
        assert len(update) == trained.size
        paths.append(tmp_path / f"{number}.update")
        paths[-1].write_bytes(update)
    result = aggregate_updates(
        compiled.plan.manifest,
        base=tmp_path / "base",
        updates=paths,
        server=wanted.server_optimizer,
        server_state=None,
        out=tmp_path / "out",
    )
    expected = read_file(Path(result.weights))
    for name, weights in simulate_full(wanted, CLIENTS).weights.items():
        np.testing.assert_array_max_ulp(weights, expected[name], 1)


def test_central_evaluation_is_on_the_given_rows_and_picks_the_best_version() -> None:
    policy = RoundPolicy(rounds=5, cohort=3, evaluate_every=0)
    result = simulate_full(experiment(evaluation=rows(100, 9), rounds=policy), CLIENTS)
    losses = {record.model: record.metrics["loss"] for record in result.history.rounds}
    assert all(record.evaluation == "central" for record in result.history.rounds)
    assert result.history.best == min(losses, key=lambda model: losses[model])


def test_a_target_stops_early() -> None:
    policy = RoundPolicy(rounds=50, cohort=4, target=Target(metric="accuracy", value=0.8))
    history = simulate(experiment(rounds=policy), CLIENTS)
    assert history.reason == "target_reached" and len(history) < 50


def test_fewer_clients_than_the_cohort_are_all_taken_and_too_few_are_refused() -> None:
    policy = RoundPolicy(rounds=1, cohort=10, min_updates=5)
    assert simulate(experiment(rounds=policy), CLIENTS).rounds[0].accepted == 6
    with pytest.raises(ExperimentError, match="needs 5 updates; the number of clients is 4"):
        simulate(experiment(rounds=policy), CLIENTS[:4])
    with pytest.raises(ExperimentError):
        simulate(experiment(), [])


def test_every_client_is_chosen_about_equally_often() -> None:
    seen = np.zeros(6)

    def fit(params: Params, task: FitTask) -> FitResult:
        seen[[len(c["y"]) for c in CLIENTS].index(len(task.rows["y"]))] += 1
        return params, 1, 1, {}

    model = ExternalModel({"w": (1,)})
    policy = RoundPolicy(rounds=120, cohort=2, evaluate_every=0)
    wanted = Experiment(name="own", model=model, schema=SCHEMA, rounds=policy, holdout=0.0)
    simulate(wanted, CLIENTS, trainer=ExternalTrainer(fit))
    assert seen.sum() == 240 and seen.min() > 20 and seen.max() < 62


def test_data_that_does_not_fit_names_the_client_and_the_row() -> None:
    bad = rows()
    bad["x"][3, 0] = np.nan
    with pytest.raises(DataError, match="client 1.*row 4"):
        simulate(experiment(), [rows(), bad, rows()])


def test_an_external_model_needs_a_trainer() -> None:
    wanted = Experiment(
        name="own",
        model=ExternalModel({"w": (1,)}),
        schema=SCHEMA,
        rounds=RoundPolicy(rounds=1, cohort=1, evaluate_every=0),
    )
    with pytest.raises(ExperimentError, match="need a trainer"):
        simulate(wanted, CLIENTS)


def counting() -> Algorithm:
    """FedAvg whose delta is the number of this client's updates that rounds have counted."""
    plain = FedAvg()

    def state(layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"counted": (1,)}

    def finish(context: Finish) -> Finished:
        count = context.client_state["counted"] + 1.0
        same_everywhere = {name: 0.0 * value + count for name, value in context.base.items()}
        return Finished(sections={"delta": same_everywhere}, client_state={"counted": count})

    return replace(plain, client=replace(plain.client, client_state=state, finish=finish))


def test_client_state_lives_from_round_to_round() -> None:
    policy = RoundPolicy(rounds=3, cohort=6, evaluate_every=0)
    result = simulate_full(experiment(algorithm=counting(), rounds=policy), CLIENTS)
    initial = compile_plan(experiment()).initial
    for name, weights in result.weights.items():
        assert np.allclose(weights - initial[name], 1 + 2 + 3, atol=1e-5)


def test_an_update_that_cannot_be_used_leaves_its_client_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a coordinator, which tells the device that its update was rejected: what is pending with it is dropped."""
    seen: list[Population] = []
    keep = Population.keep

    def kept(self: Population, *given: Any) -> None:
        keep(self, *given)
        seen.append(self)

    monkeypatch.setattr(Population, "keep", kept)
    wanted = experiment(algorithm=Scaffold(clients=2), rounds=RoundPolicy(rounds=1, cohort=2, min_updates=1))
    history = simulate(wanted, [CLIENTS[0], rows(100)], trainer=Spoils(60))
    assert history.rounds[0].state == "committed"
    assert seen[-1].states.keys() == {0} and seen[-1].participation.keys() == {0}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fit_whose_difference_alone_is_too_large_is_left_out(workers: int) -> None:
    """What it returns is finite, so the trainer has nothing to complain of; its update is not."""

    def fit(params: Params, task: FitTask) -> FitResult:
        largest = len(task.rows["y"]) > 50
        value = 3e38 if task.round == 1 else -3e38 if largest else 1e38
        return {"w": np.full(3, value, np.float32)}, 1, 1, {}

    policy = RoundPolicy(rounds=2, cohort=6, min_updates=1, evaluate_every=0)
    wanted = Experiment(
        name="far",
        model=ExternalModel({"w": (3,)}),
        schema=SCHEMA,
        rounds=policy,
        holdout=0.0,
        secure_aggregation=False,
    )
    result = simulate_full(wanted, CLIENTS, workers=workers, trainer=ExternalTrainer(fit))
    assert len(result.history.committed) == 2
    assert result.weights["w"] == pytest.approx(1e38)


def test_server_state_lives_from_round_to_round() -> None:
    policy = RoundPolicy(rounds=3, cohort=6, evaluate_every=0)

    def fit(params: Params, task: FitTask) -> FitResult:
        return {"w": params["w"] + 1}, 1, 1, {}

    wanted = Experiment(
        name="own",
        model=ExternalModel({"w": (1,)}),
        schema=SCHEMA,
        rounds=policy,
        server_optimizer=server_sgd(1.0, momentum=0.5),
    )
    result = simulate_full(wanted, CLIENTS, trainer=ExternalTrainer(fit))
    assert result.weights["w"].tolist() == [1 + 1.5 + 1.75]


@pytest.mark.parametrize("secret", [False, True], ids=["open", "groups"])
def test_centered_clipping_goes_on_from_the_last_aggregate(secret: bool) -> None:
    change = np.array([3, 4], np.float32)

    def fit(params: Params, task: FitTask) -> FitResult:
        return {"w": params["w"] + change}, 1, 1, {}

    wanted = Experiment(
        name="own",
        model=ExternalModel({"w": (2,)}),
        schema=SCHEMA,
        rounds=RoundPolicy(rounds=3, cohort=12, min_updates=12, weight_cap=1, evaluate_every=0),
        reducer="centered_clipping(1)",
        secure_aggregation=SecureAggregation(groups=3) if secret else False,
    )
    result = simulate_full(wanted, CLIENTS * 2, trainer=ExternalTrainer(fit))
    # One step of length 1, one of length 2, one of length 3; from zero each would be of length 1.
    np.testing.assert_allclose(result.weights["w"], (1 + 2 + 3) / 5 * change, rtol=1e-3)


def judged(**changes: Any) -> Experiment:
    policy = RoundPolicy(rounds=3, cohort=4, trusted="5", evaluate_every=0)
    fields: dict[str, Any] = {
        "name": "own",
        "model": ExternalModel({"w": (2,)}),
        "schema": SCHEMA,
        "rounds": policy,
        "reducer": "fltrust",
        "holdout": 0.0,
        **changes,
    }
    return Experiment(**fields)


def test_in_every_round_the_others_are_judged_by_the_trusted_client() -> None:
    """It is told by its rows, of which it has the most; the others overdo it and aim beside, or go the other way."""
    most = max(len(client["y"]) for client in CLIENTS)

    def fit(params: Params, task: FitTask) -> FitResult:
        rows = len(task.rows["y"])
        # Of three others of a round one at least is not among the two that go the other way.
        change = [0.0, 2.0] if rows == most else [9.0, -30.0] if rows in (30, 40) else [30.0, 40.0]
        seen.append(change)
        return {"w": params["w"] + np.array(change, np.float32)}, 1, 1, {}

    seen: list[list[float]] = []
    result = simulate_full(judged(), CLIENTS, trainer=ExternalTrainer(fit))
    assert [record.state for record in result.history] == ["committed"] * 3
    # Three rounds, each as long as the trusted client's change, which is in every one and counts in none.
    assert seen.count([0.0, 2.0]) == 3 and [30.0, 40.0] in seen and [9.0, -30.0] in seen
    np.testing.assert_allclose(result.weights["w"], [3 * 1.2, 3 * 1.6], rtol=1e-5)


def test_a_round_without_the_trusted_update_is_abandoned_and_says_so() -> None:
    wanted = experiment(reducer="fltrust", rounds=RoundPolicy(rounds=3, cohort=4, trusted="5", min_updates=2))
    result = simulate_full(wanted, CLIENTS, trainer=Spoils(int(0.8 * max(len(one["y"]) for one in CLIENTS))))
    assert {(record.state, record.cause) for record in result.history} == {("abandoned", "trusted_missing")}


@pytest.mark.parametrize("name", ["6", "dev_a"])
def test_a_trusted_client_that_there_is_not_is_refused(name: str) -> None:
    policy = RoundPolicy(rounds=3, cohort=4, trusted=name, evaluate_every=0)
    with pytest.raises(ExperimentError, match="whose clients are 0 to 5") as caught:
        simulate(judged(rounds=policy), CLIENTS, trainer=ExternalTrainer(lambda params, task: (params, 1, 1, {})))
    assert caught.value.reason == "trusted_unknown"


def test_a_round_that_diverges_is_abandoned_with_its_cause_and_changes_nothing() -> None:
    def fit(params: Params, task: FitTask) -> FitResult:
        return {"w": params["w"] + np.float32(3e38)}, 1, 1, {}

    wanted = Experiment(
        name="own",
        model=ExternalModel({"w": (1,)}),
        schema=SCHEMA,
        rounds=RoundPolicy(rounds=9, cohort=2, evaluate_every=0),
        server_optimizer=server_sgd(2.0),
    )
    result = simulate_full(wanted, CLIENTS, trainer=ExternalTrainer(fit))
    assert {(r.state, r.cause) for r in result.history.rounds} == {("abandoned", "aggregate_failed")}
    assert result.history.reason == "stalled" and result.weights["w"].tolist() == [0]


def test_int8_updates_take_a_quarter_of_the_bytes_and_still_learn() -> None:
    wide = experiment(model=mlp((4, 4096, 3)))
    full, small = simulate(wide, CLIENTS), simulate(replace(wide, codecs=("int8",)), CLIENTS)
    assert small.rounds[0].bytes_up < 0.4 * full.rounds[0].bytes_up
    assert small.curve("accuracy")[-1][1] > 0.9


def test_every_round_tells_how_the_clients_differ() -> None:
    flipped = {**CLIENTS[0], "y": ((CLIENTS[0]["y"] + 1) % 3).astype(np.int32)}
    history = simulate(experiment(rounds=RoundPolicy(rounds=4, cohort=6)), [flipped, *CLIENTS[1:]])
    found = history.rounds[-1].fairness["accuracy"]
    assert found.clients == 6 and found.worst_decile < 0.2 and found.median > 0.9 and found.deviation > 0.2
    assert [value for _, value in history.curve("fairness.accuracy")][-1] == found.worst_decile


def _versions(history: History) -> set[str | None]:
    compiled = compile_plan(experiment())
    return {sha256_hex(compiled.initial_bytes)} | {record.model for record in history.rounds}


def test_a_folder_keeps_every_version_and_the_last_checkpoint(tmp_path: Path) -> None:
    result = simulate_full(experiment(), CLIENTS, folder=tmp_path / "kept")
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert {f"{record.model}.safetensors" for record in result.history.rounds} < kept
    assert len([name for name in kept if name.endswith(".safetensors")]) == 5
    others = {"checkpoint.json", "run.lock", "states", "rounds.jsonl", "rounds.csv", "rounds.svg"}
    assert kept - {f"{model}.safetensors" for model in _versions(result.history)} == others
    assert not list((tmp_path / "kept" / "states").iterdir())


def test_a_convolution_with_batch_norm_learns() -> None:
    """Bright corners; the model that is measured and exported normalises by the averaged statistics."""

    def pictures(count: int, seed: int) -> Arrays:
        generator = np.random.Generator(np.random.PCG64(seed))
        y = generator.integers(0, 3, count).astype(np.int32)
        x = generator.normal(3, 0.5, (count, 1, 6, 6)).astype(np.float32)
        for index, label in enumerate(y):
            x[index, 0, 3 * (label // 2) : 3 * (label // 2) + 3, 3 * (label % 2) : 3 * (label % 2) + 3] += 2
        return {"x": x, "y": y}

    model = Sequential(
        Conv2d(1, 4, 3, padding=1, bias=False), BatchNorm2d(4), ReLU(), AvgPool2d(3), Flatten(), Linear(16, 3)
    )
    wanted = experiment(
        model=model,
        schema=DataSchema((Feature(name="x", shape=(1, 6, 6)),), Label(name="y", low=0, high=2)),
        rounds=RoundPolicy(rounds=8, cohort=4),
    )
    clients = [pictures(30, seed) for seed in range(4)]
    result = simulate_full(wanted, clients)
    values = [value for _, value in result.history.curve("accuracy")]
    assert values[-1] > 0.9
    first = compile_plan(wanted).initial
    for name in ("1.running_mean", "1.running_var"):
        assert np.all(result.weights[name] != first[name])
    assert np.all(result.weights["1.running_var"] > 0)
    session = cast(Any, onnxruntime).InferenceSession(result.infer())
    test = pictures(40, 9)
    said = [int(np.argmax(session.run(None, {"batch/x": test["x"][i : i + 1]})[0])) for i in range(40)]
    assert np.mean(said == test["y"]) > 0.85


def test_without_a_listener_a_terminal_keeps_a_line_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        stream = io.StringIO()
        stream.isatty = lambda terminal=terminal: terminal
        monkeypatch.setattr("sys.stderr", stream)
        simulate(experiment(), CLIENTS)
        lines = stream.getvalue().split("\r\033[K")
        assert [line.split()[:2] for line in lines[1:5]] == ([["Round", str(each)] for each in (1, 2, 3, 4)] * terminal)
        assert ("loss" in lines[-2] and lines[-1].startswith("Ended: completed")) if terminal else lines == [""]


def test_the_finished_model_names_its_label_and_classes() -> None:
    classes = ("low", "middle", "hoch ä")
    schema = replace(SCHEMA, label=Label(name="state", classes=classes))
    clients = [{"x": data["x"], "state": np.array(classes)[np.arange(len(data["x"])) % 3]} for data in CLIENTS]
    file = onnx.load_from_string(simulate_full(experiment(schema=schema), clients).infer())
    told = {entry.key: entry.value for entry in file.metadata_props}
    assert told["label"] == "state" and tuple(json.loads(told["classes"])) == classes
