"""The table of rounds, in the three forms in which it is read."""

import json
from typing import Any

import pytest
from rich.console import Console

from coterie.cli.output import Output, figure, short_id, size
from coterie.cli.rounds import RoundTable, draw, in_sight

ROWS: list[dict[str, Any]] = [
    {
        "event": "round",
        "round": 1,
        "state": "committed",
        "cause": None,
        "accepted": 10,
        "failed": 0,
        "loss": 0.12345678,
        "accuracy": 0.9,
        "bytes_up": 198_272,
        "bytes_down": 1_000,
        "seconds": 1.234,
    },
    {"event": "round", "round": 2, "state": "abandoned", "cause": "aggregate_failed", "accepted": 0, "failed": 10},
]


def test_into_a_pipe_each_round_is_one_line_of_at_most_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    with RoundTable(Output(json=False), "a title") as table:
        for row in ROWS:
            table.add(row)
    title, head, first, second = capsys.readouterr().out.splitlines()
    assert title == "a title"
    assert first.split() == ["1", "committed", "10/0", "0.1235", "0.9000", "198.3", "kB", "1.0", "kB", "1.23"]
    assert second.split() == ["2", "aggregate_failed", "0/10", "-", "-", "-", "-", "-"]
    assert {len(line) for line in (head, first, second)} == {len(head)}
    assert len(head) <= 80


def test_with_json_each_round_is_its_event(capsys: pytest.CaptureFixture[str]) -> None:
    with RoundTable(Output(json=True), "a title") as table:
        for row in ROWS:
            table.add(row)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS


def test_on_a_terminal_the_newest_rounds_stay_in_sight() -> None:
    rows = [{**ROWS[0], "round": number} for number in range(1, 31)]
    shown = in_sight(rows, 16)
    assert shown[-1]["round"] == 30
    console = Console(width=80, height=16)
    with console.capture() as captured:
        console.print(draw("a title", shown))
    lines = captured.get().splitlines()
    assert len(lines) <= 16
    assert lines[-1].split()[0] == "30"
    assert all(len(line.rstrip()) <= 80 and "…" not in line for line in lines)
    assert len(in_sight(rows, 3)) == 1


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_999_999, "2.0 MB"), (5e12, "5000.0 GB")],
)
def test_sizes(count: float | None, text: str) -> None:
    assert size(count) == text


def test_figures_and_ids() -> None:
    assert figure(None) == "-"
    assert figure(0.5, 2) == "0.50"
    assert short_id("exp_01a1fe39567b7d57a57f48f94bf8b084") == "exp_01a1fe39567b"
