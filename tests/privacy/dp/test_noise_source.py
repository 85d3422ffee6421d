"""The words that noise is made of: the key's stream, read once, and whole numbers below any bound."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from coterie import errors, randomness
from coterie.privacy.dp.noise.source import NoiseSource

stats: Any = import_module("scipy.stats")

KEY = bytes(range(32))


def test_reads_of_any_size_are_the_keys_stream_in_order() -> None:
    source = NoiseSource(KEY)
    sizes = (1, 15, 16, 17, 3, 0, 1 << 18, (1 << 18) + 5, 40)
    joined = b"".join(source.take(size).tobytes() for size in sizes)
    assert joined == randomness.stream(KEY, 0, sum(sizes))


def test_words_are_little_endian() -> None:
    data = randomness.stream(KEY, 0, 14)
    source = NoiseSource(KEY)
    assert source.words16(1)[0] == int.from_bytes(data[:2], "little")
    assert source.words32(1)[0] == int.from_bytes(data[2:6], "little")
    assert source.words64(1)[0] == int.from_bytes(data[6:14], "little")


def test_sp_800_38a_counters_run_big_endian_from_zero() -> None:
    """The stream is the encryption of 0, 1, 2, …: AES-256 of the zero block under the zero key (FIPS 197 vectors)."""
    assert NoiseSource(bytes(32)).take(16).tobytes().hex() == "dc95c078a2408989ad48a21492842087"


def test_a_fresh_source_asks_for_a_key_and_never_shows_it() -> None:
    asked: list[int] = []

    def entropy(count: int) -> bytes:
        asked.append(count)
        return KEY

    source = NoiseSource.fresh(entropy)
    assert asked == [32]
    assert source.take(32).tobytes() == randomness.stream(KEY, 0, 32)
    assert KEY.hex() not in repr(source)
    assert NoiseSource.fresh().take(16).tobytes() != NoiseSource.fresh().take(16).tobytes()


def test_a_key_of_another_length_or_a_short_read_of_entropy_is_refused() -> None:
    with pytest.raises(errors.ArgumentValueError, match="32 bytes, not 16"):
        NoiseSource(bytes(16))
    with pytest.raises(errors.InternalError, match="31 bytes"):
        NoiseSource.fresh(lambda count: bytes(count - 1))


@pytest.mark.parametrize("bound", [2, 3, 7, 256, 257, 1000])
def test_whole_numbers_below_a_bound_are_uniform(bound: int) -> None:
    source = NoiseSource(KEY)
    counts = np.bincount([source.below(bound) for _ in range(20 * bound + 4000)], minlength=bound)
    assert counts.size == bound
    assert stats.chisquare(counts).pvalue > 1e-4


def test_a_bound_of_one_leaves_no_choice_and_none_is_refused() -> None:
    assert NoiseSource(KEY).below(1) == 0
    with pytest.raises(errors.ArgumentValueError):
        NoiseSource(KEY).below(0)


def test_a_bound_beyond_64_bits_is_served() -> None:
    source, bound = NoiseSource(KEY), 3**100
    drawn = [source.below(bound) for _ in range(200)]
    assert max(drawn) < bound
    assert max(drawn) > bound // 2


def test_distinct_numbers_are_every_set_alike() -> None:
    source, count = NoiseSource(KEY), 6000
    sets = [tuple(sorted(source.distinct(2, 5))) for _ in range(count)]
    assert all(one < other for one, other in sets)
    counts = [sets.count((one, other)) for one in range(5) for other in range(one + 1, 5)]
    assert sum(counts) == count
    assert stats.chisquare(counts).pvalue > 1e-4
    assert source.distinct(0, 0) == []
    assert sorted(source.distinct(4, 4)) == [0, 1, 2, 3]
    with pytest.raises(errors.ArgumentValueError, match="no 5 different"):
        source.distinct(5, 4)
