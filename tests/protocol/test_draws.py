"""What a device draws while it trains: from the committed vectors, computed anew by their `how`, and its laws."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from coterie import draws, randomness
from coterie.aggregation.plan.manifest import Training
from coterie.aggregation.plan.reading import read
from coterie.draws import batch_order, held_out, random_inputs
from coterie.errors import PlanRefused
from coterie.randomness import seed_of

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "protocol" / "vectors" / "training.json").read_text("ascii")
)
SHARES = st.floats(0, 0.999)


def ctr(key: bytes, block: bytes, plain: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.CTR(block)).encryptor().update(plain)


def words(seed: bytes, count: int) -> list[int]:
    """64-bit words of a stream, from the primitive alone."""
    data = ctr(seed, bytes(16), bytes(8 * count))
    return [int.from_bytes(data[8 * at : 8 * at + 8], "little") for at in range(count)]


def seed_by_hand(*parts: str) -> bytes:
    texts = [part.encode() for part in parts]
    return hashlib.sha256(b"".join(len(text).to_bytes(4, "little") + text for text in texts)).digest()


def test_counter_mode_is_that_of_nist_sp_800_38a() -> None:
    known = {name: bytes.fromhex(value) for name, value in VECTORS["known"].items()}
    assert ctr(known["key"], known["block"], known["plain"]) == known["cipher"]


@pytest.mark.parametrize("case", VECTORS["seeds"])
def test_seeds_and_their_streams(case: Any) -> None:
    seed = seed_by_hand(*case["parts"])
    assert seed.hex() == case["seed"] == seed_of(*case["parts"]).hex()
    assert ctr(seed, bytes(16), bytes(40)).hex() == case["stream"] == randomness.stream(seed, 0, 40).hex()


@pytest.mark.parametrize("case", VECTORS["orders"])
def test_an_order_is_the_stable_order_of_words(case: Any) -> None:
    drawn = words(seed_by_hand("coterie-train-1", "order", str(case["seed"]), str(case["epoch"])), case["rows"])
    assert sorted(range(case["rows"]), key=lambda row: drawn[row]) == case["order"]
    assert batch_order(case["rows"], case["seed"], case["epoch"]).tolist() == case["order"]


@pytest.mark.parametrize("case", VECTORS["random_inputs"])
def test_random_inputs_go_on_from_step_to_step(case: Any) -> None:
    count, step = case["count"], case["step"]
    data = ctr(seed_by_hand("coterie-train-1", "random", str(case["seed"])), bytes(16), bytes(4 * count * (step + 1)))
    drawn = np.frombuffer(data, "<u4")[step * count :] >> 8
    assert (drawn * np.float32(2.0**-24)).astype("<f4").tobytes().hex() == case["numbers"]
    assert random_inputs(case["seed"], step, count).tobytes().hex() == case["numbers"]


@pytest.mark.parametrize("case", VECTORS["held_out"])
def test_held_out_rows_are_known(case: Any) -> None:
    drawn = words(seed_by_hand("coterie-holdout-1"), case["rows"])
    chosen = [row for row in range(case["rows"]) if drawn[row] < int(case["share"] * 2**64)]
    assert (chosen if len(chosen) < case["rows"] else chosen[1:]) == case["held_out"]
    assert np.flatnonzero(held_out(case["rows"], case["share"])).tolist() == case["held_out"]


@pytest.mark.parametrize("case", VECTORS["refused_trainings"])
def test_a_training_that_cannot_be_is_refused(case: Any) -> None:
    with pytest.raises(PlanRefused) as caught:
        read(Training, case["training"])
    assert caught.value.reason == case["code"]


@given(st.integers(1, 300), st.integers(0, 2**53), st.integers(0, 100))
def test_an_order_has_every_row_once(rows: int, seed: int, epoch: int) -> None:
    assert sorted(batch_order(rows, seed, epoch).tolist()) == list(range(rows))


def test_words_that_agree_in_their_high_bits_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.array([7, 5, 2**40, 6, 5, 2**40 + 1], np.uint64)

    def planted(seed: bytes, start: int, stop: int) -> np.ndarray:
        return drawn[start:stop]

    monkeypatch.setattr(draws, "long_words", planted)
    assert batch_order(6, 0, 0).tolist() == [1, 4, 3, 0, 2, 5]


@given(st.integers(1, 500), st.integers(0, 500), SHARES)
def test_rows_appended_later_change_nothing_for_those_before(count: int, more: int, share: float) -> None:
    before, after = held_out(count, share), held_out(count + more, share)
    # The one exception: a set that would be held out whole gives its first row to training.
    assert np.array_equal(before[1:], after[1:count])


def test_about_the_share_is_held_out_and_not_in_step_with_any_period() -> None:
    mask = held_out(10_000, 0.2)
    assert abs(mask.mean() - 0.2) < 0.02
    for period in (2, 5, 10):
        means = [mask[start::period].mean() for start in range(period)]
        assert max(means) - min(means) < 0.06
