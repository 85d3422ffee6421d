"""An experiment whose learning rate is far too high, as its researcher sees it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.cli.failures import FAILED


def test_a_simulation_that_diverges_says_in_which_round_and_what_mends_it(
    coterie: Callable[..., Any], tmp_path: Path
) -> None:
    assert coterie("new", "project").code == 0
    folder = tmp_path / "project"
    file = folder / "experiment.py"
    text = file.read_text(encoding="utf-8")
    assert "sgd(0.1" in text
    file.write_text(text.replace("sgd(0.1", "sgd(1e30"), encoding="utf-8")
    done = coterie("simulate", "experiment.py", "--rounds", "2", cwd=folder)
    assert done.code == FAILED
    assert "Training diverged in round 1; lower the learning rate." in done.out
    rounds = [
        event
        for event in coterie("simulate", "experiment.py", "--rounds", "1", "--json", cwd=folder).events
        if event["event"] == "round"
    ]
    assert rounds[0]["diverged"] > 0
