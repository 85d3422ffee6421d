"""Trees of several parties in one process, as a researcher tries them."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.aggregation.evaluation.evaluation import ClassEvaluation, evaluate_classes, evaluate_numbers, stability
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.errors import ConfigurationError, DataError
from coterie.simulation.trees import simulate_trees
from tests.patience import patience

EXAMPLE = Path(__file__).parents[2] / "examples" / "boosted_trees.py"

ROWS = 120
COLUMNS = {"clinic": ("pressure",), "registry": ("density", "size")}
TERMS = TreeTerms(label_owner="clinic", feature_owners=("registry",), trees=2, depth=2, bins=6, key_bits=2048)


def tables() -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(0)
    pressure, density, size = rng.normal(size=(3, ROWS))
    ill = (pressure + density > 0).astype(float)
    return {"clinic": {"pressure": pressure, "ill": ill}, "registry": {"density": density, "size": size}}


def test_encryption_changes_the_time_alone() -> None:
    held = np.arange(ROWS) % 3 == 0
    apart, joined = (
        simulate_trees(TERMS, tables(), columns=COLUMNS, label="ill", held_out=held, encrypted=encrypted)
        for encrypted in (True, False)
    )
    assert apart.forest == joined.forest and apart.splits == joined.splits and apart.report == joined.report
    assert np.array_equal(apart.predict(tables()), joined.predict(tables()))
    assert apart.sent["clinic"] > 2 * 512 * (~held).sum() and apart.sent["registry"] > 0 and joined.sent == {}
    assert apart.report.auc is not None and apart.report.held_out_auc is not None
    assert apart.report.auc > 0.9 and apart.report.held_out_auc > 0.7
    assert set(apart.importance()) >= {"clinic: pressure", "registry: density"}


def test_a_report_is_of_the_forest_as_it_ends_on_both_sides() -> None:
    """Which has fewer trees than were grown, where rows held out say so."""
    held = np.arange(ROWS) % 3 == 0
    terms = replace(TERMS, trees=60, learning_rate=1.0, patience=5)
    grown = simulate_trees(terms, tables(), columns=COLUMNS, label="ill", held_out=held, encrypted=False)
    report, labels = grown.report, tables()["clinic"]["ill"]
    assert len(grown.forest.trees) < len(report.losses)
    said = grown.predict(tables())
    assert report.train == evaluate_classes(said[~held], labels[~held])
    assert report.held_out == evaluate_classes(said[held], labels[held])
    moved = stability(said[~held], said[held])
    assert report.stability == moved and moved is not None and moved > 0
    assert isinstance(report.train, ClassEvaluation) and isinstance(report.held_out, ClassEvaluation)
    assert (report.auc, report.held_out_auc) == (report.train.auc, report.held_out.auc)
    assert report.held_out.log_loss == pytest.approx(min(report.held_out_losses or ()))
    lines = report.text().splitlines()
    assert lines[0].split("  ")[-2:] == ["train", "held out"] and lines[-1].startswith("stability index")
    whole = simulate_trees(TERMS, tables(), columns=COLUMNS, label="ill", encrypted=False)
    assert (whole.report.held_out, whole.report.stability, whole.report.held_out_auc) == (None, None, None)


def test_trees_of_numbers_are_measured_as_numbers() -> None:
    held = np.arange(ROWS) % 3 == 0
    terms = replace(TERMS, loss="squared", trees=8)
    grown = simulate_trees(terms, tables(), columns=COLUMNS, label="ill", held_out=held, encrypted=False)
    said, labels = grown.predict(tables()), tables()["clinic"]["ill"]
    assert grown.report.held_out == evaluate_numbers(said[held], labels[held]) and grown.report.auc is None


def test_a_forest_without_splits_predicts_for_every_row() -> None:
    useless = {"clinic": {**tables()["clinic"], "pressure": np.zeros(ROWS)}, "registry": tables()["registry"]}
    columns = {"clinic": ("pressure",), "registry": ()}
    grown = simulate_trees(TERMS, useless, columns=columns, label="ill", encrypted=False)
    assert grown.predict(useless) == pytest.approx(np.full(ROWS, useless["clinic"]["ill"].mean()))


def test_a_partner_is_worth_what_its_columns_say() -> None:
    terms = replace(TERMS, trees=20)
    held = np.arange(ROWS) % 3 == 0
    asked: dict[str, Any] = {"columns": COLUMNS, "label": "ill", "held_out": held, "encrypted": False}
    joint = simulate_trees(terms, tables(), **asked)
    useless = {**tables(), "registry": {"density": np.zeros(ROWS), "size": np.zeros(ROWS)}}
    alone = simulate_trees(terms, useless, **asked)
    assert joint.report.held_out_auc is not None and alone.report.held_out_auc is not None
    assert joint.report.held_out_auc > alone.report.held_out_auc + 0.1
    assert not [name for name in alone.importance() if name.startswith("registry")]


def test_mistakes_are_named() -> None:
    asked: dict[str, Any] = {"columns": COLUMNS, "label": "ill", "encrypted": False}
    good = tables()
    with pytest.raises(ConfigurationError) as caught:
        simulate_trees(TERMS, {"clinic": good["clinic"]}, **asked)
    assert caught.value.reason == "role_unknown"
    short = {**good, "registry": {name: values[:-1] for name, values in good["registry"].items()}}
    with pytest.raises(DataError, match="clinic 120, registry 119") as found:
        simulate_trees(TERMS, short, **asked)
    assert found.value.reason == "data_lengths"
    grown = simulate_trees(TERMS, good, **asked)
    with pytest.raises(DataError, match="different numbers of rows"):
        grown.predict(short)
    with pytest.raises(DataError, match="is not 0 or 1 in row 1"):
        simulate_trees(TERMS, {**good, "clinic": {**good["clinic"], "ill": np.full(ROWS, 3.0)}}, **asked)


def test_the_example_shows_what_a_partner_is_worth() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=patience(60), check=True
    )
    found = re.match(r"AUC on rows held out: (0\.\d+), of the clinic alone (0\.\d+)", done.stdout)
    assert found and float(found[1]) > 0.97 > float(found[2]) + 0.05, done.stdout
    assert "laboratory: worst" in done.stdout
