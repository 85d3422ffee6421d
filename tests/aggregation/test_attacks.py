"""What lying clients send."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import errors
from coterie.aggregation.attacks import ATTACKS, attack
from coterie.aggregation.attacks.poisoned import TARGET, flip_labels, plant_trigger, with_trigger

RNG = np.random.default_rng(0)
VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "robust.json").read_text("utf-8"))


@pytest.mark.parametrize("case", VECTORS["attacks"], ids=lambda case: case["attack"])
def test_known_answers(case: dict[str, Any]) -> None:
    honest = np.array(VECTORS["updates"], np.float32)
    sent = attack(case["attack"]).forge(honest, np.zeros((2, 3), np.float32), np.random.default_rng(0))
    np.testing.assert_allclose(sent, [case["expected"]] * 2, rtol=1e-6)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_repeated_by_its_seed_and_changes_nothing_else(name: str) -> None:
    generator = np.random.default_rng(1)
    honest, own = (generator.normal(size=(count, 30)).astype(np.float32) for count in (7, 3))
    kept = honest.copy(), own.copy()
    first, again = (ATTACKS[name].forge(honest, own, np.random.default_rng(5)) for _ in range(2))
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
    with pytest.raises(errors.InputError, match="Choose one|no attack"):
        attack("moon")
