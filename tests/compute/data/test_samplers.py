"""Samplers and shards: which rows, how often, in which order."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute.data import (
    BalancedSampler,
    RandomSampler,
    ReplacementSampler,
    Sampler,
    SubsetSampler,
    WeightedSampler,
)
from coterie.errors import ArgumentValueError
from tests.compute.data.pipelines import numbered

ROWS = 20
WEIGHTS = np.array([0.0, 1, 2, 3, 4] * 4)
LABELS = np.array([0] * 15 + [1] * 4 + [2])
SAMPLERS: dict[str, Sampler] = {
    "random": RandomSampler(3),
    "some": RandomSampler(3, count=7),
    "replacement": ReplacementSampler(50, seed=1),
    "weighted": WeightedSampler(WEIGHTS, 400, seed=2),
    "subset": SubsetSampler(np.array([3, 3, 19])),
    "balanced": BalancedSampler(LABELS, 30, seed=4),
}


@pytest.mark.capability("F4")
@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_a_sampler_gives_rows_of_the_data_and_the_same_each_time(name: str) -> None:
    sampler = SAMPLERS[name]
    order = sampler.order(ROWS, 5)
    assert len(order) == sampler.size(ROWS) and order.dtype == np.int64
    assert order.min() >= 0 and order.max() < ROWS
    assert order.tolist() == sampler.order(ROWS, 5).tolist()
    assert (order.tolist() == sampler.order(ROWS, 6).tolist()) is (name == "subset")
    batch = numbered(ROWS).sample(sampler).batch(len(order)).first()
    assert batch["id"].tolist() == sampler.order(ROWS, 0).tolist()


@pytest.mark.capability("F4")
def test_each_rule_keeps_its_promise() -> None:
    assert sorted(SAMPLERS["random"].order(ROWS, 0)) == list(range(ROWS))
    assert len(set(SAMPLERS["some"].order(ROWS, 0).tolist())) == 7
    counts = np.bincount(SAMPLERS["weighted"].order(ROWS, 0), minlength=ROWS).reshape(4, 5).sum(0)
    assert counts[0] == 0 and (np.abs(counts - 40 * np.arange(5)) < 40).all()  # four deviations of the last at most
    drawn = np.bincount(np.concatenate([SAMPLERS["replacement"].order(ROWS, e) for e in range(40)]))
    assert len(drawn) == ROWS and drawn.min() > 60 and drawn.max() < 145  # 100 expected, deviation 9.7
    balanced = LABELS[SAMPLERS["balanced"].order(ROWS, 0)]
    assert np.bincount(balanced).tolist() == [10, 10, 10]
    of_two = [row for row in SAMPLERS["balanced"].order(ROWS, 0) if LABELS[row] == 1]
    assert {of_two.count(row) for row in range(15, 19)} == {2, 3}


@pytest.mark.capability("F4")
@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 3))
def test_shards_are_disjoint_and_complete_in_every_pass(rows: int, count: int, epoch: int) -> None:
    found = [list(numbered(rows).shuffle(1).shard(count, index).batch(1).epochs(epoch + 1)) for index in range(count)]
    sizes = [len(part) // (epoch + 1) for part in found]
    assert max(sizes) - min(sizes) <= 1 and sum(sizes) == rows
    last = [int(batch["id"][0]) for part, size in zip(found, sizes, strict=True) for batch in part[-size:] if size]
    assert sorted(last) == list(range(rows))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "weights": (lambda: WeightedSampler(np.array([1.0, -1.0]), 3), "none negative"),
    "no weight": (lambda: WeightedSampler(np.zeros(3), 3), "none negative"),
    "number of weights": (lambda: numbered(4).sample(WeightedSampler(np.ones(3), 3)), "3 weights for 4 rows"),
    "indices": (lambda: numbered(4).sample(SubsetSampler(np.array([4]))), "0 … 3"),
    "fractions": (lambda: SubsetSampler(np.array([0.5])), "whole numbers"),
    "count": (lambda: numbered(4).sample(ReplacementSampler(0)), "at least 1"),
    "more than all": (lambda: numbered(4).sample(RandomSampler(count=5)), "5 of 4 rows"),
    "labels": (lambda: numbered(4).sample(BalancedSampler(np.arange(3), 3)), "3 labels for 4 rows"),
    "kinds of labels": (lambda: BalancedSampler(np.zeros(3), 3), "whole number or text"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_samplers_that_do_not_fit_are_refused(case: str) -> None:
    act, said = REFUSED[case]
    with pytest.raises(ArgumentValueError, match=said):
        act()
