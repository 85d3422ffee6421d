"""A real Ray cluster of two workers on this machine gives what threads give."""

import json
from pathlib import Path

import numpy as np
import pytest
from simulation_kit import CLIENTS, experiment, rows, same

from coterie.aggregation.horizontal import Scaffold
from coterie.aggregation.plan.compile import compile_plan
from coterie.errors import DataError, RemoteError
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.tensors import encode_tensors
from coterie.simulation import simulate, simulate_full
from coterie.simulation.engines.job import raise_told
from coterie.simulation.engines.naming import PLAN_TRAINER
from coterie.simulation.engines.remote import Remote
from coterie.simulation.work import Assignment

pytest.importorskip("ray", reason="Ray is in an extra of its own")
# Ray itself leaves sockets and processes to the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_two_workers_of_a_cluster_give_the_weights_of_one_thread_bit_for_bit(tmp_path: Path) -> None:
    """Of arrays and of files, with a method that keeps state on clients."""
    policy = RoundPolicy(rounds=2, cohort=4)
    wanted = experiment(algorithm=Scaffold(clients=6), rounds=policy)
    expected = simulate_full(wanted, CLIENTS)
    mixed = [*CLIENTS[:3], *(tmp_path / f"{number}.npz" for number in range(3, 6))]
    for number in range(3, 6):
        np.savez(tmp_path / f"{number}.npz", allow_pickle=False, **CLIENTS[number])
    found = simulate_full(wanted, mixed, engine="ray:local", workers=2)
    assert same(expected.weights, found.weights)
    assert [record.bytes_up for record in expected.history] == [record.bytes_up for record in found.history]


def test_a_worker_answers_with_the_error_that_a_device_has(tmp_path: Path) -> None:
    """Without a cluster: the same object that an actor holds."""
    bad = rows()
    bad["x"][3, 0] = np.nan
    np.savez(tmp_path / "bad.npz", allow_pickle=False, **bad)
    compiled = compile_plan(experiment())
    remote = Remote(compiled.plan.manifest.data, compiled.plan.graphs, encode_tensors({}), PLAN_TRAINER)
    assignment = Assignment(experiment="tiny", round=1, base="", hyper={}, seed=0, weight_cap=100).to_json()
    job = {"kind": "train", "number": 0, "source": str(tmp_path / "bad.npz"), "assignment": assignment}
    weights = np.frombuffer(compiled.initial_bytes, np.uint8)
    answer, _ = remote.perform(json.dumps(job), weights, encode_tensors({}), encode_tensors({}))
    with pytest.raises(DataError, match="bad.npz.*row 4"):
        raise_told(json.loads(answer))


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(RemoteError, match="no Ray cluster at 'ray://127.0.0.1:9'") as told:
        simulate(experiment(), CLIENTS, engine="ray://127.0.0.1:9")
    assert told.value.reason == "ray_unreachable"
