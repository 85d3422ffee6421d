"""What lying clients send."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import errors
from coterie.aggregation.attacks import ATTACKS, OPTIMISED, LineSearch, attack, optimised
from coterie.aggregation.attacks.attack import Updates
from coterie.aggregation.attacks.forged import inner_product, little_is_enough
from coterie.aggregation.attacks.optimised import Family
from coterie.aggregation.attacks.poisoned import TARGET, flip_labels, plant_trigger, with_trigger
from coterie.aggregation.reducers import Vector, aggregate

RNG = np.random.default_rng(0)
VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "robust.json").read_text("utf-8"))


@pytest.mark.parametrize("case", VECTORS["attacks"], ids=lambda case: case["attack"])
def test_known_answers(case: dict[str, Any]) -> None:
    honest = np.array(VECTORS["updates"], np.float32)
    sent = attack(case["attack"]).forge(honest, np.zeros((2, 3), np.float32), np.random.default_rng(0))
    np.testing.assert_allclose(sent, [case["expected"]] * 2, rtol=1e-6)


@pytest.mark.parametrize("name", [*ATTACKS, *OPTIMISED])
def test_an_attack_is_repeated_by_its_seed_and_changes_nothing_else(name: str) -> None:
    generator = np.random.default_rng(1)
    honest, own = (generator.normal(size=(count, 30)).astype(np.float32) for count in (7, 3))
    kept = honest.copy(), own.copy()
    made = attack(name, lambda sent: aggregate("nnm(3)+trimmed_mean(3)", sent))
    first, again = (made.forge(honest, own, np.random.default_rng(5)) for _ in range(2))
    assert first.shape == own.shape and first.dtype == np.float32
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(honest, kept[0])
    np.testing.assert_array_equal(own, kept[1])


def test_min_max_stays_as_near_as_the_honest_are_to_each_other() -> None:
    honest = 1 + np.random.default_rng(2).normal(size=(9, 40)).astype(np.float32)
    sent = ATTACKS["min_max"].forge(honest, honest[:1], np.random.default_rng(0))[0]
    largest = max(np.linalg.norm(a - b) for a in honest for b in honest)
    furthest = max(np.linalg.norm(sent - a) for a in honest)
    assert furthest == pytest.approx(largest, rel=1e-4)
    assert (sent - honest.mean(axis=0)) @ honest.mean(axis=0) < 0


def test_min_sum_is_no_further_in_sum_than_the_furthest_honest_one() -> None:
    honest = 1 + np.random.default_rng(2).normal(size=(9, 40)).astype(np.float32)
    sent = ATTACKS["min_sum"].forge(honest, honest[:1], np.random.default_rng(0))[0]
    largest = max(sum(np.sum((a - b) ** 2) for b in honest) for a in honest)
    assert sum(np.sum((sent - b) ** 2) for b in honest) == pytest.approx(largest, rel=1e-4)
    assert (sent - honest.mean(axis=0)) @ honest.mean(axis=0) < 0


def test_free_riders_send_nothing() -> None:
    assert not ATTACKS["free_rider"].forge(np.ones((3, 4), np.float32), np.ones((2, 4), np.float32), RNG).any()


def test_poisoned_rows() -> None:
    features, labels = np.random.default_rng(0).random((6, 28, 28)).astype(np.float32), np.arange(6, dtype=np.int32)
    np.testing.assert_array_equal(flip_labels(features, labels, 10)[1], 9 - labels)
    marked, called = plant_trigger(features, labels, 10)
    np.testing.assert_array_equal(called, [TARGET, 1, TARGET, 3, TARGET, 5])
    np.testing.assert_array_equal(marked[1], features[1])
    assert (marked[0, :3, :3] == features.max()).all()
    np.testing.assert_array_equal(with_trigger(features.reshape(6, -1)).reshape(6, 28, 28), with_trigger(features))


def test_an_unknown_attack_is_refused() -> None:
    with pytest.raises(errors.InputError, match="no attack 'moon'") as caught:
        attack("moon")
    assert caught.value.reason == "unknown_attack" and "opt_alie" in str(caught.value.hint)
    with pytest.raises(errors.InputError, match="against a reducer") as caught:
        attack("opt_alie")
    assert caught.value.reason == "attack_needs_rule"


# Attacks that look for their strength against a rule.

FAMILIES: dict[str, Family] = {"opt_ipm": inner_product, "opt_alie": little_is_enough}
STANDING = (
    *("norm_bound(1)", "median", "trimmed_mean(4)", "meamed(4)", "krum(4)", "multi_krum(4)", "bulyan(4)"),
    *("geometric_median", "centered_clipping(1,3)", "arc()+trimmed_mean(4)", "nnm(4)+median", "nnm(4)+krum(4)"),
    "norm_bound(1)+nnm(4)+trimmed_mean(4)",
)


@pytest.mark.parametrize("case", VECTORS["optimised"]["cases"], ids=lambda case: f"{case['attack']}-{case['reducer']}")
def test_known_answers_of_the_line_search(case: dict[str, Any]) -> None:
    honest = np.array(VECTORS["optimised"]["updates"][case["updates"]], np.float32)
    made = optimised(FAMILIES[case["attack"]], lambda sent: aggregate(case["reducer"], sent), LineSearch(steps=(10.0,)))
    sent = made(honest, np.zeros((case["lying"], honest.shape[1]), np.float32), RNG)
    np.testing.assert_allclose(sent, [case["expected"]] * case["lying"], rtol=1e-6, atol=1e-7)


def _moved(rule: str, honest: Updates, sent: Updates) -> float:
    return float(np.linalg.norm(aggregate(rule, np.concatenate([honest, sent])) - honest.mean(axis=0, dtype=float)))


@pytest.mark.parametrize("apart", [0.3, 3.0], ids=["alike", "apart"])
@pytest.mark.parametrize("name", OPTIMISED)
@pytest.mark.parametrize("rule", STANDING)
def test_the_strength_found_moves_a_rule_as_far_as_any_of_a_fine_grid(rule: str, name: str, apart: float) -> None:
    """Rules that let one strength pass and stop a larger one included, which a single search walks past."""
    generator = np.random.default_rng(3)
    honest = ((generator.normal(size=300) + apart * generator.normal(size=(16, 300))) / 20).astype(np.float32)
    own = np.zeros((4, 300), np.float32)
    found = attack(name, lambda sent: aggregate(rule, sent)).forge(honest, own, RNG)
    grid = np.concatenate([np.linspace(0, 5, 51), np.geomspace(5, 100, 15)])
    furthest = max(_moved(rule, honest, FAMILIES[name](strength)(honest, own, RNG)) for strength in grid)
    assert _moved(rule, honest, found) >= 0.95 * furthest


@pytest.mark.parametrize("name", OPTIMISED)
def test_a_mean_is_moved_without_end(name: str) -> None:
    honest = updates_around(np.random.default_rng(4))
    sent = attack(name, lambda sent: aggregate("mean", sent)).forge(honest, honest[:2], RNG)
    assert _moved("mean", honest, sent) > 1e4


def test_strengths_at_which_a_rule_refuses_are_not_chosen() -> None:
    honest = updates_around(np.random.default_rng(4))

    def careful(sent: Updates) -> Vector:
        if np.abs(sent).max() > 3:
            raise errors.UpdateRefused("That is too much.", code="not_finite")
        return aggregate("mean", sent)

    sent = attack("opt_ipm", careful).forge(honest, honest[:2], RNG)
    assert 2 < np.abs(sent).max() <= 3
    sent = attack("opt_ipm", lambda sent: aggregate("krum(9)", sent)).forge(honest, honest[:2], RNG)
    assert not sent.any()


def test_what_rounding_moves_is_no_gain() -> None:
    assert LineSearch().strongest(lambda strength: 1.0 + 1e-9 * min(strength, 10.0)) == 0.0
    assert LineSearch(steps=(1.0,), evaluations=4).strongest(lambda strength: strength) == 7.0
    assert LineSearch(steps=(5.0,), evaluations=9).strongest(lambda strength: -abs(strength - 5.0)) == 5.0


@pytest.mark.parametrize(
    "wrong",
    [{"steps": ()}, {"steps": (1.0, 0.0)}, {"evaluations": 0}, {"start": np.inf}, {"ratio": 1.0}, {"ratio": np.nan}],
)
def test_what_is_no_search_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.ArgumentValueError, match="is not a valid search"):
        LineSearch(**wrong)


def updates_around(generator: np.random.Generator) -> Updates:
    """Seven honest updates around one."""
    return (1 + generator.normal(size=(7, 30)) / 10).astype(np.float32)
