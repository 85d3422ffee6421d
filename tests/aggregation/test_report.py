"""What a run leaves for people: files that read back, panels and their picture."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import errors
from coterie.aggregation.history import History
from coterie.aggregation.record import RoundRecord
from coterie.aggregation.report.hints import GIVE_ROWS, RAISE_NORM, hints
from coterie.aggregation.report.notebook import FIRST, LAST
from coterie.aggregation.report.panels import panels
from coterie.aggregation.report.svg import svg, ticks
from coterie.aggregation.run_files import read_run, write_run
from coterie.protocol.spread import Spread


def record(number: int, **changes: object) -> RoundRecord:
    loss = 1 / number
    found = {
        "round": number,
        "state": "committed",
        "accepted": 10,
        "metrics": {"loss": loss, "accuracy": 1 - loss / 2, "auc": 0.5},
        "training": {"loss": loss * 1.1},
        "fairness": {"accuracy": Spread(clients=20, worst_decile=0.1, median=0.5, best_decile=1.0, deviation=0.2)},
        "evaluation": "federated",
        "bytes_up": 1000,
        "bytes_down": 5_000_000,
        "seconds": 0.5,
        "model": f"{number:064x}",
    }
    return RoundRecord(**{**found, **changes})  # pyright: ignore[reportArgumentType]


LOST = RoundRecord(round=3, state="abandoned", cause="deadline", failed=4)
RUN = History((record(1), record(2), LOST, record(4)), "completed", "best")


def test_a_run_reads_back_as_it_was_written(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "deep" / "run", "digits", RUN)
    assert read_run(folder) == ("digits", RUN) == read_run(folder / "rounds.jsonl")
    assert {path.name for path in folder.iterdir()} == {"rounds.jsonl", "rounds.csv", "rounds.svg"}
    table = (folder / "rounds.csv").read_text().splitlines()
    assert len(table) == 5 and table[0].endswith("accuracy_worst_decile")


def test_the_lines_of_a_command_are_a_run_too(tmp_path: Path) -> None:
    lines = [{"event": "joined"}, *RUN.to_dicts(), {"event": "summary", "rounds": 3, "reason": "completed"}]
    path = tmp_path / "printed.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    name, history = read_run(path)
    assert name == "printed" and history.rounds == RUN.rounds and history.reason == "completed"


@pytest.mark.parametrize(
    "content", [None, b"", b"{}", b"not json", b"\xff\xfe", b'{"event": "round"}', b'{"event": "round", "round": []}']
)
def test_what_is_no_run_is_refused_by_name(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    if content is not None:
        path.write_bytes(content)
    for place in (path, tmp_path):
        with pytest.raises(errors.InputError) as caught:
            read_run(place)
        assert caught.value.reason == "run_unreadable"


def test_a_run_that_is_still_being_written_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    whole = "".join(f"{json.dumps(line)}\n" for line in RUN.to_dicts()[:2])
    third = json.dumps(RUN.to_dicts()[2])
    for cut in (1, len(third) // 2, third.index("}") + 1, len(third) - 1):
        (tmp_path / "printed.jsonl").write_text(whole + third[:cut])
        assert read_run(tmp_path / "printed.jsonl")[1].rounds == RUN.rounds[:2]
    (tmp_path / "printed.jsonl").write_text(whole + third)
    assert read_run(tmp_path / "printed.jsonl")[1].rounds == RUN.rounds[:3]


def test_of_several_runs_in_a_file_the_last_counts_and_one_that_goes_on_is_one(tmp_path: Path) -> None:
    once, file = list(map(json.dumps, RUN.to_dicts())), tmp_path / "printed.jsonl"
    ended = json.dumps({"event": "finished", "name": "first", "reason": "stopped", "best": "b"})
    file.write_text("\n".join([*once, ended, *once[:2]]) + "\n")
    assert read_run(file) == ("printed", History(RUN.rounds[:2]))
    file.write_text("\n".join([*once[:2], ended, *once[2:]]) + "\n")
    assert read_run(file)[1].rounds == RUN.rounds


def test_a_wrong_line_is_named_and_a_mark_of_byte_order_is_none(tmp_path: Path) -> None:
    lines, file = [f"{json.dumps(line)}\n" for line in RUN.to_dicts()], tmp_path / "printed.jsonl"
    file.write_text("".join(lines), encoding="utf-8-sig")
    assert read_run(file)[1].rounds == RUN.rounds
    for wrong, why in (
        ("warning: slow", "is not valid JSON"),
        ('{"event": "round", "round": 2}', "lacks the field 'state'"),
    ):
        file.write_text(f"{lines[0]}{wrong}\n{lines[1]}")
        with pytest.raises(errors.InputError, match=f"its line 2 {why}") as caught:
            read_run(file)
        assert caught.value.reason == "run_unreadable"
    file.write_bytes("".join(lines).encode("utf-16"))
    with pytest.raises(errors.InputError, match="it is not UTF-8 text"):
        read_run(file)


@pytest.mark.parametrize("wrong", [{"seconds": "x"}, {"clipped": "x"}, {"epsilon": [1]}, {"metrics": {"auc": "x"}}])
def test_a_line_that_holds_no_number_where_one_must_be_is_no_run(wrong: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "printed.jsonl"
    file.write_text(json.dumps({**record(1).to_dict(), **wrong}))
    with pytest.raises(errors.InputError) as caught:
        read_run(file)
    assert caught.value.reason == "run_unreadable"


def test_what_no_axis_holds_is_left_out_of_the_curves(tmp_path: Path) -> None:
    far = [record(1), record(2, metrics={"loss": 1.7e308}), record(3, metrics={"loss": -1.7e308})]
    history = History(tuple(far), "completed", None)
    write_run(tmp_path, "far", history)
    assert read_run(tmp_path)[1] == history
    (loss,) = [panel for panel in panels(history) if panel.title == "loss"]
    assert loss.series[0].points == ((1, 1.0),)
    ElementTree.fromstring(svg("far", panels(history)))


def test_every_round_has_its_panels() -> None:
    found = {panel.title: panel for panel in panels(RUN)}
    assert list(found) == ["loss", "accuracy", "auc", "bytes per round", "seconds per round", "clients per round"]
    accuracy = {series.name: series.points for series in found["accuracy"].series}
    assert accuracy["evaluation"] == ((1, 0.5), (2, 0.75), (4, 0.875))
    assert accuracy["worst decile"] == ((1, 0.1), (2, 0.1), (4, 0.1))
    clients = {series.name: series.points for series in found["clients per round"].series}
    assert clients["failed"][2] == (3, 4) and found["loss"].marks == (3,)


def test_what_was_never_measured_has_no_panel() -> None:
    bare = History((RoundRecord(round=1, state="committed", accepted=1),))
    assert [panel.title for panel in panels(bare)] == ["clients per round"]
    assert panels(History()) == ()


def secret(*shares: float | None) -> History:
    """Rounds of secret sums that shortened so many."""
    return History(tuple(record(at, clipped=share) for at, share in enumerate(shares, 1)))


@pytest.mark.parametrize(
    ("history", "noted"), [(secret(1.0, None, 0.5), True), (secret(0.0, 0.15), False), (secret(0.0), False)]
)
def test_a_norm_that_shortens_many_clients_is_drawn_and_told(history: History, noted: bool) -> None:
    (panel,) = [panel for panel in panels(history) if panel.title == "clipped clients"]
    shares = {one.round: one.clipped for one in history if one.clipped is not None}
    assert dict(panel.series[0].points) == {at: 100 * share for at, share in shares.items()}
    assert (RAISE_NORM in svg("secret", panels(history))) is noted
    assert [RAISE_NORM in hint for hint in hints(history)] == [True] * noted


def test_privacy_that_was_spent_is_drawn_and_kept(tmp_path: Path) -> None:
    spent = [record(at, epsilon=at / 2, delta=1e-5) for at in (1, 2)]
    history = History((*spent, record(3, state="abandoned", cause="deadline", epsilon=1.0, delta=1e-5)))
    (panel,) = [panel for panel in panels(history) if panel.title == "ε spent"]
    assert [(series.name, series.points) for series in panel.series] == [
        ("spent, at δ 1e-05", ((1, 0.5), (2, 1.0), (3, 1.0)))
    ]
    folder = write_run(tmp_path, "noised", history)
    assert read_run(folder)[1].rounds == history.rounds
    head, first, *_ = (folder / "rounds.csv").read_text().splitlines()
    assert dict(zip(head.split(","), first.split(","), strict=True))["epsilon"] == "0.5"


def test_noised_versions_that_nobody_measured_are_told() -> None:
    blind = [record(at, epsilon=at / 2, delta=1e-5, metrics={}, training={}, fairness={}) for at in (1, 2)]
    assert [GIVE_ROWS in hint for hint in hints(History(tuple(blind)))] == [True]
    assert hints(History((*blind, record(3, epsilon=1.5, delta=1e-5)))) == ()
    assert hints(History((record(1, metrics={}, training={}, fairness={}),))) == ()


@pytest.mark.parametrize("history", [RUN, History((record(1),)), History(), secret(0.0, 0.0)])
def test_the_picture_is_svg_with_a_line_for_every_curve(history: History) -> None:
    drawn = panels(history)
    root = ElementTree.fromstring(svg("a <b> & c", drawn))
    lines = [node for node in root.iter() if node.tag.endswith("polyline")]
    assert len(lines) == sum(len(panel.series) for panel in drawn)
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    for node in lines:
        for pair in node.get("points", "").split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= width and 0 <= y <= height


@given(st.floats(-1e6, 1e6), st.floats(1e-2, 1e6))
def test_ticks_are_few_and_within(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert 2 <= len(found) <= 7
    assert low - span * 1e-6 <= found[0] and found[-1] <= low + span * (1 + 1e-6)


@pytest.mark.parametrize("rounds", [1, 25, 26, 200])
def test_a_notebook_shows_curves_and_a_table_of_which_nothing_is_taken_for_markup(rounds: int) -> None:
    records = [
        RoundRecord(
            round=number,
            state="committed",
            accepted=2,
            metrics={"loss": 1 / number, "<script>&": 0.25},
            evaluation="central",
        )
        for number in range(1, rounds + 1)
    ]
    history = History(tuple(records), "completed")
    page = ElementTree.fromstring(f"<div>{history._repr_html_()}</div>")  # pyright: ignore[reportPrivateUsage]
    assert page.find("{http://www.w3.org/2000/svg}svg") is not None
    head, *lines = [["".join(cell.itertext()) for cell in row] for row in page.findall("table/tr")]
    assert head[:2] == ["round", "state"] and "<script>&" in head and "model" not in head and "cause" not in head
    if rounds <= FIRST + LAST:
        assert [line[0] for line in lines] == [str(number) for number in range(1, rounds + 1)]
    else:
        assert (lines[FIRST], lines[-1][0]) == ([f"… {rounds - FIRST - LAST} more rounds …"], str(rounds))
        assert len(lines) == FIRST + 1 + LAST
    assert lines[-1][head.index("loss")] == f"{1 / rounds:.5g}"
    assert "No round" in History()._repr_html_()  # pyright: ignore[reportPrivateUsage]
