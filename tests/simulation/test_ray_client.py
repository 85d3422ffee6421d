"""A simulation joins a Ray cluster that is there already, through Ray Client, and gives what threads give."""

import sys
import threading
import time
from collections.abc import Generator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_kit import NEEDS_RAY, Cluster, closed_channels, cluster, nobody_else
from simulation_kit import CLIENTS, experiment, rows, same

from coterie.aggregation.horizontal import Scaffold
from coterie.errors import ConfigurationError, DataError, RemoteError
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import simulate, simulate_full
from coterie.simulation.engines import ray as engine

pytestmark = NEEDS_RAY
joins = pytest.mark.skipif(find_spec("grpc") is None, reason="Ray Client needs gRPC, which the extra `ray` brings")
TRAINER = "coterie.client_sdk.device.trainers.plan:PlanTrainer"


@pytest.fixture(scope="module")
def alone() -> Generator[None]:
    """No other tests start clusters."""
    with nobody_else(), closed_channels():
        yield


@pytest.fixture(scope="module")
def two(alone: None) -> Generator[Cluster]:
    """Two CPUs, at an address."""
    with cluster(2) as found:
        yield found


@joins
def test_two_workers_that_are_joined_give_the_weights_of_one_thread_bit_for_bit(
    two: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of arrays and of files that the cluster cannot see, with a method that keeps state on clients, through a stop."""
    wanted = experiment(algorithm=Scaffold(clients=6), rounds=RoundPolicy(rounds=2, cohort=4))
    expected = simulate_full(wanted, CLIENTS)
    monkeypatch.chdir(tmp_path)
    mixed = [*CLIENTS[:3], *(Path(f"{number}.npz") for number in range(3, 6))]
    for number in range(3, 6):
        np.savez(f"{number}.npz", allow_pickle=False, **CLIENTS[number])
    first = experiment(algorithm=Scaffold(clients=6), rounds=RoundPolicy(rounds=1, cohort=4))
    simulate(first, mixed, engine=two.address, workers=2, folder=tmp_path / "run")
    found = simulate_full(wanted, mixed, engine=two.address, workers=2, folder=tmp_path / "run", resume=True)
    assert same(expected.weights, found.weights)
    assert [record.bytes_up for record in expected.history] == [record.bytes_up for record in found.history]


@joins
def test_what_a_joined_cluster_cannot_do_is_said(two: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More workers than it has CPUs; a trainer that only this machine has; rows that no device would take."""
    monkeypatch.setattr(engine, "PATIENCE_S", 2.0)
    # How many have started by then is the machine's speed.
    with pytest.raises(RemoteError, match=r"started [012] of 3 workers in 2 seconds\. It has 2 CPUs, \d") as busy:
        simulate(experiment(), CLIENTS, engine=two.address, workers=3)
    assert busy.value.reason == "ray_busy"
    monkeypatch.undo()
    (tmp_path / "only_here.py").write_text(f"from {TRAINER.replace(':', ' import ')} as Mine\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(RemoteError, match="cannot work: There is no trainer 'only_here:Mine'") as lacking:
        simulate(experiment(), CLIENTS, engine=two.address, trainer="only_here:Mine")
    assert lacking.value.reason == "worker_failed"
    bad = rows()
    bad["x"][3, 0] = np.nan
    np.savez(tmp_path / "bad.npz", allow_pickle=False, **bad)
    with pytest.raises(DataError, match=r"bad.npz.*row 4"):
        simulate(experiment(), [tmp_path / "bad.npz"] * 6, engine=two.address)


@joins
@pytest.mark.usefixtures("alone")
def test_a_cluster_that_ends_in_the_middle_ends_the_run_which_goes_on_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round that was done is kept, so what goes on in threads ends with the same bits."""
    # How long Ray itself hopes for a connection that broke.
    monkeypatch.setenv("RAY_CLIENT_RECONNECT_GRACE_PERIOD", "1")
    expected = simulate_full(experiment(), CLIENTS)
    with cluster(1) as found:

        def end(event: Mapping[str, Any]) -> None:
            if event["event"] == "round" and event["round"] == 2:
                found.lose()

        with pytest.raises(RemoteError, match=r"lost .* of round 3") as told:
            simulate(experiment(), CLIENTS, engine=found.address, folder=tmp_path, on_event=end)
    assert told.value.reason == "worker_lost"
    assert told.value.hint is not None and "resume" in told.value.hint
    resumed = simulate_full(experiment(), CLIENTS, folder=tmp_path, resume=True)
    assert same(expected.weights, resumed.weights)


def test_of_all_errors_of_threads_only_that_of_a_closed_channel_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def fail(error: Exception) -> None:
        raise error

    closed = "Cannot monitor channel state: Channel closed!"
    errors = [ValueError(closed), ValueError("Channel closed!"), OSError(closed)]
    with closed_channels():
        for error in errors:
            thread = threading.Thread(target=fail, args=(error,))
            thread.start()
            thread.join()
    assert [each.exc_value for each in told] == errors[1:]


@joins
def test_a_cluster_that_is_not_there_is_named_at_once() -> None:
    begun = time.monotonic()
    with pytest.raises(RemoteError, match="no Ray cluster at 'ray://127.0.0.1:9': .*refused") as told:
        simulate(experiment(), CLIENTS, engine="ray://127.0.0.1:9")
    assert told.value.reason == "ray_unreachable"
    assert told.value.hint is not None and "ray start --head" in told.value.hint
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("name", ["ray://", "ray://:10001", "ray://host:port", "ray://host:99999"])
def test_an_address_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="names no cluster") as told:
        simulate(experiment(), CLIENTS, engine=name)
    assert told.value.reason == "unknown_engine"


def test_to_join_without_grpc_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        assert name == "grpc"

    monkeypatch.setattr("coterie.simulation.engines.ray_joining.find_spec", absent)
    with pytest.raises(ConfigurationError, match="gRPC, which is not installed") as told:
        simulate(experiment(), CLIENTS, engine="ray://127.0.0.1:9")
    assert told.value.hint == "pip install 'coterie[ray]'"
