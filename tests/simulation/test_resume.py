"""A run that is killed continues bit for bit."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulation_kit import CLIENTS, experiment, same

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import Scaffold
from coterie.aggregation.server_optimizers import server_sgd
from coterie.errors import ConfigurationError, ExperimentError, StorageError
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import simulate, simulate_full

# State on clients, on the server, and a selection that remembers losses.
STATEFUL = experiment(
    algorithm=Scaffold(clients=6),
    server_optimizer=server_sgd(1.0, momentum=0.5),
    rounds=RoundPolicy(rounds=5, cohort=3, selection="power_of_choice(4)"),
)


class Interrupted(Exception):
    """Stands for whatever ends a run between two rounds."""


@pytest.mark.parametrize("reducer", ["mean", "centered_clipping(0.1,2)"])
@pytest.mark.parametrize("after", [1, 3])
def test_a_run_that_ends_after_any_round_continues_bit_for_bit(after: int, reducer: str, tmp_path: Path) -> None:
    wanted = replace(STATEFUL, reducer=reducer)
    whole = simulate_full(wanted, CLIENTS)

    def stop(event: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Interrupted

    left = after
    with pytest.raises(Interrupted):
        simulate_full(wanted, CLIENTS, folder=tmp_path, on_event=stop)
    resumed = simulate_full(wanted, CLIENTS, folder=tmp_path, resume=True)
    assert same(whole.weights, resumed.weights) and same(whole.best, resumed.best)
    for one, other in zip(whole.history, resumed.history, strict=True):
        assert replace(one, seconds=None) == replace(other, seconds=None)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from simulation_kit import CLIENTS
from test_resume import STATEFUL
from coterie.simulation import simulate

def watch(round, kind, done, total):
    if (round, kind, done) == (3, "train", 2):
        os.kill(os.getpid(), signal.SIGKILL)

simulate(STATEFUL, CLIENTS, folder=Path(sys.argv[1]), watch=watch)
"""


def test_a_run_that_is_killed_in_mid_round_continues_bit_for_bit(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), here], env={**os.environ})
    assert ended.returncode == -signal.SIGKILL
    assert json.loads((tmp_path / "checkpoint.json").read_bytes())["progress"]["started"] == 2
    resumed = simulate_full(STATEFUL, CLIENTS, folder=tmp_path, resume=True)
    assert same(simulate_full(STATEFUL, CLIENTS).weights, resumed.weights)


def test_more_rounds_continue_a_finished_run(tmp_path: Path) -> None:
    policy = RoundPolicy(rounds=2, cohort=4)
    simulate(experiment(rounds=policy), CLIENTS, folder=tmp_path)
    longer = experiment(rounds=RoundPolicy(rounds=4, cohort=4))
    resumed = simulate_full(longer, CLIENTS, folder=tmp_path, resume=True)
    assert same(resumed.weights, simulate_full(longer, CLIENTS).weights) and len(resumed.history) == 4
    # And a run that is over stays as it is.
    again = simulate_full(longer, CLIENTS, folder=tmp_path, resume=True)
    assert same(again.weights, resumed.weights) and again.history == resumed.history


def test_what_cannot_be_continued_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as told:
        simulate(experiment(), CLIENTS, resume=True)
    assert told.value.reason == "resume_without_folder"
    simulate(experiment(), CLIENTS, folder=tmp_path)
    for other, clients in ((experiment(seed=1), CLIENTS), (experiment(epochs=1), CLIENTS), (experiment(), CLIENTS[:5])):
        with pytest.raises(ExperimentError) as refused:
            simulate(other, clients, folder=tmp_path, resume=True)
        assert refused.value.reason == "checkpoint_mismatch"
    (tmp_path / "checkpoint.json").write_text("{")
    with pytest.raises(StorageError) as damaged:
        simulate(experiment(), CLIENTS, folder=tmp_path, resume=True)
    assert damaged.value.reason == "checkpoint_damaged"


@pytest.mark.parametrize("kind", ["client", "server", "current", "kept"])
@pytest.mark.parametrize("damage", ["changed", "absent"])
def test_a_file_that_is_not_what_it_was_is_noticed_before_the_first_round(
    kind: str, damage: str, tmp_path: Path
) -> None:
    policy = RoundPolicy(rounds=2, cohort=3, selection="power_of_choice(4)")
    simulate(replace(STATEFUL, rounds=policy), CLIENTS, folder=tmp_path)
    value = json.loads((tmp_path / "checkpoint.json").read_bytes())
    names = {"client": next(iter(value["clients"].values())), "server": value["server"], **value["progress"]}
    names["kept"] = value["progress"]["best"]
    folder = tmp_path / "states" if kind in ("client", "server") else tmp_path
    file = folder / f"{names[kind]}.safetensors"
    data = bytearray(file.read_bytes())
    data[-2] ^= 0x40
    file.unlink()
    if damage == "changed":
        file.write_bytes(data)
    rounds: list[int] = []

    def watch(round: int, kind: str, done: int, total: int) -> None:
        rounds.append(round)

    with pytest.raises(StorageError) as told:
        simulate(STATEFUL, CLIENTS, folder=tmp_path, resume=True, watch=watch)
    assert told.value.reason == "checkpoint_damaged" and not rounds


def test_rounds_may_grow_and_nothing_else_of_them_changes(tmp_path: Path) -> None:
    def scheduled(*rates: float) -> Experiment:
        policy = RoundPolicy(rounds=len(rates), cohort=3, hyper_schedule={"lr": rates})
        return experiment(rounds=policy)

    simulate(scheduled(0.1, 0.2), CLIENTS, folder=tmp_path)
    for other in (scheduled(0.1), scheduled(0.2, 0.2, 0.1), experiment(rounds=RoundPolicy(rounds=3, cohort=3))):
        with pytest.raises(ExperimentError) as refused:
            simulate(other, CLIENTS, folder=tmp_path, resume=True)
        assert refused.value.reason == "checkpoint_mismatch"
    longer = scheduled(0.1, 0.2, 0.05)
    resumed = simulate_full(longer, CLIENTS, folder=tmp_path, resume=True)
    assert same(resumed.weights, simulate_full(longer, CLIENTS).weights)


def test_a_run_that_ends_at_any_call_that_changes_its_folder_continues_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process does nothing after such a call; here the call raises, and so does every later one."""
    wanted = replace(STATEFUL, rounds=RoundPolicy(rounds=2, cohort=2, evaluate_every=0))
    whole = simulate_full(wanted, CLIENTS)
    calls = {name: getattr(os, name) for name in ("replace", "link", "unlink", "fsync")}
    left = 0

    def counted(name: str) -> Callable[..., object]:
        def call(*given: Any, **named: Any) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise Interrupted
            return calls[name](*given, **named)

        return call

    ended, after = False, 0
    while not ended:
        folder, left = tmp_path / str(after), after
        with monkeypatch.context() as patched:
            for name in calls:
                patched.setattr(os, name, counted(name))
            try:
                simulate(wanted, CLIENTS, folder=folder)
                ended = True
            except Interrupted:
                pass
        resumed = simulate_full(wanted, CLIENTS, folder=folder, resume=True)
        assert same(whole.weights, resumed.weights) and len(resumed.history) == 2, after
        after += 3
    assert after > 20
