"""Canonical JSON: the number samples of RFC 8785 appendix B, the key order of JavaScript, and strict reading."""

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import errors
from coterie.protocol.canonical import canonical_json, digest_of, parse_json, sha256_hex

RFC_8785_NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}

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


@pytest.mark.parametrize(("bits", "text"), RFC_8785_NUMBERS.items())
def test_numbers_are_written_as_rfc_8785_says(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json(number) == text.encode()
    assert canonical_json({"n": [number]}) == b'{"n":[' + text.encode() + b"]}"


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


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        parse_json(data)
    except errors.InputError as error:
        assert error.reason == "json_invalid"
