"""What engines do with clients, errors, memory and processes. That all make the same versions says `test_hosts`."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulation_kit import CLIENTS, SCHEMA, Spoils, experiment, rows, same

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.client_sdk.device.trainers.external import ExternalTrainer, FitResult, FitTask, Params
from coterie.compute.nn import BatchNorm1d, Dropout, Linear, ReLU, Sequential, Tanh
from coterie.compute.optim import adam
from coterie.errors import ConfigurationError, DataError, ExperimentError, RemoteError
from coterie.protocol.conversion import to_json
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import simulate, simulate_full
from coterie.simulation.assignment import Assignment
from coterie.simulation.engines import shared
from coterie.simulation.engines.naming import PLAN_TRAINER

EXACT = ("threads", "processes")


SPOILS = Spoils(36)


@pytest.mark.parametrize("secure", [False, True], ids=["open", "secret sum"])
def test_updates_that_cannot_be_used_are_left_out_by_every_engine(secure: bool) -> None:
    """Those of the three largest of six clients, which come first, so that a worker's first answer is without one."""
    clients, policy = CLIENTS[::-1], RoundPolicy(rounds=2, cohort=6, min_updates=3)
    wanted = experiment(secure_aggregation=secure, rounds=policy)
    expected = simulate_full(wanted, clients, trainer=SPOILS)
    assert len(expected.history.committed) == 2
    for engine in EXACT:
        found = simulate_full(wanted, clients, engine=engine, workers=2, trainer="test_engines:SPOILS")
        assert same(expected.weights, found.weights)
        for one, other in zip(expected.history, found.history, strict=True):
            assert replace(one, seconds=None) == replace(other, seconds=None)
    assert not same(expected.weights, simulate_full(wanted, clients).weights)


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_updates_among_many_that_cannot_be_used_are_folded_before_their_memory_is_used_again(rule: str) -> None:
    """An engine counts those that are left out too, before it overwrites an update that it gave."""
    policy = RoundPolicy(rounds=1, cohort=30, min_updates=10, evaluate_every=0)
    wanted = experiment(rounds=policy, reducer=rule, secure_aggregation=False)
    expected = simulate_full(wanted, CLIENTS * 5, trainer=SPOILS)
    found = simulate_full(wanted, CLIENTS * 5, engine="processes", workers=1, trainer="test_engines:SPOILS")
    assert len(expected.history.committed) == 1
    assert same(expected.weights, found.weights)


def test_an_unknown_engine_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="no engine 'fibers'") as told:
        simulate(experiment(), CLIENTS, engine="fibers")
    assert told.value.reason == "unknown_engine"


def test_no_graph_has_more_lanes_than_a_round_has_clients() -> None:
    many = simulate_full(experiment(), CLIENTS, engine=f"batched:{10**10}")
    cohort = simulate_full(experiment(), CLIENTS, engine=f"batched:{experiment().rounds.cohort}")
    assert same(many.weights, cohort.weights)


def test_a_worker_that_meets_bad_data_says_what_a_device_says(tmp_path: Path) -> None:
    bad = rows()
    bad["x"][3, 0] = np.nan
    np.savez(tmp_path / "bad.npz", allow_pickle=False, **bad)
    with pytest.raises(DataError, match="bad.npz.*row 4"):
        simulate(experiment(), [tmp_path / "bad.npz"] * 4, engine="processes")


METHODS = {
    "fedavg": {},
    "adam": {"optimizer": adam(0.05)},
    "dropout": {"model": Sequential(Linear(4, 8), ReLU(), Dropout(0.5), Linear(8, 3))},
    "batch norm": {"model": Sequential(Linear(4, 8), BatchNorm1d(8), Tanh(), Linear(8, 3))},
}


@pytest.mark.parametrize("engine", ["batched", "batched:3"])
@pytest.mark.parametrize("method", METHODS)
def test_clients_in_one_graph_send_what_each_would_send_alone(engine: str, method: str) -> None:
    """To rounding: clients of five different sizes, so that lanes end at different steps."""
    wanted = experiment(**METHODS[method])
    expected = simulate_full(wanted, CLIENTS)
    found = simulate_full(wanted, CLIENTS, engine=engine, workers=2)
    for name, weights in expected.weights.items():
        np.testing.assert_allclose(found.weights[name], weights, rtol=1e-5, atol=1e-5)
    assert [r.bytes_up for r in expected.history] == [r.bytes_up for r in found.history]
    assert same(found.weights, simulate_full(wanted, CLIENTS, engine=engine, workers=2).weights)


def test_the_faster_engine_is_chosen_by_time_and_sends_the_same_to_rounding() -> None:
    expected, found = simulate_full(experiment(), CLIENTS), simulate_full(experiment(), CLIENTS, engine="auto")
    for name, weights in expected.weights.items():
        np.testing.assert_allclose(found.weights[name], weights, rtol=1e-5, atol=1e-5)


def add_one(params: Params, task: FitTask) -> FitResult:
    return {name: value + 1 for name, value in params.items()}, 1, 1, {}


def fails(params: Params, task: FitTask) -> FitResult:
    raise ZeroDivisionError("on purpose")


def some_rows(params: Params, task: FitTask) -> FitResult:
    """Client 0 trains the first two elements, the others all but the first."""
    hidden = np.array([False, False, True] if task.client == "0" else [True, False, False])
    return {"w": np.ma.masked_array(params["w"] + int(task.client), hidden)}, 1 + int(task.client), 1, {}


PARTS = ExternalTrainer(some_rows)


@pytest.mark.parametrize("engine", EXACT)
@pytest.mark.parametrize("codec", ["float32", "bfloat16"])
def test_clients_that_train_parts_average_over_those_that_trained_each_number(engine: str, codec: str) -> None:
    policy = RoundPolicy(rounds=1, cohort=3, evaluate_every=0)
    model = ExternalModel({"w": (3,), "b": (2,)})
    wanted = Experiment(
        name="own", model=model, schema=SCHEMA, rounds=policy, codecs=(codec,), secure_aggregation=False,
        initial={"w": np.zeros(3, np.float32), "b": np.ones(2, np.float32)},
    )  # fmt: skip
    found = simulate_full(wanted, CLIENTS[:3], engine=engine, workers=2, trainer="test_engines:PARTS")
    # Weights 1, 2, 3 and changes 0, 1, 2; nobody trained b.
    expected = np.array([0, (1 * 0 + 2 * 1 + 3 * 2) / 6, (2 * 1 + 3 * 2) / 5], np.float32)
    np.testing.assert_array_max_ulp(found.weights["w"], expected, 1)
    assert found.weights["b"].tolist() == [1, 1]


def test_a_part_is_refused_where_only_sums_are_seen() -> None:
    policy = RoundPolicy(rounds=1, cohort=3, evaluate_every=0)
    wanted = Experiment(
        name="own", model=ExternalModel({"w": (3,)}), schema=SCHEMA, rounds=policy, secure_aggregation=True
    )
    with pytest.raises(DataError, match="Under secure aggregation"):
        simulate(wanted, CLIENTS[:3], trainer=PARTS)


OWN, FAILING = ExternalTrainer(add_one), ExternalTrainer(fails)


def external() -> Experiment:
    policy = RoundPolicy(rounds=2, cohort=4, evaluate_every=0)
    return Experiment(name="own", model=ExternalModel({"w": (3,)}), schema=SCHEMA, rounds=policy)


def test_a_trainer_of_ones_own_goes_to_other_processes_by_name() -> None:
    found = simulate_full(external(), CLIENTS, engine="processes", workers=2, trainer="test_engines:OWN")
    assert found.weights["w"].tolist() == [2, 2, 2]
    with pytest.raises(ConfigurationError, match="simulate.*trainer=") as told:
        simulate(external(), CLIENTS, engine="processes", trainer=OWN)
    assert told.value.reason == "trainer_not_named"
    with pytest.raises(ConfigurationError) as refused:
        simulate(external(), CLIENTS, engine="batched", trainer=OWN)
    assert refused.value.reason == "batched_trainer"
    with pytest.raises(ExperimentError, match="no trainer 'test_engines:NOBODY'"):
        simulate(external(), CLIENTS, engine="processes", trainer="test_engines:NOBODY")


def test_an_error_in_a_worker_is_told_with_its_traceback() -> None:
    with pytest.raises(RemoteError, match="Client .* failed in a worker: ZeroDivisionError: on purpose") as told:
        simulate(external(), CLIENTS, engine="processes", trainer="test_engines:FAILING")
    assert told.value.reason == "worker_failed" and "in fails" in "".join(told.value.__notes__)


def dies_once(params: Params, task: FitTask) -> FitResult:
    """The first worker that comes here is killed."""
    mark = Path(os.environ["COTERIE_TEST_MARK"])
    if task.round == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return add_one(params, task)


def dies(params: Params, task: FitTask) -> FitResult:
    os.kill(os.getpid(), signal.SIGKILL)
    return add_one(params, task)


DIES_ONCE, DIES = ExternalTrainer(dies_once), ExternalTrainer(dies)


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_TEST_MARK", str(tmp_path / "died"))
    found = simulate_full(external(), CLIENTS, engine="processes", workers=2, trainer="test_engines:DIES_ONCE")
    assert (tmp_path / "died").exists() and found.weights["w"].tolist() == [2, 2, 2]


def test_a_job_that_kills_every_worker_ends_the_run_by_name_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, made = shared.make_folder, list[Path]()

    def remembered() -> Path:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(shared, "make_folder", remembered)
    with pytest.raises(RemoteError, match="2 worker processes in a row ended") as told:
        simulate(external(), CLIENTS, engine="processes", trainer="test_engines:DIES")
    assert told.value.reason == "worker_lost"
    assert made and not any(folder.exists() for folder in made)


@pytest.mark.parametrize("rule", ["median", "norm_bound(5)+nnm(1)+trimmed_mean(1)"])
def test_a_rule_that_sees_every_update_sees_the_same_from_every_engine(rule: str) -> None:
    """Updates in shared memory are overwritten while the rule still needs them."""
    wanted = experiment(reducer=rule, rounds=RoundPolicy(rounds=2, cohort=16), secure_aggregation=False)
    expected = simulate_full(wanted, CLIENTS * 3)
    found = simulate_full(wanted, CLIENTS * 3, engine="processes", workers=1)
    assert same(expected.weights, found.weights)
    assert not same(expected.weights, simulate_full(replace(wanted, reducer="mean"), CLIENTS * 3).weights)


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from simulation_kit import CLIENTS, experiment
from coterie.simulation import simulate
from coterie.simulation.engines import processes, shared

make, start = shared.make_folder, processes._Worker.start

def made():
    folder = make()
    print(folder, flush=True)
    return folder

def started(folder, trainer):
    worker = start(folder, trainer)
    print(worker.process.pid, flush=True)
    return worker

def watch(round, kind, done, total):
    if (round, kind, done) == (2, "train", 1):
        os.kill(os.getpid(), signal.SIGKILL)

shared.make_folder, processes._Worker.start = made, started
simulate(experiment(), CLIENTS, engine="processes", workers=2, watch=watch)
"""


def test_a_run_that_is_killed_leaves_no_process_and_no_memory() -> None:
    here = str(Path(__file__).parent)
    ended = subprocess.run([sys.executable, "-c", KILLED, here], stdout=subprocess.PIPE, text=True)
    assert ended.returncode == -signal.SIGKILL
    folder, *pids = ended.stdout.split()
    left = [Path(folder), *(Path("/proc") / pid for pid in pids)]
    until = time.monotonic() + 20
    while any(path.exists() for path in left) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(pids) == 2 and not [path for path in left if path.exists()]


def test_a_worker_whose_run_vanishes_while_it_works_clears_the_memory_away(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    compile_plan(experiment()).plan.save(folder / "plan")
    words = [sys.executable, "-m", "coterie.simulation.engines.worker", str(folder), PLAN_TRAINER]
    assignment = Assignment(experiment="e", round=1, base="0" * 64, hyper={}, seed=0, weight_cap=1)
    job = {"kind": "train", "weights": "", "state": "", "rows": "", "source": str(tmp_path / "absent.npz")}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        assert "ready" in worker.stdout.readline()
        worker.stdout.close()
        worker.stdin.write(json.dumps({**job, "assignment": to_json(assignment)}) + "\n")
        worker.stdin.flush()
        worker.wait(30)
    assert not folder.exists()
