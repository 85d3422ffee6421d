"""Batches: their shape, their padding, their passes; and the ways to have them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute.data import ArraySource, Batches, Context, Dataset, Transform
from coterie.errors import ArgumentValueError, DataError
from tests.compute.data.pipelines import augmented, is_even, numbered, same


@pytest.mark.capability("F7")
@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3), st.integers(0, 9))
def test_the_batches_are_those_that_devices_train_with(rows: int, size: int, epochs: int, seed: int) -> None:
    arrays = {"x": np.arange(rows * 2, dtype=np.float32).reshape(rows, 2), "y": np.arange(rows)}
    plain = Batches(arrays, batch_size=size, seed=seed, epochs=epochs)
    assert (
        same(Dataset.of(ArraySource(arrays)).shuffle(seed).batch(size).epochs(epochs), plain)
        == plain.per_epoch * epochs
    )


@pytest.mark.capability("F7")
def test_a_short_batch_is_padded_by_its_first_row_or_dropped() -> None:
    rows = numbered(10)
    last = list(rows.batch(4))[-1]
    assert last["id"].tolist() == [8, 9, 8, 8] and last["sample_weight"].tolist() == [1, 1, 0, 0]
    assert last["sample_weight"].dtype == np.float32
    kept = rows.batch(4, drop_remainder=True)
    assert [batch["id"].tolist() for batch in kept] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (len(rows.batch(4)), len(kept), len(kept.epochs(3))) == (3, 2, 6)
    # A filter's rows fill batches up, and no batch has rows of two passes.
    odd = rows.filter(is_even, "id").batch(4).epochs(2)
    assert [b["id"][b["sample_weight"] > 0].tolist() for b in odd] == [[0, 2, 4, 6], [8]] * 2
    over = rows.filter(is_even, "id").repeat(2).batch(4)
    assert [b["id"].tolist() for b in over] == [[0, 2, 4, 6], [8, 0, 2, 4], [6, 8, 6, 6]]
    assert list(rows.filter(is_even, "id").batch(6, drop_remainder=True).epochs(2)) == []


@dataclass(frozen=True)
class Mixed(Transform):
    """Rows blended with their neighbours, by one random share for the batch."""

    def apply(self, value: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        share = np.float32(context.random.uniform())
        return {**value, "x": share * value["x"] + (1 - share) * value["x"][::-1], "share": np.full(4, share)}


@pytest.mark.capability("F7")
@pytest.mark.parametrize("filtered", [False, True])
def test_a_whole_batch_can_be_mapped(filtered: bool) -> None:
    rows = numbered(20).filter(is_even, "id") if filtered else numbered(20)
    mixed = rows.batch(4, per_batch_map=Mixed()).epochs(2)
    shares = [float(batch["share"][0]) for batch in mixed]
    assert len(set(shares)) == len(shares) == (6 if filtered else 10)
    same(mixed, mixed.workers(3))
    same(mixed, rows.batch(4, per_batch_map=Mixed(), seed=0).epochs(2))
    plain = next(iter(rows.batch(4)))
    first = next(iter(mixed))
    np.testing.assert_array_equal(first["x"], np.float32(shares[0]) * plain["x"] + (1 - np.float32(shares[0])) * plain["x"][::-1])  # fmt: skip  # noqa: E501
    with pytest.raises(DataError, match="must give a batch, arrays by column with 'sample_weight'"):
        rows.batch(4, per_batch_map=lambda batch: {"x": batch["x"]}).first()
    with pytest.raises(DataError, match="failed at batch 0 of pass 0: ZeroDivisionError"):
        rows.batch(4, per_batch_map=lambda batch: 1 // 0).first()


@pytest.mark.capability("F8")
def test_the_iterator_and_the_device_queue_are_one_stream() -> None:
    batches = augmented(50).batch(8).epochs(2)
    assert same(batches.dict_iterator(), batches.device_queue()) > 8
    assert same(batches, batches.device_queue(depth=5)) > 8
    assert isinstance(next(batches.dict_iterator()), dict)


@pytest.mark.capability("F8")
def test_the_device_queue_works_ahead_and_the_iterator_does_not() -> None:
    seen: list[int] = []

    def note(value: int) -> int:
        seen.append(int(value))
        return value

    batches = numbered(40).map(note, "id").batch(4)
    with batches.dict_iterator() as stream:
        next(stream)
        assert len(seen) == 4
    seen.clear()
    with batches.device_queue(depth=3) as stream:
        next(stream)
        until = time.monotonic() + 10
        while len(seen) < 16 and time.monotonic() < until:
            time.sleep(0.001)
        assert len(seen) == 16  # one handed out, three ahead, and no more


def test_passes_without_end_go_on_and_say_so_when_nothing_is_left() -> None:
    stream = numbered(3).batch(2).epochs(None).stream()
    assert [next(stream)["id"].tolist() for _ in range(5)] == [[0, 1], [2, 2], [0, 1], [2, 2], [0, 1]]
    with pytest.raises(DataError, match="No row is left") as caught:
        next(iter(numbered(3).filter(lambda i: False, "id").batch(2).epochs(None)))
    assert caught.value.reason == "data_empty"
    with pytest.raises(DataError, match="no row is left"):
        numbered(3).filter(lambda i: False, "id").batch(2).first()
    with pytest.raises(DataError, match=r"No row is left: a pass over .* has 0, of which no batch of 2 is made"):
        next(iter(numbered(3).take(0).batch(2).epochs(None)))
    with pytest.raises(DataError, match="No row is left: a pass over .* has 3, of which no batch of 4 is made"):
        next(iter(numbered(3).batch(4, drop_remainder=True).epochs(None)))


@pytest.mark.parametrize("act", ["batch", "epochs", "workers", "crew", "prefetch", "twice", "every"])
def test_settings_that_cannot_be_are_refused(act: str) -> None:
    rows = numbered(3)
    acts = {
        "batch": lambda: rows.batch(0),
        "epochs": lambda: rows.batch(1).epochs(0),
        "workers": lambda: rows.batch(1).workers(-1),
        "crew": lambda: rows.batch(1).workers(1, "fibres"),  # type: ignore[reportArgumentType]
        "prefetch": lambda: rows.batch(1).prefetch(0),
        "twice": lambda: rows.batch(1).sync_wait("a", every=1, initial=0).sync_wait("a", every=2, initial=0),
        "every": lambda: rows.batch(1).sync_wait("a", every=0, initial=0),
    }
    with pytest.raises(ArgumentValueError):
        acts[act]()
