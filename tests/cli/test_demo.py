"""The demo: the main job with real processes, and nothing left behind, however it ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from process_kit import processes_in

from coterie.cli import demo_digits
from coterie.simulation import simulate_full
from tests.patience import patience

Coterie = Callable[..., Any]
SUMMARY = (
    "event",
    "accuracy",
    "rounds",
    "clients",
    "secure_aggregation",
    "seconds",
    "first_metric_seconds",
    "bytes_up",
    "bytes_down",
    "model",
)


def test_the_demo_trains_and_leaves_nothing_behind(coterie: Coterie, tmp_path: Path) -> None:
    done = coterie("demo", "--json", timeout=patience(150))
    assert done.code == 0, done.err
    started, *rounds, summary = done.events
    assert started["event"] == "started"
    assert tuple(summary) == SUMMARY
    assert [row["round"] for row in rounds] == list(range(1, 11))
    assert all(row["state"] == "committed" and row["accepted"] >= 8 for row in rounds)
    assert rounds[0]["evaluation"] == "central"
    assert summary["event"] == "summary"
    assert summary["rounds"] == 10
    assert summary["clients"] == 10
    assert summary["accuracy"] >= 0.93
    assert 0 < summary["first_metric_seconds"] < summary["seconds"]
    assert summary["bytes_up"] == sum(row["bytes_up"] for row in rounds) > 0
    assert summary["bytes_down"] > 0
    assert (tmp_path / summary["model"]).is_file()
    assert [path.name for path in tmp_path.iterdir()] == [".coterie"]
    assert processes_in(tmp_path) == []


def test_three_seeds_reach_the_promised_accuracy(tmp_path: Path) -> None:
    """The same experiment, simulated, judged as the demo judges it: the same arithmetic without the processes."""
    scores: list[float] = []
    for seed in range(3):
        digits = demo_digits.load(clients=10, seed=seed)
        result = simulate_full(demo_digits.experiment(digits, rounds=10, seed=seed), digits.clients)
        model = result.save_infer(tmp_path / f"{seed}.onnx", best=False)
        scores.append(demo_digits.accuracy(model, digits.held_out))
    assert np.mean(scores) >= 0.93, scores


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_split_is_uneven_and_holds_rows_back(seed: int) -> None:
    digits = demo_digits.load(clients=10, seed=seed)
    rows = [*digits.clients, digits.held_out]
    assert sum(len(part["y"]) for part in rows) == 1797
    every = {row.tobytes() for part in digits.clients for row in part["x"]}
    assert sum(row.tobytes() in every for row in digits.held_out["x"]) == 0
    shares = [np.bincount(part["y"], minlength=10) / len(part["y"]) for part in digits.clients]
    assert np.mean([share.max() for share in shares]) > 0.25
    assert min(len(part["y"]) for part in digits.clients) >= 16
