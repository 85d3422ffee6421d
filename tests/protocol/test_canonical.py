"""Canonical JSON: one byte string per value, the key order of JavaScript, strict reading (numbers: test_vectors)."""

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import errors
from coterie.protocol.canonical import canonical_json, digest_of, parse_json, sha256_hex

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4))
)


@given(values)
def test_reading_back_gives_the_value_and_the_same_bytes(value: Any) -> None:
    data = canonical_json(value)
    assert parse_json(data) == value
    assert canonical_json(parse_json(data)) == data


@given(st.dictionaries(st.text(), st.integers(0, 9), max_size=6))
def test_the_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    backwards = dict(reversed(value.items()))
    assert canonical_json(value) == canonical_json(backwards)
    assert digest_of(value) == sha256_hex(canonical_json(backwards))


def test_keys_are_sorted_by_utf16_units_as_in_rfc_8785_section_3_2_3() -> None:
    given_keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    expected = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(json.loads(canonical_json(dict.fromkeys(given_keys, 0)))) == expected


def test_strings_escape_only_what_they_must() -> None:
    assert canonical_json("\u20ac$\x0f\nA'B\"\\\x7f/") == b'"\xe2\x82\xac$\\u000f\\nA\'B\\"\\\\\x7f/"'


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, 2**53, -(2**53), "\ud800", {1: 2}, {"a": {"\udfff": 1}}, object(), b"x", {1, 2}],
)
def test_what_json_cannot_carry_is_refused_with_its_place(value: object) -> None:
    with pytest.raises(errors.InputError, match=r"\$\.outer\[1\]") as caught:
        canonical_json({"outer": [0, value]})
    assert caught.value.reason == "not_canonical"


def test_endless_nesting_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(errors.InputError, match="64 levels"):
        canonical_json(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"a":1,"a":1}',
        b"NaN",
        b"[Infinity]",
        b"[-Infinity]",
        b"1e400",
        b"9" * 400,
        b"9" * 5000,
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"[" * 70 + b"]" * 70,
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b"1 2",
        b"'a'",
    ],
)
def test_strict_reading_refuses(data: bytes) -> None:
    with pytest.raises(errors.InputError) as caught:
        parse_json(data)
    assert caught.value.reason == "json_invalid"
    assert len(str(caught.value)) < 500


def test_the_limit_is_on_bytes() -> None:
    assert parse_json(b'"abc"', limit=5) == "abc"
    with pytest.raises(errors.InputError, match="limit of 4 bytes"):
        parse_json(b'"abc"', limit=4)


def test_large_whole_numbers_are_read_as_javascript_reads_them() -> None:
    read = parse_json(b"[9007199254740991,9007199254740993,-0]")
    assert canonical_json(read) == b"[9007199254740991,9007199254740992,0]"


def test_numbers_that_are_signed_alike_are_read_alike() -> None:
    """Two tasks that differ in the sign of a zero have one signature and one digest, so they must ask for one thing."""
    for text in (b"-0.0", b"-0", b"-0e5", b"0.0"):
        read = parse_json(text)
        assert isinstance(read, int | float) and math.copysign(1, read) == 1, text


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        parse_json(data)
    except errors.InputError as error:
        assert error.reason == "json_invalid"


def test_reading_hostile_json_takes_linear_time() -> None:
    """A repeated key behind many others is found in one pass: half a megabyte once took minutes."""
    names = b",".join(b'"k%d":1' % at for at in range(50_000))
    started = time.process_time()
    with pytest.raises(errors.InputError, match="'k49999' occurs twice"):
        parse_json(b"{" + names + b',"k49999":1}')
    assert time.process_time() - started < 5
