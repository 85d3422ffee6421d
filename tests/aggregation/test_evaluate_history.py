"""Measuring a version on rows, and the record of a run."""

import json
from typing import Any

import numpy as np
import pytest

from coterie import errors
from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.evaluate import check_metrics, evaluate
from coterie.aggregation.history import History
from coterie.aggregation.record import RoundRecord
from coterie.aggregation.round import Cause, Round, RoundConfig, RoundPhase
from coterie.compute.runtime.executable import Executable
from coterie.protocol.metrics import MetricSums
from coterie.protocol.spread import count_sums, histogram

CONFIG = RoundConfig(cohort=1)
NAMES = ("examples", "loss", "accuracy")
COUNTS = (
    count_sums(NAMES, histogram(NAMES, MetricSums({"examples": 1, "loss": 1, "accuracy": 0.25})))
    .merge(count_sums(NAMES, histogram(NAMES, MetricSums({"examples": 1, "loss": 3, "accuracy": 0.75}))))
    .sums
)


@pytest.mark.parametrize("rows", [1, 5, 6, 7, 25])
def test_padding_weighs_nothing_whatever_the_number_of_rows(make_experiment: Any, make_batch: Any, rows: int) -> None:
    compiled = compile_plan(make_experiment())
    whole = compile_plan(make_experiment(batch_size=rows))
    batch = make_batch(rows=rows)
    data = {"x": batch["x"], "y": batch["y"]}
    graphs = {"eval": Executable(compiled.plan.graphs["eval"])}
    sums = evaluate(graphs, compiled.plan.manifest, compiled.initial, data)
    once = evaluate(whole.plan.graphs, whole.plan.manifest, whole.initial, data)
    assert sums.examples == rows
    assert sums.means() == pytest.approx(once.means(), rel=1e-5)


def test_no_rows_give_no_metrics(make_experiment: Any) -> None:
    compiled = compile_plan(make_experiment())
    empty = {"x": np.zeros((0, 4), np.float32), "y": np.zeros(0, np.int32)}
    assert evaluate(compiled.plan.graphs, compiled.plan.manifest, compiled.initial, empty) == MetricSums()


def test_a_model_that_diverged_is_an_error_not_a_number(make_experiment: Any, make_batch: Any) -> None:
    compiled = compile_plan(make_experiment())
    weights = {name: np.full_like(value, np.inf) for name, value in compiled.initial.items()}
    rows = {name: value for name, value in make_batch().items() if name != "sample_weight"}
    with pytest.raises(errors.InputError, match="finite"):
        evaluate(compiled.plan.graphs, compiled.plan.manifest, weights, rows)


def test_a_device_has_a_bounded_say(make_experiment: Any) -> None:
    manifest = compile_plan(make_experiment()).plan.manifest
    told = MetricSums({"examples": 1e9, "loss": 2e9, "accuracy": 1e9})
    bounded = check_metrics(manifest, told, weight_cap=100)
    assert bounded.examples == 100 and bounded.means() == told.means()
    for sums in ({"examples": 0.0, "loss": 0.0, "accuracy": 0.0}, {"examples": 1.0, "loss": 1.0}):
        with pytest.raises(errors.UpdateRefused):
            check_metrics(manifest, MetricSums(sums), weight_cap=100)


def rounds() -> list[Round]:
    return [
        Round(
            number=1,
            base="b",
            config=CONFIG,
            phase=RoundPhase.COMMITTED,
            version="v1",
            buffer={0: 2},
            federated={"loss": 4.0, "accuracy": 1.0, "auc": 1.5, "examples": 2.0, **COUNTS},
            training={"loss": 9.0, "examples": 3.0},
        ),
        Round(
            number=2, base="v1", config=CONFIG, phase=RoundPhase.ABANDONED, cause=Cause.DEADLINE, version=None, failed=3
        ),
        Round(
            number=3,
            base="v1",
            config=CONFIG,
            phase=RoundPhase.COMMITTED,
            version="v3",
            buffer={0: 1},
            central={"loss": 0.5, "accuracy": 1.0, "examples": 1.0},
        ),
    ]


def history() -> History:
    return History(tuple(RoundRecord.of(r, bytes_up=5, bytes_down=7, seconds=0.5) for r in rounds()), "completed", "v3")


def test_a_round_becomes_one_event_line() -> None:
    line = history().to_dicts()[0]
    expected = {
        "event": "round", "round": 1, "state": "committed", "cause": None, "accepted": 2, "failed": 0, "loss": 2.0,
        "accuracy": 0.5, "evaluation": "federated", "bytes_up": 5, "bytes_down": 7, "seconds": 0.5, "model": "v1",
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    assert json.loads(json.dumps(line, allow_nan=False)) == line
    assert line["training"] == {"loss": 3.0} and line["metrics"]["auc"] == 0.75
    assert line["fairness"]["accuracy"] == {
        "clients": 2, "worst_decile": 0.25, "median": 0.5, "best_decile": 0.75, "deviation": 0.25
    }  # fmt: skip
    assert line["fairness"]["loss"]["worst_decile"] == 3.0


def test_an_abandoned_round_names_its_cause_and_has_no_model() -> None:
    line = history().to_dicts()[1]
    assert (line["state"], line["cause"], line["model"], line["loss"]) == ("abandoned", "deadline", None, None)


def test_a_history_survives_its_lines() -> None:
    lines = json.loads(json.dumps(history().to_dicts()))
    assert History.from_dicts(lines, reason="completed", best="v3") == history()


def test_curves_and_the_last_version() -> None:
    run = history()
    assert run.curve("accuracy") == [(1, 0.5), (3, 1.0)]
    assert run.curve("training.loss") == [(1, 3.0)]
    assert run.curve("fairness.accuracy") == [(1, 0.25)]
    assert run.curve("nothing") == run.curve("fairness.auc") == run.curve("other.loss") == []
    assert len(run) == 3 and [record.round for record in run] == [1, 2, 3]
    assert run.final is not None and run.final.model == "v3"
    assert History().final is None


def test_a_table_for_spreadsheets() -> None:
    lines = history().to_csv().splitlines()
    assert (
        lines[0] == "round,state,cause,accepted,failed,evaluation,bytes_up,bytes_down,seconds,model,accuracy,auc,loss,"
        "accuracy_worst_decile,loss_worst_decile"
    )
    assert lines[1].endswith("v1,0.5,0.75,2.0,0.25,3.0")
    assert lines[2] == "2,abandoned,deadline,0,3,,5,7,0.5,,,,,,"
