"""What a run leaves in its folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from simulation_kit import CLIENTS, experiment

from coterie.aggregation.run_files import read_run
from coterie.simulation import simulate


def test_a_folder_holds_the_rounds_also_of_a_run_that_was_cut_short(tmp_path: Path) -> None:
    """Loss, accuracy, fairness, bytes, seconds and failures of every round that is over, after each."""
    left: list[int] = []

    def stop(event: Mapping[str, Any]) -> None:
        left.append(len(read_run(tmp_path)[1]))
        if event["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(experiment(), CLIENTS, folder=str(tmp_path), on_event=stop)
    name, found = read_run(tmp_path)
    assert left == [1, 2] and name == experiment().name and found.reason is None
    whole = simulate(experiment(), CLIENTS, folder=tmp_path, resume=True)
    assert read_run(tmp_path) == (name, whole) and whole.reason == "completed"
    table = (tmp_path / "rounds.csv").read_text().splitlines()
    assert len(table) == 1 + len(whole)
    assert {"loss", "accuracy", "failed", "bytes_up", "bytes_down", "seconds"} < set(table[0].split(","))
    assert "</svg>" in (tmp_path / "rounds.svg").read_text()
