"""A run's folder: who may use it, and what is said where a checkpoint there does not fit."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulation_kit import CLIENTS, experiment

from coterie.errors import ConfigurationError, ExperimentError, StorageError
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import simulate

WAITS = """
import sys
sys.path.insert(0, sys.argv[2])
from simulation_kit import CLIENTS, experiment
from coterie.simulation import simulate

def watch(round, kind, done, total):
    if (round, kind, done) == (1, "train", 1):
        print("at work", flush=True)
        sys.stdin.readline()

simulate(experiment(), CLIENTS, folder=sys.argv[1], watch=watch)
print("done", flush=True)
"""


def test_a_folder_holds_one_run_at_a_time(tmp_path: Path) -> None:
    simulate(experiment(), CLIENTS, folder=tmp_path)
    here = str(Path(__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", WAITS, str(tmp_path), here], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        # That the folder was used here before, by a run that is over, is nothing to it.
        assert other.stdout.readline() == "at work\n"
        for resume in (False, True):
            with pytest.raises(ConfigurationError, match=f"process {other.pid}") as refused:
                simulate(experiment(), CLIENTS, folder=tmp_path, resume=resume)
            assert refused.value.reason == "run_in_use"
        simulate(experiment(), CLIENTS, folder=tmp_path / "another")
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "done\n"
    assert other.returncode == 0
    assert len(simulate(experiment(), CLIENTS, folder=tmp_path, resume=True)) == experiment().rounds.rounds


POLICY = RoundPolicy(rounds=2, cohort=3)
CHANGES: dict[str, dict[str, Any]] = {
    "seed was 0 and is 5": {"seed": 5},
    "name, model, loss": {"epochs": 1},
    "reducer was mean and is median": {"reducer": "median"},
    "cohort was 3 and is 2": {"rounds": RoundPolicy(rounds=2, cohort=2)},
    "rounds was 2 and is 1$": {"rounds": RoundPolicy(rounds=1, cohort=3)},
    "the schedule of its rounds differs$": {"rounds": RoundPolicy(rounds=2, cohort=3, hyper_schedule={"lr": (1, 1)})},
}


def test_a_checkpoint_that_does_not_fit_says_what_differs(tmp_path: Path) -> None:
    simulate(experiment(rounds=POLICY), CLIENTS, folder=tmp_path)
    for differs, changes in CHANGES.items():
        with pytest.raises(ExperimentError) as refused:
            simulate(experiment(**{"rounds": POLICY, **changes}), CLIENTS, folder=tmp_path, resume=True)
        assert refused.value.reason == "checkpoint_mismatch"
        assert re.search(differs, refused.value.message.rstrip("."))
    with pytest.raises(ExperimentError, match=f"clients was {len(CLIENTS)} and is {len(CLIENTS) - 1}"):
        simulate(experiment(rounds=POLICY), CLIENTS[:-1], folder=tmp_path, resume=True)


def test_a_checkpoint_of_before_is_continued_and_one_of_a_newer_form_is_named(tmp_path: Path) -> None:
    simulate(experiment(rounds=POLICY), CLIENTS, folder=tmp_path)
    file = tmp_path / "checkpoint.json"
    value = json.loads(file.read_bytes())
    del value["made_of"]
    file.write_text(json.dumps(value))
    longer = experiment(rounds=replace_rounds(3))
    with pytest.raises(ExperimentError, match=r"number of clients\.") as refused:
        simulate(replace(longer, seed=5), CLIENTS, folder=tmp_path, resume=True)
    assert refused.value.reason == "checkpoint_mismatch"
    assert len(simulate(longer, CLIENTS, folder=tmp_path, resume=True)) == 3
    file.write_text(json.dumps({**value, "format": "coterie-simulation-99"}))
    with pytest.raises(ExperimentError, match="format 'coterie-simulation-99'.*the version of coterie") as newer:
        simulate(longer, CLIENTS, folder=tmp_path, resume=True)
    assert newer.value.reason == "checkpoint_mismatch"


def replace_rounds(rounds: int) -> RoundPolicy:
    return POLICY.model_copy(update={"rounds": rounds})


DAMAGE: dict[str, Any] = {
    "progress": None,
    "rounds": [5],
    "clients": [],
    "standings": [],
    "informed": ["a"],
    "air": 5,
    "before": 5,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_checkpoint_with_a_value_of_the_wrong_kind_is_damaged(name: str, tmp_path: Path) -> None:
    simulate(experiment(rounds=POLICY), CLIENTS, folder=tmp_path)
    file = tmp_path / "checkpoint.json"
    file.write_text(json.dumps({**json.loads(file.read_bytes()), name: DAMAGE[name]}))
    with pytest.raises(StorageError) as told:
        simulate(experiment(rounds=replace_rounds(3)), CLIENTS, folder=tmp_path, resume=True)
    assert told.value.reason == "checkpoint_damaged"


def test_a_checkpoint_of_brackets_without_end_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text("[" * 100_000)
    with pytest.raises(StorageError) as told:
        simulate(experiment(), CLIENTS, folder=tmp_path, resume=True)
    assert told.value.reason == "checkpoint_damaged"
