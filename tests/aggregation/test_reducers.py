"""The monoid laws, over the table of reducers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie import errors
from coterie.aggregation.reducers import Accumulator, Reducer, reducer

Vector = npt.NDArray[np.float32]
LENGTH = 7
SUMS = ("mean", "norm_bound(100)", "sum")
VECTORS = arrays(np.float32, LENGTH, elements=st.floats(-1e6, 1e6, width=32))
UPDATES = st.lists(st.tuples(VECTORS, st.integers(0, 1000)), min_size=1, max_size=8)


def chunks(vector: Vector, size: int = 3) -> Iterator[tuple[int, Vector]]:
    for start in range(0, vector.size, size):
        yield start, vector[start : start + size]


def total(rule: Reducer, updates: list[tuple[Vector, int]], size: int = 3) -> Accumulator:
    acc = rule.init(LENGTH)
    for vector, weight in updates:
        acc = rule.add(acc, chunks(vector, size), float(weight))
    return acc


def result(rule: Reducer, acc: Accumulator) -> Vector | None:
    try:
        return rule.result(acc).astype(np.float32)
    except errors.UpdateRefused as error:
        assert error.reason == "zero_weight"
        return None


def near(left: Vector | None, right: Vector | None, scale: float) -> None:
    """Equal to 1 ulp of float32; where terms cancel, of the largest of them."""
    assert (left is None) == (right is None)
    if left is not None and right is not None:
        assert np.all(np.abs(left - right) <= np.maximum(np.spacing(np.abs(left)), scale * 2.0**-48))


@pytest.fixture(params=SUMS)
def rule(request: pytest.FixtureRequest) -> Reducer:
    return reducer(request.param)


@settings(max_examples=60)
@given(updates=UPDATES, data=st.data())
@pytest.mark.parametrize("name", SUMS)
def test_grouping_order_and_chunks_do_not_matter(name: str, updates: list[Any], data: st.DataObject) -> None:
    rule = reducer(name)
    scale = max(float(np.abs(vector).max()) * max(weight, 1) for vector, weight in updates) * len(updates)
    expected = result(rule, total(rule, updates))
    shuffled = data.draw(st.permutations(updates))
    near(expected, result(rule, total(rule, shuffled, size=data.draw(st.integers(1, 9)))), scale)
    cut = data.draw(st.integers(0, len(updates)))
    near(expected, result(rule, rule.merge(total(rule, updates[:cut]), total(rule, updates[cut:]))), scale)
    near(expected, result(rule, rule.merge(total(rule, updates[cut:]), total(rule, updates[:cut]))), scale)


@settings(max_examples=30)
@given(updates=UPDATES)
@pytest.mark.parametrize("name", SUMS)
def test_the_neutral_element_changes_nothing(name: str, updates: list[Any]) -> None:
    rule = reducer(name)
    plain = total(rule, updates)
    for merged in (
        rule.merge(total(rule, updates), rule.init(LENGTH)),
        rule.merge(rule.init(LENGTH), total(rule, updates)),
    ):
        assert (merged.weight, merged.count) == (plain.weight, plain.count)
        np.testing.assert_array_equal(merged.total, plain.total)


def test_a_mean_is_the_weighted_mean() -> None:
    rng = np.random.default_rng(3)
    vectors, weights = rng.normal(size=(50, LENGTH)).astype(np.float32), rng.integers(1, 500, 50)
    acc = total(reducer("mean"), list(zip(vectors, weights.tolist(), strict=True)))
    expected = np.average(vectors.astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(reducer("mean").result(acc), expected, rtol=1e-13)
    assert acc.count == 50 and acc.weight == weights.sum()


def test_a_mean_of_one_update_is_that_update() -> None:
    vector = np.array([0.1, -3e7, 1e-30, 0, 5, 7, 8], np.float32)
    acc = total(reducer("mean"), [(vector, 3)])
    np.testing.assert_array_equal(reducer("mean").result(acc).astype(np.float32), vector)


def test_a_sum_ignores_weights() -> None:
    ones = np.ones(LENGTH, np.float32)
    assert reducer("sum").result(total(reducer("sum"), [(ones, 9), (ones, 0)])).tolist() == [2.0] * LENGTH


def test_nothing_to_divide_by_is_refused_by_name() -> None:
    with pytest.raises(errors.UpdateRefused, match="nothing to average") as caught:
        reducer("mean").result(total(reducer("mean"), [(np.ones(LENGTH, np.float32), 0)]))
    assert caught.value.reason == "zero_weight"


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_an_impossible_weight_is_refused(rule: Reducer, weight: float) -> None:
    if rule.name == "sum":
        return
    with pytest.raises(errors.UpdateRefused, match="weight"):
        rule.add(rule.init(LENGTH), chunks(np.ones(LENGTH, np.float32)), weight)


def test_lengths_must_agree(rule: Reducer) -> None:
    with pytest.raises(errors.InputError, match="cannot be merged"):
        rule.merge(rule.init(2), rule.init(3))
    with pytest.raises(errors.InternalError, match="cover 3 of 7"):
        rule.add(rule.init(LENGTH), iter([(0, np.ones(3, np.float32))]), 1.0)


def test_blocks_larger_than_the_cache_block_add_up() -> None:
    rule, length = reducer("mean"), 100_000
    vector = np.arange(length, dtype=np.float32)
    acc = rule.add(rule.init(length), iter([(0, vector)]), 2.0)
    np.testing.assert_array_equal(rule.result(acc), vector.astype(np.float64))


def test_an_unknown_reducer_is_refused() -> None:
    with pytest.raises(errors.ExperimentError, match="no reducer 'mode'") as caught:
        reducer("mode")
    assert caught.value.reason == "unknown_reducer" and "trimmed_mean" in str(caught.value.hint)
