"""Ids are normalised by rules, joined without ambiguity, and refused by column and count without being said."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import ArgumentValueError, DataError
from coterie.privacy.psi.ids import DEFAULT_RULES, RULES, normal_ids, ordered_rules

rows = st.lists(st.tuples(st.text(min_size=1, max_size=4), st.text(min_size=1, max_size=4)), min_size=1, unique=True)


@given(rows=rows)
def test_two_rows_have_one_id_only_if_all_columns_agree(rows: list[tuple[str, str]]) -> None:
    found = normal_ids({"a": [a for a, _ in rows], "b": [b for _, b in rows]}, (), "the table")
    assert len({*found}) == len(rows)


@pytest.mark.parametrize("rule", RULES)
@given(text=st.text(max_size=8))
def test_a_rule_that_is_followed_twice_changes_nothing_more(rule: str, text: str) -> None:
    once = RULES[rule](text)
    assert RULES[rule](once) == once


@pytest.mark.parametrize(
    ("rules", "written", "same"),
    [
        (("nfc",), "e\u0301", "\u00e9"),
        (("nfkc",), "\uff21\uff11", "A1"),
        (("strip",), "\t A1\u00a0\n", "A1"),
        (("spaces",), " a  \t b ", "a b"),
        (("casefold",), "STRASSE", "straße"),
        (("alphanumeric",), "12-34/5 a", "12345a"),
        (("digits",), "AB 12.3", "123"),
        (DEFAULT_RULES, " A\u0301BC ", "\u00e1bc"),
    ],
)
def test_what_each_rule_makes_equal(rules: tuple[str, ...], written: str, same: str) -> None:
    assert normal_ids({"id": [written]}, rules, "x") == normal_ids({"id": [same]}, rules, "x")
    assert normal_ids({"id": [written]}, (), "x") != normal_ids({"id": [same]}, (), "x")


def test_rules_are_followed_in_one_order_however_they_are_named() -> None:
    for named in itertools.permutations(DEFAULT_RULES):
        assert ordered_rules(named) == DEFAULT_RULES
    assert ordered_rules("strip") == ("strip",)
    with pytest.raises(ArgumentValueError, match="Did you mean casefold") as refused:
        ordered_rules(("case_fold",))
    assert refused.value.reason == "ids_rules"


def test_whole_numbers_and_their_texts_are_one_id() -> None:
    texts = normal_ids({"id": ["7", "12"]}, (), "x")
    for cells in (np.array([7, 12]), [7, 12], np.array(["7", "12"]), np.array([7, "12"], object), [np.int64(7), 12]):
        assert normal_ids({"id": cells}, (), "x") == texts


SECRET = "patient-4711"
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "an empty cell": ({"id": [SECRET, ""]}, "ids_missing", "1 of 2 rows have no id in column 'id'"),
    "none": ({"id": [SECRET, None, None]}, "ids_missing", "2 of 3 rows"),
    "not a number": ({"id": [SECRET, float("nan")]}, "ids_missing", "1 of 2 rows"),
    "only spaces": ({"id": [SECRET, "  "]}, "ids_missing", "after the rules"),
    "missing in the second column": ({"a": [SECRET, "x"], "b": ["y", ""]}, "ids_missing", "column 'b'"),
    "twice": ({"id": [SECRET, "x", SECRET]}, "ids_repeated", "2 of 3 rows share their id"),
    "twice after the rules": ({"id": [SECRET, SECRET.upper() + " "]}, "ids_repeated", "2 of 2 rows"),
    "both columns twice": ({"a": [SECRET, SECRET], "b": ["x", "x"]}, "ids_repeated", "columns 'a' and 'b'"),
    "fractions": ({"id": np.array([47.11, 1.5])}, "ids_kind", "float64"),
    "a fraction": ({"id": [SECRET, 47.11]}, "ids_kind", "float values"),
    "truth values": ({"id": [SECRET, True]}, "ids_kind", "truth values"),
    "bytes": ({"id": [SECRET.encode()]}, "ids_kind", "bytes values"),
    "a table": ({"id": np.zeros((2, 2), np.int64)}, "ids_kind", "int64[2, 2]"),
    "other lengths": ({"a": [SECRET], "b": ["x", "y"]}, "ids_kind", "a 1, b 2"),
    "no rows": ({"id": []}, "data_empty", "no rows"),
}


@pytest.mark.parametrize("what", BAD)
def test_ids_that_cannot_be_used_are_refused_without_being_said(what: str) -> None:
    columns, code, words = BAD[what]
    with pytest.raises(DataError) as refused:
        normal_ids(columns, DEFAULT_RULES, "clinic.csv")
    error = refused.value
    told = f"{error.message} {error.hint} {error.details}"
    assert error.reason == code and words in told and "clinic.csv" in error.message
    assert "4711" not in told and "47.11" not in told
