"""The data schema: what fits comes out in its dtypes; what does not is named by column and row."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import errors
from coterie.protocol.conversion import to_json
from coterie.protocol.schema import DataSchema, Feature, Label

TABLE = DataSchema(
    (
        Feature(name="body", shape=(2,), columns=("age", "height"), low=0, high=250, offset=(40.0, 170.0), scale=0.1),
        Feature(name="rooms", dtype="int32", low=1, high=9),
    ),
    Label(name="kind", classes=("cat", "dog", 7), column="species"),
)
IMAGES = DataSchema((Feature(name="x", dtype="uint8", shape=(2, 2), scale=1 / 255),), Label(name="y", low=0, high=9))
ROWS: dict[str, Any] = {
    "age": np.array([30, 41, 52]),
    "height": np.array([1.5, 180.0, 170.25]),
    "rooms": np.array([1, 2, 9], np.int64),
    "species": np.array(["dog", "cat", "7"]),
}


def with_column(name: str, value: Any) -> dict[str, Any]:
    return {**ROWS, name: np.asarray(value)}


def refused(schema: DataSchema, arrays: dict[str, Any]) -> errors.DataError:
    with pytest.raises(errors.DataError) as caught:
        schema.check(arrays, "rows.csv")
    assert str(caught.value).startswith("rows.csv: ")
    assert caught.value.hint
    return caught.value


def test_columns_become_features_in_the_schema_dtypes() -> None:
    checked = TABLE.check(ROWS, "rows.csv")
    assert list(checked) == ["body", "rooms", "kind"]
    assert checked["body"].tolist() == [[30, 1.5], [41, 180], [52, 170.25]]
    assert checked["kind"].tolist() == [1, 0, 2]
    assert {name: str(array.dtype) for name, array in checked.items()} == {
        "body": "float32",
        "rooms": "int32",
        "kind": "int32",
    }
    assert all(array.flags["C_CONTIGUOUS"] for array in checked.values())
    assert TABLE.sources == ("age", "height", "rooms", "species")


@pytest.mark.parametrize("kind", [str, bytes, object])
def test_cells_of_text_are_read_as_numbers(kind: Any) -> None:
    text = {name: np.array([str(cell) for cell in column], kind) for name, column in ROWS.items()}
    as_text, as_numbers = TABLE.check(text, "a"), TABLE.check(ROWS, "b")
    for name in as_numbers:
        assert as_text[name].tolist() == as_numbers[name].tolist()


def test_whole_features_may_be_given_by_name() -> None:
    arrays = {"body": np.zeros((3, 2)), "rooms": ROWS["rooms"], "kind": np.array(["cat"] * 3)}
    assert TABLE.check(arrays, "x.npz")["body"].shape == (3, 2)
    images = IMAGES.check({"x": np.zeros((5, 2, 2), np.uint8), "y": np.arange(5).reshape(5, 1)}, "x.npz")
    assert images["x"].shape == (5, 2, 2) and images["y"].tolist() == [0, 1, 2, 3, 4]


def test_checking_twice_changes_nothing() -> None:
    once = IMAGES.check({"x": np.full((3, 2, 2), 7), "y": np.array([1, 2, 3])}, "a")
    twice = IMAGES.check(once, "b")
    assert {name: a.tolist() for name, a in once.items()} == {name: a.tolist() for name, a in twice.items()}


@pytest.mark.parametrize(
    ("column", "cells", "row", "others", "words"),
    [
        ("age", ["30", "x1", "y"], 2, 1, "'x1' is not a number"),
        ("age", ["30", "", "52"], 2, 0, "'' is not a number"),
        ("age", [1, None, 2], 2, 0, "None is not a number"),
        ("age", ["1_000", "1", "1"], 1, 0, "'1_000' is not a number"),
        ("height", [1.0, 2.0, math.nan], 3, 0, "nan is not a finite number"),
        ("height", [math.inf, 2.0, -math.inf], 1, 1, "inf is not a finite number"),
        ("height", ["inf", "2", "3"], 1, 0, "'inf' is not a finite number"),
        ("height", [1e39, 2.0, 3.0], 1, 0, "is too large for float32"),
        ("height", np.array([1.0, -1e39, 3.0], ">f8"), 2, 0, "is too large for float32"),
        ("height", np.array([1.0, 2.0, math.nan], ">f4"), 3, 0, "nan is not a finite number"),
        ("age", [2**24 + 1, 1, 1], 1, 0, "whole number too large for float32"),
        ("age", [30, 251, -1], 3, 0, "-1 is too low; the schema expects float32 from 0 to 250"),
        ("age", [30, 251, 260], 2, 1, "251 is too high; the schema expects float32 from 0 to 250"),
        ("rooms", [1.0, 2.5, 3.0], 2, 0, "2.5 is not a whole number"),
        ("rooms", ["1", "2", "3.5"], 3, 0, "'3.5' is not a whole number"),
        ("rooms", [1, 2**31, 2**40], 2, 1, "does not fit int32"),
        ("rooms", [1, 2, 0], 3, 0, "0 is too low"),
        ("rooms", np.array([1, 2.0**31, 2], np.float32), 2, 0, "does not fit int32"),
        ("species", ["cat", "cow", "dog"], 2, 0, "'cow' is not a class; the schema expects one of 'cat', 'dog', 7"),
        ("species", ["cat", "Dog", "dog"], 2, 0, "'Dog' is not a class"),
        ("species", [7, 8, 9], 2, 1, "8 is not a class"),
        ("species", [7.0, math.nan, 7.0], 2, 0, "nan is not a class"),
    ],
)
def test_the_first_bad_cell_is_named_and_the_rest_counted(
    column: str, cells: list[Any], row: int, others: int, words: str
) -> None:
    error = refused(TABLE, with_column(column, cells if None not in list(cells) else np.array(cells, object)))
    assert words in str(error)
    assert f"column '{column}', row {row}" in str(error)
    assert (error.reason, error.details) == ("data_cell", {"column": column, "row": row, "others": others})
    assert ("more cell" in str(error)) == bool(others)


def test_an_element_inside_an_example_is_named() -> None:
    x = np.zeros((4, 2, 2))
    x[2, 1, 0] = 256
    error = refused(IMAGES, {"x": x, "y": np.zeros(4, int)})
    assert "column 'x', row 3, element [1, 0]: 256.0 does not fit uint8" in str(error)


@pytest.mark.parametrize(
    ("arrays", "code", "words"),
    [
        ({k: v for k, v in ROWS.items() if k != "height"}, "data_missing", "column 'height' is missing"),
        ({"age": ROWS["age"]}, "data_missing", "The schema reads age, height, rooms, species"),
        ({}, "data_missing", "found nothing"),
        ({**ROWS, "id": ROWS["age"]}, "data_surplus", "column 'id' is not in the schema"),
        ({**ROWS, "id": ROWS["age"], "body": ROWS["age"]}, "data_surplus", "columns 'body', 'id' are not"),
        ({**ROWS, "age": [[1], [2, 3], [4]]}, "data_shape", "column 'age' is no array"),
        (with_column("age", [1, 2]), "data_lengths", "'height' has 3 rows but 'age' has 2"),
        ({name: column[:0] for name, column in ROWS.items()}, "data_empty", "there are no rows"),
        (with_column("age", [[1], [2], [3]]), "data_shape", "has shape [3, 1]"),
        (with_column("age", np.array(["2020-01-01"] * 3, "M8[D]")), "data_dtype", "datetime64"),
        (with_column("age", np.zeros(3, complex)), "data_dtype", "complex128"),
        (with_column("species", np.zeros(3, complex)), "data_dtype", "complex128"),
        (with_column("species", [["a", "b"]] * 3), "data_shape", "has shape [3, 2]"),
        ({**ROWS, "age": np.ma.masked_less([1, 2, 3], 2)}, "data_masked", "column 'age' is masked"),
    ],
)
def test_data_of_another_form_is_refused(arrays: dict[str, Any], code: str, words: str) -> None:
    error = refused(TABLE, arrays)
    assert error.reason == code
    assert words in str(error)


def test_a_shape_that_only_needs_reshaping_says_so() -> None:
    error = refused(IMAGES, {"x": np.zeros((3, 4)), "y": np.zeros(3, int)})
    assert "examples of shape [4]" in str(error) and "reshape the array to [-1, 2, 2]" in str(error)
    error = refused(IMAGES, {"x": np.zeros((3, 5)), "y": np.zeros(3, int)})
    assert "one example per row" in str(error)


def test_a_single_value_is_no_rows() -> None:
    with pytest.raises(errors.DataError, match="'y' is a single value"):
        IMAGES.check({"x": np.zeros((1, 2, 2)), "y": np.array(1)}, "x")


def test_a_bound_lets_its_own_float32_pass() -> None:
    schema = DataSchema((Feature(name="p", low=0.1, high=0.7),), Label(name="y", dtype="float32"))
    rows = {"p": np.array([0.1, 0.7], np.float32), "y": np.array([0.5, -1e30])}
    assert schema.check(rows, "x")["p"].tolist() == rows["p"].tolist()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64, np.int16, bool, np.float16, np.float64])
def test_whole_numbers_of_any_type_are_cast(dtype: Any) -> None:
    arrays = {"x": np.ones((2, 2, 2), dtype), "y": np.array([0, 1], dtype)}
    checked = IMAGES.check(arrays, "x")
    assert checked["x"].dtype == np.uint8 and checked["y"].dtype == np.int32
    assert checked["x"].min() == 1 and checked["y"].tolist() == [0, 1]


@given(st.lists(st.one_of(st.text(max_size=5), st.integers(), st.floats(), st.none()), min_size=1, max_size=5))
def test_any_cells_are_read_or_refused(cells: list[Any]) -> None:
    schema = DataSchema((Feature(name="x"),), Label(name="y", classes=("a", 1)))
    column = np.empty(len(cells), object)
    column[:] = cells
    for name in ("x", "y"):
        good: dict[str, Any] = {"x": np.zeros(len(cells)), "y": np.array(["a"] * len(cells))}
        try:
            checked = schema.check({**good, name: column}, "x")
        except errors.DataError:
            continue
        assert np.isfinite(checked["x"]).all() and set(checked["y"].tolist()) <= {0, 1}


def test_normalisation_is_a_number_or_one_per_element() -> None:
    offset, scale = TABLE.features[0].normalisation()
    assert offset.tolist() == [40, 170] and scale.shape == () and offset.dtype == scale.dtype == np.float32
    assert TABLE.features[0].is_normalised and not TABLE.features[1].is_normalised
    grid = Feature(name="g", shape=(2, 2), scale=(1.0, 2.0, 3.0, 4.0))
    assert grid.normalisation()[1].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("schema", [TABLE, IMAGES])
def test_json_round_trip_keeps_value_and_digest(schema: DataSchema) -> None:
    again = DataSchema.from_json(to_json(schema))
    assert again == schema and again.digest == schema.digest


def test_every_field_counts_in_the_digest() -> None:
    feature: dict[str, Any] = {"name": "x", "shape": (2,), "dtype": "float32"}
    features: list[dict[str, Any]] = [
        {},
        {"name": "z"},
        {"shape": (1, 2)},
        {"dtype": "int32"},
        {"columns": ("a", "b")},
        {"low": 0.0},
        {"high": 0.0},
        {"offset": 1.0},
        {"scale": (1.0, 2.0)},
    ]
    labels: list[dict[str, Any]] = [
        {"name": "z"},
        {"dtype": "float32"},
        {"classes": ("a", "b")},
        {"column": "c"},
        {"low": 0},
        {"high": 0},
    ]
    schemas = [DataSchema((Feature(**{**feature, **change}),), Label(name="y")) for change in features]
    label: dict[str, Any] = {"name": "y"}
    schemas += [DataSchema((Feature(**feature),), Label(**{**label, **change})) for change in labels]
    assert len({schema.digest for schema in schemas}) == len(schemas)


IMPOSSIBLE: list[tuple[Callable[[], object], str]] = [
    (lambda: Feature(name=""), "its name needs"),
    (lambda: Feature(name="x", dtype="float64"), "its dtype must be one of float32, int32, int16, int8, uint8"),  # pyright: ignore
    (lambda: Feature(name="x", shape=(0,)), "its shape must be"),
    (lambda: Feature(name="x", shape=(2,), columns=("a",)), "2 elements but it names 1 columns"),
    (lambda: Feature(name="x", shape=(2,), columns=("a", "a")), "a column twice"),
    (lambda: Feature(name="x", low=2, high=1), "low ≤ high"),
    (lambda: Feature(name="x", dtype="int8", low=200, high=300), "no number from low to high is one of int8"),
    (lambda: Feature(name="x", dtype="int32", low=0.2, high=0.7), "no number from low to high is one of int32"),
    (lambda: Feature(name="x", low=math.nan), "finite"),
    (lambda: Feature(name="x", offset=math.inf), "offset must be one finite number"),
    (lambda: Feature(name="x", shape=(2,), scale=(1.0,)), "or 2 of them"),
    (lambda: Feature(name="x", shape=(2**20, 2**20)), "at most"),
    (lambda: Label(name="y", classes=("a",)), "at least two classes"),
    (lambda: Label(name="y", classes=("a", "a")), "a class twice"),
    (lambda: Label(name="y", classes=("1", 1)), "a class twice"),
    (lambda: Label(name="y", classes=("a", "b"), low=0), "not both"),
    (lambda: Label(name="y", classes=("a", "b"), dtype="float32"), "classes need the dtype int32"),
    (lambda: Label(name="y", classes=("a", math.nan)), "finite"),
    (lambda: Feature(name="x", low=10**400), "low and high must be finite"),
    (lambda: Label(name="y", classes=(10**400, 1)), "finite"),
    (lambda: DataSchema(Feature(name="x"), Label(name="y")), "a tuple of Features"),  # pyright: ignore
    (lambda: DataSchema([Feature(name="x")], Label(name="y")), "a tuple of Features"),  # pyright: ignore
    (lambda: DataSchema((Feature(name="x"),), "y"), "one Label"),  # pyright: ignore
    (lambda: DataSchema((), Label(name="y", constant=0)), "1 to 1000 features"),
    (lambda: DataSchema((Feature(name="x"),) * 1001, Label(name="y")), "1 to 1000 features"),
    (lambda: DataSchema((Feature(name="y"),), Label(name="y")), "distinct names"),
    (lambda: DataSchema((Feature(name="x", columns=("y",)),), Label(name="y")), "the same column"),
]


@pytest.mark.parametrize(("make", "words"), IMPOSSIBLE)
def test_a_schema_that_cannot_be_is_refused(make: Any, words: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="(?i)in the data schema: ") as caught:
        make()
    assert words in str(caught.value) and caught.value.reason == "schema_invalid"


JSON = to_json(TABLE)


HOSTILE: list[Any] = [
    None,
    [],
    {},
    {**JSON, "more": 1},
    {**JSON, "features": {}},
    {**JSON, "features": [1]},
    {**JSON, "features": [{**JSON["features"][0], "more": 1}]},
    {**JSON, "features": [{**JSON["features"][0], "shape": "ab"}]},
    {**JSON, "features": [{**JSON["features"][0], "shape": [[1], 2]}]},
    {**JSON, "features": [{**JSON["features"][0], "columns": [1, 2]}]},
    {**JSON, "features": [{**JSON["features"][0], "dtype": ["float32"]}]},
    {**JSON, "features": [{**JSON["features"][0], "dtype": {}}]},
    {**JSON, "features": [{**JSON["features"][0], "low": "0"}]},
    {**JSON, "features": [{**JSON["features"][0], "offset": {}}]},
    {**JSON, "features": [{**JSON["features"][0], "name": 3}]},
    {**JSON, "label": None},
    {**JSON, "label": {**JSON["label"], "classes": [["a"], ["b"]]}},
    {**JSON, "label": {**JSON["label"], "classes": [{}, {}]}},
    {**JSON, "label": {**JSON["label"], "classes": "ab"}},
    {**JSON, "label": {**JSON["label"], "dtype": []}},
    {**JSON, "label": {**JSON["label"], "column": 1}},
]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_json_is_refused(value: Any) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        DataSchema.from_json(value)
    assert caught.value.reason == "schema_invalid"
