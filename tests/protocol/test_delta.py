"""Deltas between model versions: exact whatever the files are, small where versions are close, refused when wrong."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from coterie import errors
from coterie.protocol.delta import MAGIC, coarse, decode_delta, encode_delta
from coterie.protocol.tensors import encode_tensors


def model(seed: int = 0, size: int = 30_000) -> np.ndarray[Any, np.dtype[np.float32]]:
    return (np.random.default_rng(seed).standard_normal(size) * 0.05).astype(np.float32)


def file(vector: np.ndarray[Any, Any]) -> bytes:
    return encode_tensors({"w": vector[:-5].reshape(-1, 1), "b": vector[-5:]})


@given(st.binary(max_size=60), st.data())
def test_any_two_files_of_one_length_have_an_exact_delta(old: bytes, data: st.DataObject) -> None:
    new = data.draw(st.binary(min_size=len(old), max_size=len(old)))
    delta = b"".join(encode_delta(old, new) or ())
    assert decode_delta(old, delta) == new


def test_files_of_different_lengths_have_none() -> None:
    assert encode_delta(b"abc", b"abcd") is None


@pytest.mark.parametrize("change", [0.0, 1e-4, 1.0, float("nan"), float("inf")])
def test_versions_have_an_exact_delta(change: float) -> None:
    before = model()
    after = (before * (1 + np.float32(change) * model(1))).astype(np.float32)
    delta = b"".join(encode_delta(file(before), file(after)) or ())
    assert decode_delta(file(before), delta) == file(after)


def test_a_small_step_takes_fewer_bytes_than_the_version() -> None:
    before = model()
    after = before + np.float32(1e-3) * model(1)
    delta = b"".join(encode_delta(file(before), file(after)) or ())
    assert len(delta) < 0.72 * len(file(after))


@pytest.mark.parametrize("size", [10, 4096, 30_000])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e6])
def test_a_coarse_version_takes_about_a_byte_for_each_number(size: int, scale: float) -> None:
    before = model(0, size)
    wanted = before.astype(np.float64) + scale * model(1, size)
    after = coarse(before, wanted)
    delta = b"".join(encode_delta(file(before), file(after)) or ())
    assert delta[4] == 1 and decode_delta(file(before), delta) == file(after)
    assert len(delta) <= 1.05 * size + 20
    step = scale * np.abs(model(1, size)).max() / 63
    assert np.abs(after - wanted).max() <= step / 2 + np.abs(wanted).max() * 2.0**-23


def test_what_coarse_versions_lose_comes_back_with_error_feedback() -> None:
    version, lost = model(), np.zeros(30_000)
    exact = version.astype(np.float64)
    for number in range(20):
        change = 1e-3 * model(number + 1).astype(np.float64)
        exact += change
        wanted = version + change + lost
        version = coarse(version, wanted)
        lost = wanted - version
    assert np.abs(version + lost - exact).max() < 1e-9
    assert np.abs(version - exact).max() < 1e-5


@given(st.data())
def test_a_changed_delta_yields_a_file_of_that_length_or_is_refused(data: st.DataObject) -> None:
    before = model(0, 5000)
    kind = data.draw(st.booleans())
    after = coarse(before, before + 1e-3 * model(1, 5000)) if kind else before + np.float32(1e-3) * model(1, 5000)
    delta = bytearray(b"".join(encode_delta(file(before), file(after)) or ()))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, min(len(delta) - 1, 20) if data.draw(st.booleans()) else len(delta) - 1))
        delta[at] = data.draw(st.integers(0, 255))
    stop = data.draw(st.integers(0, len(delta)))
    for changed in (bytes(delta), bytes(delta[:stop])):
        try:
            assert len(decode_delta(file(before), changed)) == len(file(before))
        except errors.InputError as error:
            assert error.reason == "delta_malformed"


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    bomb = MAGIC + b"\x02" + zstandard.ZstdCompressor().compress(bytes(1 << 28))
    tracemalloc.start()
    try:
        with pytest.raises(errors.InputError, match="not as long as the file"):
            decode_delta(file(model()), bomb)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["levels", "planes"])
def test_making_one_takes_memory_for_a_part_of_the_version(kind: str) -> None:
    before = model(0, 4_000_000)
    step = before + np.float32(1e-3) * model(1, before.size)
    old, new = (file(each) for each in (before, coarse(before, step.astype(np.float64)) if kind == "levels" else step))
    length = 0
    tracemalloc.start()
    try:
        for piece in encode_delta(old, new) or ():
            length += len(piece)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert length < len(new) and most < len(new) * 0.3 + (32 << 20)
