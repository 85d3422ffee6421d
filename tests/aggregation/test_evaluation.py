"""Figures of scores and labels: those of scikit-learn and SciPy, known answers, and laws."""

import json
from dataclasses import astuple
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coterie import errors
from coterie.aggregation.evaluation.evaluation import evaluate_classes, evaluate_numbers, stability
from coterie.aggregation.evaluation.rows import chances
from coterie.aggregation.evaluation.text import evaluation_text
from coterie.aggregation.whole_metrics import auc

# Without type stubs.
stats: Any = import_module("scipy.stats")
metrics: Any = import_module("sklearn.metrics")
calibration: Any = import_module("sklearn.calibration")

ROWS = 1000
RANKED = ("auc", "ks", "average_precision")
Numbers = NDArray[np.float64]


def sample(digits: int | None = None, seed: int = 0) -> tuple[Numbers, Numbers]:
    """Chances and labels that go together somewhat; of few digits they are tied."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(ROWS) < 0.3).astype(float)
    scores = 1 / (1 + np.exp(-(rng.normal(size=ROWS) + 1.2 * labels - 1)))
    return (scores if digits is None else np.round(np.clip(scores, 0.06, 0.94), digits)), labels


small = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1), st.integers(1, 4)), min_size=2, max_size=30).map(
    lambda rows: tuple(np.array(column, float) for column in zip(*rows, strict=True))
)


@pytest.mark.parametrize("digits", [None, 2, 1])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_figures_of_classes_are_those_of_other_libraries(digits: int | None, is_weighted: bool) -> None:
    scores, labels = sample(digits)
    weights = np.random.default_rng(1).random(ROWS) + 0.1 if is_weighted else None
    found = evaluate_classes(scores, labels, weights, thresholds=(0.3, 0.5))
    more: dict[str, Any] = {"sample_weight": weights}
    assert found.auc == pytest.approx(metrics.roc_auc_score(labels, scores, **more), abs=1e-12)
    assert found.average_precision == pytest.approx(metrics.average_precision_score(labels, scores, **more), abs=1e-12)
    assert found.log_loss == pytest.approx(metrics.log_loss(labels, scores, **more), abs=1e-12)
    assert found.brier == pytest.approx(metrics.brier_score_loss(labels, scores, **more), abs=1e-12)
    false, true, cuts = metrics.roc_curve(labels, scores, drop_intermediate=False, **more)
    assert found.ks == pytest.approx(np.abs(true - false).max(), abs=1e-12)
    assert found.ks is not None and found.ks_threshold == cuts[np.isclose(np.abs(true - false), found.ks)][-1]
    if not is_weighted:
        assert found.auc == auc(scores, labels)
        assert found.ks == pytest.approx(stats.ks_2samp(scores[labels == 1], scores[labels == 0]).statistic, abs=1e-12)
    for at in found.thresholds:
        said = scores >= at.threshold
        table = metrics.confusion_matrix(labels, said, **more)
        np.testing.assert_allclose(table, [[at.true_zeros, at.false_ones], [at.false_zeros, at.true_ones]])
        assert at.precision == pytest.approx(metrics.precision_score(labels, said, **more))
        assert at.recall == pytest.approx(metrics.recall_score(labels, said, **more))
        assert at.f1 == pytest.approx(metrics.f1_score(labels, said, **more))


def test_bands_without_ties_are_tenths_and_calibration_is_that_of_scikit_learn() -> None:
    scores, labels = sample()
    found = evaluate_classes(scores, labels)
    assert [band.weight for band in found.bands] == [100.0] * 10
    rates, means = calibration.calibration_curve(labels, scores, n_bins=10, strategy="quantile")
    np.testing.assert_allclose([band.rate for band in found.bands], rates[::-1])
    np.testing.assert_allclose([band.mean for band in found.bands], means[::-1])
    assert found.calibration_error == pytest.approx(np.abs(rates - means).mean())
    top = np.argsort(scores)[-100:]
    assert found.bands[0].lift == pytest.approx(labels[top].mean() / labels.mean())
    assert found.bands[0].gain == pytest.approx(labels[top].sum() / labels.sum())
    assert (found.bands[-1].reach, found.bands[-1].gain) == (1.0, 1.0)


def test_known_answers() -> None:
    found = evaluate_classes(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1]), bands=2, thresholds=(0.4, 0.9))
    # Of four pairs three are in order and one is tied.
    assert found.auc == 3.5 / 4
    # From 0.4 on: both of class 1 and one of the others; from 0.8 on one and none. The lower of both is told.
    assert (found.ks, found.ks_threshold) == (0.5, 0.4)
    assert found.average_precision == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert astuple(found.thresholds[0])[1:] == pytest.approx((2, 1, 0, 1, 2 / 3, 1, 0.8))
    # Nothing is said to be 1: no precision.
    assert astuple(found.thresholds[1])[1:] == (0, 0, 2, 2, None, 0.0, 0.0)
    assert found.brier == pytest.approx((0.01 + 0.16 + 0.36 + 0.04) / 4)
    numbers = evaluate_numbers(np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 2.0]))
    assert (numbers.rmse, numbers.mae, numbers.r2) == (pytest.approx((5 / 3) ** 0.5), 1.0, pytest.approx(1 - 5 / 2))


@pytest.mark.parametrize("is_weighted", [False, True])
def test_figures_of_numbers_are_those_of_scikit_learn(is_weighted: bool) -> None:
    rng = np.random.default_rng(0)
    predictions = rng.gamma(2.0, size=ROWS) + 0.01
    labels = rng.poisson(predictions).astype(float)
    weights = rng.random(ROWS) if is_weighted else None
    found = evaluate_numbers(predictions, labels, weights)
    more: dict[str, Any] = {"sample_weight": weights}
    assert found.rmse == pytest.approx(metrics.root_mean_squared_error(labels, predictions, **more))
    assert found.mae == pytest.approx(metrics.mean_absolute_error(labels, predictions, **more))
    assert found.r2 == pytest.approx(metrics.r2_score(labels, predictions, **more))
    assert found.poisson_deviance == pytest.approx(metrics.mean_poisson_deviance(labels, predictions, **more))


def test_what_rows_do_not_define_is_none_and_nothing_is_nan() -> None:
    scores = np.array([0.2, 0.2, 0.9])
    for labels, none in ((np.ones(3), {"auc", "ks", "ks_threshold"}), (np.zeros(3), {"auc", "ks", "ks_threshold"})):
        found = evaluate_classes(scores, labels)
        missing = {name for name, value in found.figures().items() if value is None}
        assert missing == none | (set() if labels.any() else {"average_precision"})
    one_score = evaluate_classes(np.full(3, 0.5), np.array([0, 1, 1]))
    assert (one_score.auc, one_score.ks, one_score.ks_threshold, len(one_score.bands)) == (0.5, 0.0, None, 1)
    logits = evaluate_classes(np.array([-1.0, 2.0]), np.array([0, 1]))
    assert (logits.auc, logits.log_loss, logits.brier, logits.calibration_error) == (1.0, None, None, None)
    # A chance of nought for what has happened.
    sure = evaluate_classes(np.array([0.0, 1.0, 0.0]), np.array([0, 1, 1]))
    assert sure.log_loss is None and sure.brier == pytest.approx(1 / 3)
    constant = evaluate_numbers(np.array([-1.0, 2.0]), np.array([1.0, 1.0]))
    assert (constant.r2, constant.poisson_deviance) == (None, None)
    for each in (one_score, logits, sure, constant):
        assert json.loads(json.dumps(each.to_json(), allow_nan=False)) == each.to_json()


@given(small)
@settings(max_examples=150, deadline=None)
def test_neither_the_order_of_rows_nor_ties_in_it_change_anything(rows: Any) -> None:
    scores, labels, weights = rows
    order = np.random.default_rng(len(scores)).permutation(len(scores))
    one = evaluate_classes(scores / 6, labels, weights, bands=4)
    other = evaluate_classes(scores[order] / 6, labels[order], weights[order], bands=4)
    assert _close(one.to_json(), other.to_json())


@given(small)
@settings(max_examples=150, deadline=None)
def test_a_weight_is_so_many_rows(rows: Any) -> None:
    scores, labels, weights = rows
    times = weights.astype(int)
    weighted = evaluate_classes(scores / 6, labels, weights, bands=4)
    repeated = evaluate_classes(np.repeat(scores, times) / 6, np.repeat(labels, times), bands=4)
    assert _close({**weighted.to_json(), "rows": 0}, {**repeated.to_json(), "rows": 0})
    numbers, more = (
        evaluate_numbers(scores, labels, weights),
        evaluate_numbers(np.repeat(scores, times), np.repeat(labels, times)),
    )
    assert _close({**numbers.to_json(), "rows": 0}, {**more.to_json(), "rows": 0})
    # A row that counts for nothing might as well not be there.
    spare = evaluate_classes(np.append(scores, 3.5) / 6, np.append(labels, 1), np.append(weights, 0), bands=4)
    assert _close({**spare.to_json(), "rows": 0}, {**weighted.to_json(), "rows": 0})


@given(small)
@settings(max_examples=150, deadline=None)
def test_what_is_of_the_order_alone_stays_where_scores_are_stretched(rows: Any) -> None:
    scores, labels, weights = rows
    one, other = (evaluate_classes(each, labels, weights, bands=4) for each in (scores, np.exp(2 * scores) - 9))
    assert [getattr(one, name) for name in RANKED] == [getattr(other, name) for name in RANKED]
    assert [(b.weight, b.ones, b.lift, b.gain) for b in one.bands] == [
        (b.weight, b.ones, b.lift, b.gain) for b in other.bands
    ]
    if one.ks_threshold is not None:
        assert other.ks_threshold == np.exp(2 * one.ks_threshold) - 9
    turned = evaluate_classes(-scores, labels, weights)
    assert (one.auc is None) == (turned.auc is None)
    assert one.auc is None or turned.auc is None or one.auc + turned.auc == pytest.approx(1)


@given(small, st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_bands_hold_every_row_once_and_no_score_twice(rows: Any, bands: int) -> None:
    scores, labels, weights = rows
    found = evaluate_classes(scores, labels, weights, bands=bands)
    assert len(found.bands) <= bands and sum(band.weight for band in found.bands) == weights.sum()
    assert sum(band.ones for band in found.bands) == (weights * labels).sum()
    assert all(high.lowest > low.highest for high, low in zip(found.bands, found.bands[1:], strict=False))
    # A band without rows is left out, and one has more than its part only where one score does.
    heaviest = max(weights[scores == score].sum() for score in scores)
    assert all(0 < band.weight < weights.sum() / bands + 2 * heaviest for band in found.bands)


def test_stability_is_the_sum_over_bands_of_the_first_scores() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=5000), rng.normal(0.3, 1.0, size=4000)
    edges = np.quantile(first, np.arange(1, 10) / 10)
    p, q = (np.bincount(np.searchsorted(edges, each), minlength=10) / len(each) for each in (first, second))
    assert stability(first, second) == pytest.approx(((p - q) * np.log(p / q)).sum(), abs=1e-3)
    assert stability(first, first) == 0.0
    # Scores are only compared, so that maps that rise change nothing; nor does the order of rows.
    assert stability(np.exp(first), np.exp(second)) == stability(first[::-1], rng.permutation(second))
    same = stability(first, rng.normal(size=4000))
    assert same is not None and same < 0.01


def test_a_band_without_rows_counts_as_half_a_row() -> None:
    # Two bands; all ten of the others are in the upper one.
    found = stability(np.array([1.0, 2.0]), np.full(10, 5.0), bands=2)
    assert found == pytest.approx((0.5 - 0.05) * np.log(0.5 / 0.05) + (0.5 - 1) * np.log(0.5))
    assert stability(np.ones(4), np.array([1.0, 2.0])) is None


def test_outputs_of_networks_are_chances() -> None:
    logits = np.array([[0.0, 2.0], [1.0, 1.0], [800.0, -800.0]])
    expected = [1 / (1 + np.exp(-2.0)), 0.5, 0.0]
    np.testing.assert_allclose(chances(logits), expected)
    np.testing.assert_allclose(chances(np.array([[2.0], [0.0]])), expected[:2])
    np.testing.assert_allclose(chances(np.array([2.0, 0.0])), expected[:2])
    with pytest.raises(errors.DataError, match="two labels"):
        chances(np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("scores", "labels", "weights", "reason", "says"),
    [
        ([0.1, np.nan], [0, 1], None, "data_cell", "scores: row 2"),
        ([0.1, np.inf], [0, 1], None, "data_cell", "scores: row 2"),
        ([0.1, 0.2], [0, 2], None, "data_cell", "labels: row 2 is not 0 or 1"),
        ([0.1, 0.2], [0, 1, 1], None, "data_lengths", "labels: there are 3, and 2 rows"),
        (["a", "b"], [0, 1], None, "data_dtype", "scores: these are not numbers"),
        ([[0.1, 0.9]], [1], None, "data_shape", r"\[1, 2\]"),
        ([], [], None, "data_empty", "no row"),
        ([0.1, 0.2], [0, 1], [1, -1], "data_cell", "weights: row 2 is negative"),
        ([0.1, 0.2], [0, 1], [0, 0], "data_cell", "all are 0"),
    ],
)
def test_rows_that_cannot_be_are_refused(scores: Any, labels: Any, weights: Any, reason: str, says: str) -> None:
    with pytest.raises(errors.DataError, match=says) as caught:
        evaluate_classes(
            np.array(scores) if scores else np.empty(0),
            np.array(labels) if labels else np.empty(0),
            None if weights is None else np.array(weights),
        )
    assert caught.value.reason == reason
    with pytest.raises(errors.ArgumentValueError):
        evaluate_classes(np.array([0.1]), np.array([1]), bands=0)


def test_tables_show_every_figure_side_by_side() -> None:
    scores, labels = sample(1)
    both = {
        "train": evaluate_classes(scores[:700], labels[:700]),
        "held out": evaluate_classes(scores[700:], labels[700:]),
    }
    text = evaluation_text(both)
    head, *lines = text.split("\n\n")[0].splitlines()
    assert head.split("  ")[-2:] == ["train", "held out"] and len(lines) == len(both["train"].figures())
    assert f"{both['held out'].auc:.4f}" in next(line for line in lines if line.startswith("auc"))
    assert text.count("by bands of scores") == 2 and text.count("saying 1 from a score on") == 2
    none = evaluation_text({"all": evaluate_classes(scores, np.ones(ROWS))})
    assert next(line for line in none.splitlines() if line.startswith("auc")).split() == ["auc", "-"]


def _close(one: Any, other: Any) -> bool:
    """Whether JSON values are equal but for rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_close(one[name], other[name]) for name in one)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_close, one, other))  # pyright: ignore[reportUnknownArgumentType]
    return one == other if one is None or other is None else one == pytest.approx(other, abs=1e-12)
