"""Batches: every row once, one fixed shape, the same bytes every time and after every resume."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.compute.data.batches import Batches
from coterie.compute.ir import NDArray
from coterie.draws import batch_order
from coterie.errors import InputError


def table(rows: int) -> dict[str, NDArray]:
    return {"x": np.arange(rows * 2, dtype=np.float32).reshape(rows, 2), "y": np.arange(rows, dtype=np.int32)}


def same(left: dict[str, NDArray], right: dict[str, NDArray]) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


sizes = st.integers(1, 40)


@given(rows=sizes, batch=sizes, seed=st.integers(-(2**63), 2**64 - 1), shuffle=st.booleans())
def test_every_row_occurs_once_an_epoch_and_shapes_never_change(rows: int, batch: int, seed: int, shuffle: bool):
    batches = Batches(table(rows), batch_size=batch, seed=seed, epochs=2, shuffle=shuffle)
    items = list(batches)
    assert len(items) == 2 * batches.per_epoch
    for item in items:
        assert item["x"].shape == (batch, 2) and item["x"].dtype == np.float32
        assert item["y"].shape == (batch,) and item["y"].dtype == np.int32
        assert item["sample_weight"].shape == (batch,) and item["sample_weight"].dtype == np.float32
        np.testing.assert_array_equal(item["x"][:, 0], item["y"] * 2)
        np.testing.assert_array_equal(item["y"][item["sample_weight"] == 0], item["y"][0])
    for epoch in (items[: batches.per_epoch], items[batches.per_epoch :]):
        seen = np.concatenate([item["y"][item["sample_weight"] == 1] for item in epoch])
        assert sorted(seen) == list(range(rows))
        assert all(item["sample_weight"].all() for item in epoch[:-1])
        if not shuffle:
            np.testing.assert_array_equal(seen, np.arange(rows))


@given(rows=sizes, batch=sizes, stop=st.integers(0, 60))
def test_resuming_continues_bit_for_bit(rows: int, batch: int, stop: int):
    whole = Batches(table(rows), batch_size=batch, seed=5, epochs=3)
    head = [item for _, item in zip(range(stop), whole, strict=False)]
    saved = json.loads(json.dumps(whole.state()))
    resumed = Batches(table(rows), batch_size=batch, seed=5, epochs=3)
    resumed.restore(saved)
    items = list(Batches(table(rows), batch_size=batch, seed=5, epochs=3))
    rest = list(resumed)
    assert len(head) + len(rest) == len(items)
    assert all(same(*pair) for pair in zip(head + rest, items, strict=True))


def test_orders_differ_between_epochs_and_seeds_and_are_pinned():
    def orders(seed: int) -> list[list[int]]:
        return [item["y"].tolist() for item in Batches(table(8), batch_size=8, seed=seed, epochs=2)]

    assert orders(1) == orders(1)
    assert len({tuple(order) for order in orders(1) + orders(2)}) == 4
    # The order that devices of every language take (protocol/vectors).
    assert orders(7)[0] == batch_order(8, 7, 0).tolist() == PINNED


PINNED = [4, 1, 0, 7, 3, 6, 5, 2]


def test_no_end():
    batches = Batches(table(3), batch_size=2, epochs=None)
    for _ in range(11):
        next(batches)
    assert batches.state()["epoch"] == 5


MISTAKES = [
    (lambda: Batches({}, batch_size=1), "no array"),
    (lambda: Batches({"x": np.zeros((0, 2))}, batch_size=1), "at least one"),
    (lambda: Batches({"x": np.zeros(())}, batch_size=1), "common number of rows"),
    (lambda: Batches({"x": np.zeros(3), "y": np.zeros(4)}, batch_size=1), "'x': 3, 'y': 4"),
    (lambda: Batches({"sample_weight": np.zeros(3)}, batch_size=1), "reserved"),
    (lambda: Batches((np.zeros(3),), batch_size=1), "arrays by name, got a tuple"),  # pyright: ignore[reportArgumentType]
    (lambda: Batches({"x": [1, 2]}, batch_size=1), "'x' must be a NumPy array, got a list"),  # pyright: ignore[reportArgumentType]
    (lambda: Batches(table(3), batch_size=1.5), "batch_size must be a whole number of at least 1, got 1.5"),  # pyright: ignore[reportArgumentType]
    (lambda: Batches(table(3), batch_size=1, seed="a"), "seed must be a whole number"),  # pyright: ignore[reportArgumentType]
    (lambda: Batches(table(3), batch_size=0), "batch_size must be a whole number of at least 1"),
    (lambda: Batches(table(3), batch_size=1, epochs=0), "epochs must be a whole number of at least 1"),
    (lambda: Batches(table(3), batch_size=1).restore(Batches(table(4), batch_size=1).state()), "has rows 4"),
    (lambda: Batches(table(3), batch_size=1, seed=1).restore(Batches(table(3), batch_size=1).state()), "has seed 0"),
    (
        lambda: Batches(table(3), batch_size=1).restore(Batches(table(3), batch_size=1).state() | {"batch": 9}),
        "no position",
    ),
    (lambda: Batches(table(3), batch_size=1).restore({}), "has rows None"),
]


@pytest.mark.parametrize(("make", "reason"), MISTAKES, ids=[reason for _, reason in MISTAKES])
def test_mistakes_are_named(make: Callable[[], object], reason: str):
    with pytest.raises(InputError, match=reason):
        make()
