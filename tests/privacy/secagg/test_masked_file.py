"""A masked vector's file: read back exactly, and refused by name whatever is wrong with it."""

import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from coterie import errors
from coterie.privacy.secagg import ring
from coterie.privacy.secagg.masked_file import FORMAT, MaskedHeader, check_masked, encode_masked, read_masked
from coterie.privacy.secagg.ring import Segment, VectorSpec
from coterie.protocol.canonical import canonical_json
from coterie.protocol.tensors import encode_tensors

SPEC = VectorSpec((Segment("delta", 1001, 26), Segment("sums", 5, 32)))
HEADER = MaskedHeader(attempt="attempt-1", task="task-1", plan="aa" * 32, base="bb" * 32, spec=SPEC.digest)
VECTOR = np.frombuffer(os.urandom(4 * SPEC.length), np.uint32)
PACKED = ring.pack(VECTOR, SPEC)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_it_reads_back(where: str, tmp_path: Path) -> None:
    data = encode_masked(HEADER, PACKED)
    assert len(data) < SPEC.packed_bytes + 700
    source: bytes | Path = data
    if where == "disk":
        source = tmp_path / "masked"
        source.write_bytes(data)
    assert np.array_equal(read_masked(source, HEADER, SPEC), ring.reduced(VECTOR, SPEC))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("attempt", "wrong_attempt"),
        ("task", "wrong_task"),
        ("plan", "wrong_plan"),
        ("base", "wrong_base"),
        ("spec", "wrong_vector"),
    ],
)
def test_one_made_for_something_else_is_refused_by_name(name: str, code: str) -> None:
    data = encode_masked(replace(HEADER, **{name: "other"}), PACKED)
    with pytest.raises(errors.UpdateRefused, match="other") as caught:
        check_masked(data, HEADER, SPEC)
    assert caught.value.reason == code


def _file(header: object, **tensors: bytes) -> bytes:
    return encode_tensors(
        {name: np.frombuffer(data, np.uint8) for name, data in tensors.items()},
        {"coterie": canonical_json(header).decode()},
    )


GOOD = {"format": FORMAT, **asdict(HEADER)}
WRONG = {
    "short": (_file(GOOD, masked=PACKED[:-1]), "truncated"),
    "long": (_file(GOOD, masked=PACKED + b"\0"), "too_large"),
    "very long": (_file(GOOD, masked=PACKED + bytes(1 << 16)), "too_large"),
    "cut": (_file(GOOD, masked=PACKED)[:-3], "truncated"),
    "empty": (b"", "truncated"),
    "another tensor": (_file(GOOD, other=PACKED), "wrong_format"),
    "two tensors": (_file(GOOD, masked=PACKED, other=b"1"), "wrong_format"),
    "another format": (_file({**GOOD, "format": "coterie-masked/2"}, masked=PACKED), "wrong_format"),
    "a field more": (_file({**GOOD, "weight": 3}, masked=PACKED), "wrong_format"),
    "a field less": (_file({k: v for k, v in GOOD.items() if k != "plan"}, masked=PACKED), "wrong_format"),
    "no object": (_file([], masked=PACKED), "wrong_format"),
    "no header": (encode_tensors({"masked": np.frombuffer(PACKED, np.uint8)}), "wrong_format"),
    "floats": (encode_tensors({"masked": np.zeros(9, np.float32)}), "wrong_format"),
    "a matrix": (
        encode_tensors(
            {"masked": np.frombuffer(PACKED, np.uint8).reshape(1, -1)}, {"coterie": canonical_json(GOOD).decode()}
        ),
        "wrong_format",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_refused_by_name(what: str) -> None:
    data, code = WRONG[what]
    with pytest.raises(errors.UpdateRefused) as caught:
        read_masked(data, HEADER, SPEC)
    assert caught.value.reason == code


def test_bits_that_fill_up_must_be_zero() -> None:
    spec = VectorSpec((Segment("bits", 3, 1),))
    header = replace(HEADER, spec=spec.digest)
    with pytest.raises(errors.UpdateRefused) as caught:
        read_masked(encode_masked(header, b"\x08"), header, spec)
    assert caught.value.reason == "malformed"


def test_the_largest_file_of_a_small_vector_is_small(tmp_path: Path) -> None:
    """A file that declares gigabytes is refused before any of them is allocated."""
    path = tmp_path / "masked"
    with path.open("wb") as file:
        file.write((100).to_bytes(8, "little"))
        file.truncate(1 << 33)
    with pytest.raises(errors.UpdateRefused) as caught:
        read_masked(path, HEADER, SPEC)
    assert caught.value.reason == "too_large"
