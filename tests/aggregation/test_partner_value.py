"""What a partner is worth, of any scores: intervals beside another method's, and the laws of Shapley values."""

import json
from collections.abc import Callable
from importlib import import_module
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie import errors
from coterie.aggregation.evaluation.metrics import METRICS, ScoreMetricName
from coterie.aggregation.evaluation.partner_value import Coalition, partner_value

# Without type stubs.
stats: Any = import_module("scipy.stats")
metrics: Any = import_module("sklearn.metrics")

Numbers = NDArray[np.float64]


def scored(rows: int, seed: int, help: float = 0.6) -> tuple[Numbers, Numbers, Numbers]:
    """Labels, the scores of one who is alone, and those of both."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(rows) < 0.3).astype(float)
    alone = rng.normal(size=rows) + labels
    return labels, alone, alone + help * labels + 0.5 * rng.normal(size=rows)


def either(alone: Numbers, joint: Numbers) -> Callable[[Coalition], Numbers]:
    return lambda coalition: joint if coalition else alone


def delong(labels: Numbers, one: Numbers, other: Numbers) -> float:
    """The standard error of the difference of two areas (DeLong et al. 1988), by its definition."""
    placed: list[tuple[Numbers, Numbers]] = []
    for scores in (one, other):
        pairs = scores[labels == 1][:, None] - scores[labels == 0][None]
        above = (pairs > 0) + (pairs == 0) / 2
        placed.append((above.mean(axis=1), above.mean(axis=0)))
    differences = [a - b for a, b in zip(*placed, strict=True)]
    return float(np.sqrt(sum(each.var(ddof=1) / len(each) for each in differences)))


@pytest.mark.parametrize("digits", [None, 0])
def test_the_interval_of_an_area_is_as_wide_as_delongs(digits: int | None) -> None:
    """Also where most scores are tied."""
    labels, alone, joint = scored(1500, 0)
    if digits is not None:
        alone, joint = np.round(alone, digits), np.round(joint, digits)
    found = partner_value(either(alone, joint), ("shop",), labels, resamples=2000)
    assert found.alone == pytest.approx(metrics.roc_auc_score(labels, alone), abs=1e-12)
    assert found.joint == pytest.approx(metrics.roc_auc_score(labels, joint), abs=1e-12)
    assert found.gain.value == pytest.approx(found.joint - found.alone) and found.shares["shop"] == found.gain
    width = 2 * stats.norm.ppf(0.975) * delong(labels, joint, alone)
    assert found.gain.low is not None and found.gain.high is not None
    assert found.gain.high - found.gain.low == pytest.approx(width, rel=0.08)
    assert (found.gain.low + found.gain.high) / 2 == pytest.approx(found.gain.value, abs=width / 20)


def test_intervals_hold_the_true_gain_as_often_as_they_say() -> None:
    # Of normal scores one deviation of d apart, the area is that of d / sqrt 2.
    truth = stats.norm.cdf(1.6 / np.sqrt(2 + 0.5)) - stats.norm.cdf(1 / np.sqrt(2))
    truth_found = 0
    for seed in range(150):
        labels, alone, joint = scored(400, seed)
        gain = partner_value(either(alone, joint), ("shop",), labels, resamples=200, level=0.9, seed=seed).gain
        assert gain.low is not None and gain.high is not None
        truth_found += gain.low <= truth <= gain.high
    # A binomial of 150 and 0.9 leaves these bounds once in a thousand times.
    assert 121 <= truth_found <= 146


def test_no_gain_is_claimed_for_noise_and_one_is_for_knowledge() -> None:
    rng = np.random.default_rng(5)
    labels, alone, joint = scored(800, 1)
    noise = partner_value(either(alone, alone + 0.05 * rng.normal(size=800)), ("shop",), labels)
    assert not noise.gain.is_clear and "not clear of 0" in noise.text()
    assert partner_value(either(alone, alone), ("shop",), labels).gain.is_clear is False
    clear = partner_value(either(alone, joint), ("shop",), labels)
    assert clear.gain.is_clear and clear.gain.low is not None and clear.gain.low > 0
    worse = partner_value(either(joint, alone), ("shop",), labels)
    assert worse.gain.is_clear and worse.gain.value == pytest.approx(-clear.gain.value)


@pytest.mark.parametrize("metric", METRICS)
def test_above_nought_the_partner_helps_whatever_the_metric(metric: ScoreMetricName) -> None:
    rng = np.random.default_rng(0)
    truth = rng.uniform(0.05, 0.95, 900)
    labels = (rng.random(900) < truth).astype(float) if METRICS[metric].labels == "classes" else truth
    vague = 0.5 + (truth - 0.5) * 0.2 + rng.uniform(-0.2, 0.2, 900)
    found = partner_value(either(vague, truth), ("shop",), labels, metric=metric, resamples=200)
    assert found.gain.is_clear and found.gain.value > 0
    assert found.gain.value == pytest.approx(METRICS[metric].sign * (found.joint - found.alone))
    assert json.loads(json.dumps(found.to_json(), allow_nan=False)) == found.to_json()


def of_three(labels: Numbers, seed: int = 0) -> Callable[[Coalition], Numbers]:
    """Scores that get better by each of a and b, less so by b after a, and not at all by c."""
    rng = np.random.default_rng(seed)
    base, noise_a, noise_b = rng.normal(size=(3, len(labels)))

    def scores(coalition: Coalition) -> Numbers:
        found = base + 0.4 * labels
        found = found + (labels + 0.3 * noise_a if "a" in coalition else 0)
        return found + ((0.3 if "a" in coalition else 0.7) * labels + 0.2 * noise_b if "b" in coalition else 0)

    return scores


def test_shapley_values_are_means_over_orders_and_add_up_to_the_gain() -> None:
    labels = (np.random.default_rng(9).random(700) < 0.4).astype(float)
    scores, partners = of_three(labels), ("a", "b", "c")
    asked: list[Coalition] = []

    def counted(coalition: Coalition) -> Numbers:
        asked.append(coalition)
        return scores(coalition)

    found = partner_value(counted, partners, labels, resamples=300)
    assert len(asked) == len({*asked}) == 8
    added = dict.fromkeys(partners, 0.0)
    for order in permutations(partners):
        for place, partner in enumerate(order):
            before, after = frozenset(order[:place]), frozenset(order[: place + 1])
            one, other = (metrics.roc_auc_score(labels, scores(each)) for each in (after, before))
            added[partner] += float(one - other) / 6
    assert {name: share.value for name, share in found.shares.items()} == pytest.approx(added)
    # Efficiency; who adds nothing gets nothing, in every resample too.
    assert sum(share.value for share in found.shares.values()) == pytest.approx(found.joint - found.alone, abs=1e-12)
    assert (found.shares["c"].value, found.shares["c"].low, found.shares["c"].high) == pytest.approx((0, 0, 0))
    assert found.shares["a"].value > found.shares["b"].value > 0 and found.shares["b"].is_clear
    # Names and their order change no share.
    turned = partner_value(scores, ("c", "b", "a"), labels, resamples=300)
    for name in partners:
        assert turned.shares[name].value == pytest.approx(found.shares[name].value)
        assert turned.shares[name].low == pytest.approx(found.shares[name].low)
    assert found.text().count("of it") == 3


def test_partners_who_know_the_same_have_the_same_share() -> None:
    labels, alone, joint = scored(500, 3)
    found = partner_value(either(alone, joint), ("a", "b"), labels, resamples=100)
    assert found.shares["a"] == found.shares["b"] and found.shares["a"].value == pytest.approx(found.gain.value / 2)


def test_a_seed_makes_it_again_and_the_order_of_rows_changes_no_value() -> None:
    labels, alone, joint = scored(300, 2)
    one, same, other = (
        partner_value(either(alone, joint), ("shop",), labels, resamples=100, seed=seed) for seed in (1, 1, 2)
    )
    assert one == same and one.gain.value == other.gain.value and one.gain.low != other.gain.low
    back = partner_value(either(alone[::-1], joint[::-1]), ("shop",), labels[::-1], resamples=100, seed=1)
    assert back.gain.value == pytest.approx(one.gain.value, abs=1e-12)


def test_where_a_resample_does_not_define_the_metric_there_is_no_interval() -> None:
    truth = np.array([1.0, 2.0])
    found = partner_value(either(np.zeros(2), truth), ("shop",), truth, metric="r2", resamples=200)
    assert (found.gain.low, found.gain.high, found.gain.is_clear) == (None, None, False)
    assert found.joint == 1.0 and "does not define r2" in found.text()


def test_rows_of_one_label_have_what_they_define() -> None:
    found = partner_value(
        either(np.full(4, 0.5), np.array([0.6, 0.7, 0.8, 0.9])), ("shop",), np.ones(4), metric="brier", resamples=50
    )
    assert found.gain.is_clear and found.gain.value == pytest.approx(0.25 - (0.16 + 0.09 + 0.04 + 0.01) / 4)


def test_mistakes_are_named() -> None:
    labels, alone, joint = scored(50, 0)
    usual: dict[str, Any] = {"scores": either(alone, joint), "partners": ("shop",), "labels": labels}
    cases: list[tuple[type[errors.CoterieError], str, dict[str, Any]]] = [
        (errors.ArgumentValueError, "no metric 'acu'", {"metric": "acu"}),
        (errors.ArgumentValueError, "1 to 8", {"partners": tuple("abcdefghi")}),
        (errors.ArgumentValueError, "1 to 8", {"partners": ()}),
        (errors.ArgumentValueError, "must differ", {"partners": ("a", "a")}),
        (errors.ArgumentValueError, "resamples", {"resamples": 0}),
        (errors.ArgumentValueError, "level", {"level": 1.0}),
        (errors.DataError, "scores of the label owner alone: there are 50, and 49 rows", {"labels": labels[1:]}),
        (errors.DataError, "auc is not defined for the scores of the label owner alone", {"labels": np.ones(50)}),
        (errors.DataError, "log_loss is not defined", {"metric": "log_loss"}),
        (errors.DataError, "scores of shop: row 1", {"scores": either(alone, np.full(50, np.nan))}),
    ]
    for kind, says, changes in cases:
        with pytest.raises(kind, match=says):
            partner_value(**{**usual, **changes})
