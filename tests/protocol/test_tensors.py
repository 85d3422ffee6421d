"""Tensor files: what we write is what the safetensors library writes; what we read, nobody can make hurt us."""

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from coterie import errors
from coterie.protocol.files import create_durably, write_durably
from coterie.protocol.tensors import (
    DTYPES,
    TensorLimits,
    decode_tensors,
    encode_tensors,
    open_tensors,
    read_file,
    write_file,
)

SAMPLE = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.array([1, 2, 3], np.uint8),
    "c": np.array(5, np.int64),
    "empty": np.zeros((0, 4), np.float32),
    "h": np.array([1.5, -2], np.float16),
}

tensors = st.dictionaries(
    st.text(min_size=1, max_size=6).filter(lambda name: name != "__metadata__"),
    st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 3), max_size=3)),
    max_size=5,
)


def raw(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file of this header and data, whatever they are."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(start: int, stop: int, dtype: str = "U8", shape: list[Any] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [stop - start] if shape is None else shape, "data_offsets": [start, stop]}


@given(tensors, st.integers(0, 2**31))
def test_files_agree_with_the_safetensors_library_both_ways(shapes: dict[str, Any], seed: int) -> None:
    generator = np.random.default_rng(seed)
    arrays: dict[str, Any] = {
        name: np.asarray(generator.integers(0, 100, shape), DTYPES[code]) for name, (code, shape) in shapes.items()
    }
    ours = encode_tensors(arrays, {"coterie": "x"})
    assert ours == safetensors.numpy.save(arrays, {"coterie": "x"})
    theirs = safetensors.numpy.load(ours)
    read = decode_tensors(ours)
    for name, array in arrays.items():
        assert read[name].dtype == theirs[name].dtype == array.dtype
        assert read[name].shape == array.shape
        assert read[name].tobytes() == theirs[name].tobytes() == array.tobytes()


def test_the_same_value_gives_the_same_bytes() -> None:
    backwards = dict(reversed(SAMPLE.items()))
    assert encode_tensors(SAMPLE, {"x": "1", "a": "2"}) == encode_tensors(backwards, {"a": "2", "x": "1"})


def test_memory_order_and_byte_order_do_not_matter() -> None:
    plain = np.arange(6, dtype="<f4").reshape(2, 3)
    odd = np.asfortranarray(plain.astype(">f4"))
    assert encode_tensors({"x": plain}) == encode_tensors({"x": odd})


@pytest.mark.parametrize("array", [np.zeros(2, np.complex64), np.array(["a"]), np.zeros(2, bool)])
def test_a_dtype_outside_the_table_is_refused(array: Any) -> None:
    with pytest.raises(errors.TensorFileError, match="'x'") as caught:
        encode_tensors({"x": array})
    assert caught.value.reason == "dtype_unsupported"


def test_reading_is_lazy_and_by_elements(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write_file(path, SAMPLE, {"k": "v"})
    for source in (path, path.read_bytes()):
        file = open_tensors(source)
        assert file.metadata == {"k": "v"}
        assert file.read("b", 2, 5).tolist() == [2, 3, 4]
        assert file.read("b", 6, 6).size == 0
        assert file.tensor("c").shape == () and file.tensor("empty").shape == (0, 4)
        assert bytes(file.read_bytes("a", 1, 3)) == b"\x02\x03"
        with pytest.raises(IndexError):
            file.read("b", 0, 7)
    assert {name: a.tolist() for name, a in read_file(path).items()} == {n: a.tolist() for n, a in SAMPLE.items()}


REFUSED: list[tuple[str, bytes, str]] = [
    ("empty file", b"", "truncated"),
    ("no whole prefix", b"\0" * 7, "truncated"),
    ("header missing", raw(b"", length=2), "truncated"),
    ("header longer than the limit", raw(b"{}", length=2**63), "header_too_large"),
    ("header not JSON", raw(b"{a}"), "header_invalid"),
    ("header not UTF-8", raw(b'{"\xff":1}'), "header_invalid"),
    ("header an array", raw(b"[]"), "header_invalid"),
    ("a key twice", raw(b'{"a":1,"a":2}'), "header_invalid"),
    ("deep nesting", raw(b"[" * 100_000), "header_invalid"),
    ("metadata of numbers", raw({"__metadata__": {"a": 1}}), "header_invalid"),
    ("metadata a list", raw({"__metadata__": []}), "header_invalid"),
    ("entry no object", raw({"a": 1}), "header_invalid"),
    ("entry with more fields", raw({"a": {**entry(0, 1), "x": 1}}, b"1"), "header_invalid"),
    ("entry with fewer fields", raw({"a": {"dtype": "U8", "shape": [0]}}), "header_invalid"),
    ("no name", raw({"": entry(0, 1)}, b"1"), "header_invalid"),
    ("a long name", raw({"a" * 257: entry(0, 1)}, b"1"), "header_invalid"),
    ("unknown dtype", raw({"a": entry(0, 1, "F8")}, b"1"), "dtype_unsupported"),
    ("dtype no text", raw({"a": {**entry(0, 1), "dtype": ["U8"]}}, b"1"), "dtype_unsupported"),
    ("negative size", raw({"a": entry(0, 1, shape=[-1])}, b"1"), "header_invalid"),
    ("boolean size", raw({"a": entry(0, 1, shape=[True])}, b"1"), "header_invalid"),
    ("huge size", raw({"a": entry(0, 1, shape=[2**53])}, b"1"), "header_invalid"),
    ("too many axes", raw({"a": entry(0, 1, shape=[1] * 9)}, b"1"), "header_invalid"),
    ("a bomb", raw({"a": entry(0, 1, shape=[2**52, 2**52])}, b"1"), "offsets_invalid"),
    ("empty but enormous", raw({"a": entry(0, 0, shape=[0, 2**50, 2**50])}), "header_invalid"),
    ("offsets that do not match", raw({"a": entry(0, 2, shape=[1])}, b"12"), "offsets_invalid"),
    ("offsets reversed", raw({"a": entry(2, 1, shape=[1])}, b"12"), "offsets_invalid"),
    ("offsets negative", raw({"a": entry(-1, 0, shape=[1])}, b"12"), "offsets_invalid"),
    ("three offsets", raw({"a": {**entry(0, 1), "data_offsets": [0, 1, 1]}}, b"1"), "offsets_invalid"),
    ("overlap", raw({"a": entry(0, 2), "b": entry(1, 3)}, b"123"), "offsets_overlap"),
    ("gap", raw({"a": entry(0, 1), "b": entry(2, 3)}, b"123"), "offsets_gap"),
    ("gap at the start", raw({"a": entry(1, 2)}, b"12"), "offsets_gap"),
    ("data missing", raw({"a": entry(0, 3)}, b"12"), "truncated"),
    ("data left over", raw({"a": entry(0, 3)}, b"1234"), "trailing_bytes"),
    ("data but no tensors", raw({}, b"1"), "trailing_bytes"),
]


@pytest.mark.parametrize(("data", "code"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_malformed_files_are_refused_by_cause(data: bytes, code: str, tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_bytes(data)
    for source in (data, path):
        with pytest.raises(errors.TensorFileError) as caught:
            open_tensors(source)
        assert caught.value.reason == code
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (TensorLimits(max_bytes=10), "too_large"),
        (TensorLimits(max_header_bytes=16), "header_too_large"),
        (TensorLimits(max_tensors=4), "too_many_tensors"),
        (TensorLimits(max_rank=1), "header_invalid"),
        (TensorLimits(dtypes=frozenset({"U8"})), "dtype_unsupported"),
    ],
)
def test_limits_are_enforced(limits: TensorLimits, code: str) -> None:
    data = encode_tensors(SAMPLE)
    assert decode_tensors(data)
    with pytest.raises(errors.TensorFileError) as caught:
        open_tensors(data, limits)
    assert caught.value.reason == code


def test_a_declared_size_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(raw({"a": entry(0, 1 << 33)}, b"x"))
    tracemalloc.start()
    try:
        with pytest.raises(errors.TensorFileError):
            open_tensors(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_shrinks_while_it_is_read_is_truncated(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    write_file(path, {"x": np.ones(100, np.float32)})
    file = open_tensors(path)
    os.truncate(path, 200)
    with pytest.raises(errors.TensorFileError) as caught:
        file.tensor("x")
    assert caught.value.reason == "truncated"


def _assert_read_or_refused(source: bytes) -> None:
    """What is read is in the file: it has no more bytes."""
    try:
        found = decode_tensors(source)
    except errors.TensorFileError:
        return
    assert sum(tensor.nbytes for tensor in found.values()) <= len(source)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for source in (data, struct.pack("<Q", len(data)) + data):
        _assert_read_or_refused(source)


@given(st.data())
def test_a_changed_byte_is_read_or_refused(data: st.DataObject) -> None:
    original = encode_tensors(SAMPLE, {"k": "v"})
    position = data.draw(st.integers(0, len(original) - 1))
    changed = bytearray(original)
    changed[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(original)))
    for source in (bytes(changed), bytes(changed[:cut])):
        _assert_read_or_refused(source)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(errors.StorageError, match="No such file"):
        read_file(tmp_path / "absent")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, b"old")

    def broken() -> Any:
        yield b"new"
        raise OSError(28, "No space left on device")

    with pytest.raises(errors.StorageError, match="No space left on device. Free space"):
        write_durably(path, broken())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_writing_replaces_and_creating_does_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert create_durably(path, b"one", mode=0o600) is True
    assert create_durably(path, b"two") is False
    assert path.read_bytes() == b"one" and path.stat().st_mode & 0o777 == 0o600
    write_durably(path, [b"th", bytearray(b"re"), memoryview(b"e")])
    assert path.read_bytes() == b"three"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_told_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(errors.StorageError, match="Create the folder first"):
        write_durably(tmp_path / "absent" / "file", b"x")
