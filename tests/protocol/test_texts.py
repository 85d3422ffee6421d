"""Columns of text in a schema: as bytes, as places in a vocabulary; labels that are dropped, and rows without one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import errors
from coterie.client_sdk.rows.loading import load_data
from coterie.protocol.conversion import to_json
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.texts import as_bytes, as_places, texts_of

BYTES = Feature(name="city", dtype="uint8", shape=(8,), encoding="utf-8")
PLACES = Feature(name="city", dtype="int32", vocabulary=("Bonn", "Ulm", "007"))
NONE = Label(name="unlabelled", constant=0)
CELLS = np.array(["Ulm", " Bonn ", "", "Köln", "Heidelberg", "007", "7"])


def test_text_is_its_bytes_or_its_place() -> None:
    whole = DataSchema((BYTES,), NONE).check({"city": CELLS}, "here")
    assert [bytes(row).rstrip(b"\0").decode() for row in whole["city"]] == ["Ulm", "Bonn", "", "Köln", "", "007", "7"]
    assert (whole["unlabelled"].tolist(), whole["city"].dtype) == ([0] * 7, np.uint8)
    places = DataSchema((PLACES,), NONE).check({"city": CELLS}, "here")["city"]
    assert (places.tolist(), places.dtype) == ([2, 1, 0, 0, 0, 3, 0], np.int32)


def test_bytes_may_be_given_as_they_are() -> None:
    held = as_bytes(["a", "bc"], 8)
    assert DataSchema((BYTES,), NONE).check({"city": held}, "here")["city"].tolist() == held.tolist()


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=6), min_size=1))
def test_bytes_hold_every_text_that_has_room(texts: list[str]) -> None:
    held = as_bytes(texts, 12)
    read = [bytes(row).rstrip(b"\0").decode() for row in held]
    assert read == [text if len(text.encode()) <= 12 else "" for text in texts]
    vocabulary = sorted({text for text in texts if text})
    places = as_places(texts, vocabulary).tolist()
    assert [("", *vocabulary)[place] for place in places] == texts


@pytest.mark.parametrize(
    ("cells", "texts"),
    [
        (np.array([7.0, 7.5, 1e-7, -0.0, np.nan, np.inf]), ["7", "7.5", "1e-7", "0", "", ""]),
        (np.array([True, False]), ["true", "false"]),
        (np.array([b"x", b"\xff"]), ["x", "\N{REPLACEMENT CHARACTER}"]),
        (np.array([None, "x", 3], object), ["", "x", "3"]),
        (np.array(["2020-01-01"], "datetime64[D]"), None),
    ],
)
def test_every_cell_has_one_text(cells: Any, texts: list[str] | None) -> None:
    assert texts_of(cells) == texts


def test_rows_of_other_labels_are_dropped_where_the_schema_says_so() -> None:
    label = Label(name="ill", classes=("no", "yes"), others="dropped")
    schema = DataSchema((PLACES,), label)
    held = schema.check({"city": CELLS[:4], "ill": np.array(["yes", "?", "no", "maybe"])}, "here")
    assert (held["city"].tolist(), held["ill"].tolist()) == ([2, 0], [1, 0])
    with pytest.raises(errors.DataError, match="no row has one of the classes 'no', 'yes'") as caught:
        schema.check({"city": CELLS[:1], "ill": np.array(["?"])}, "here")
    assert caught.value.reason == "data_empty"
    strict = DataSchema((PLACES,), replace(label, others="refused"))
    with pytest.raises(errors.DataError, match="row 2: '\\?' is not a class"):
        strict.check({"city": CELLS[:2], "ill": np.array(["yes", "?"])}, "here")


def test_what_is_not_set_is_not_in_the_json_and_what_is_comes_back() -> None:
    plain = DataSchema((Feature(name="x"),), Label(name="y"))
    assert set(to_json(plain)["features"][0]) == {
        *("name", "dtype", "shape", "columns", "low", "high", "offset", "scale")
    }
    assert set(to_json(plain)["label"]) == {"name", "dtype", "classes", "column", "low", "high"}
    for schema in (
        DataSchema((BYTES,), NONE),
        DataSchema((PLACES,), Label(name="y", classes=("a", "b"), others="dropped")),
    ):
        assert DataSchema.from_json(to_json(schema)) == schema
    for damage in ({"encoding": None}, {"encoding": "utf-8", "more": 1}):
        told = to_json(plain)
        told["features"][0] |= damage
        with pytest.raises(errors.ConfigurationError, match="/features/0/"):
            DataSchema.from_json(told)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: replace(BYTES, dtype="float32"), "bytes of text are uint8"),
        (lambda: replace(BYTES, columns=("a", "b")), "read from one column but it names 2"),
        (lambda: replace(BYTES, vocabulary=("a",)), "an encoding or a vocabulary, not both"),
        (lambda: replace(BYTES, encoding="latin-1"), "its encoding must be utf-8"),
        (lambda: replace(PLACES, dtype="float32"), "places in a vocabulary are int32"),
        (lambda: replace(PLACES, vocabulary=()), "needs 1 to"),
        (lambda: replace(PLACES, vocabulary=("a", "a")), "names a text twice"),
        (lambda: replace(PLACES, vocabulary=(" a",)), "without spaces at its ends"),
        (lambda: replace(PLACES, high=3), "no range and no normalisation"),
        (lambda: Label(name="y", others="dropped"), "only be dropped where classes say so"),
        (lambda: Label(name="y", constant=0, high=1), "a constant label has no classes"),
        (lambda: Label(name="y", constant=0.5), "its constant must be a whole number"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_impossible_readings_are_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=words) as caught:
        make()
    assert caught.value.reason == "schema_invalid"


def test_a_label_of_texts_is_read_as_text(tmp_path: Path) -> None:
    """A survey counts texts: 007 is not 7, and true is not 1; a number still is the class of its value."""
    schema = DataSchema((Feature(name="x"),), Label(name="y", classes=("007", "7", "true", "1.5"), others="dropped"))
    cells = ["007", "7", "7.0", "true", "1.50", "0"]
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n" + "".join(f"0,{cell}\n" for cell in cells))
    assert load_data(path, schema)["y"].tolist() == [0, 1, 0, 2, 3]
    path.write_text("x,y\n0,007\n0,7\n")
    assert load_data(path, schema)["y"].tolist() == [0, 1]
    for column, places in ((np.array([7, 8]), [1]), (np.array([True, False]), [2]), (np.array([1.5, 7.0]), [3, 1])):
        assert schema.check({"x": np.zeros(2), "y": column}, "here")["y"].tolist() == places
    numbers = DataSchema((Feature(name="x"),), Label(name="y", classes=(0, 1)))
    assert numbers.check({"x": np.zeros(2), "y": np.array([True, False])}, "here")["y"].tolist() == [1, 0]
