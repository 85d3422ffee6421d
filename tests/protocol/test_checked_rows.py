"""Rows that a schema has checked are not read as raw values again: places in vocabularies and classes stay places."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from coterie.client_sdk.rows.loading import load_data
from coterie.errors import DataError
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation.partition import iid, split

Raw = tuple[Feature, Mapping[str, NDArray[Any]]]
ROWS = 6
WORDS = ("Ulm", "Bonn", "Köln")
NUMBERS = ("2", "1", "30")


def _numbers(low: float, high: float, shape: tuple[int, ...], dtype: Any) -> st.SearchStrategy[NDArray[Any]]:
    size = ROWS * int(np.prod(shape, dtype=int))
    values = st.integers(int(low), int(high)) if dtype != np.float64 else st.floats(low, high)
    return st.lists(values, min_size=size, max_size=size).map(lambda v: np.array(v, dtype).reshape((ROWS, *shape)))


def _texts(texts: tuple[str, ...]) -> st.SearchStrategy[NDArray[Any]]:
    return st.lists(st.sampled_from((*texts, "?")), min_size=ROWS, max_size=ROWS).map(lambda v: np.array(v, np.str_))


def _alone(feature: Feature, values: st.SearchStrategy[NDArray[Any]]) -> st.SearchStrategy[Raw]:
    return values.map(lambda array: (feature, {feature.name: array}))


KINDS: dict[str, st.SearchStrategy[Raw]] = {
    "number": _alone(Feature(name="number", low=-5, high=5), _numbers(-5, 5, (), np.float64)),
    "vector": _alone(Feature(name="vector", shape=(2, 2)), _numbers(-5, 5, (2, 2), np.int64)),
    "whole": _alone(Feature(name="whole", dtype="int32"), _numbers(-5, 5, (), np.int64)),
    "image": _alone(Feature(name="image", dtype="uint8", shape=(3,)), _numbers(0, 255, (3,), np.uint8)),
    "columns": _numbers(-5, 5, (), np.float64).map(
        lambda a: (Feature(name="columns", shape=(2,), columns=("left", "right")), {"left": a, "right": a[::-1]})
    ),
    "bytes": _alone(Feature(name="bytes", dtype="uint8", shape=(8,), encoding="utf-8"), _texts(WORDS)),
    "words": _alone(Feature(name="words", dtype="int32", vocabulary=WORDS), _texts(WORDS)),
    "codes": _alone(Feature(name="codes", dtype="int32", vocabulary=NUMBERS), _texts(NUMBERS)),
}
LABELS: dict[str, tuple[Label, NDArray[Any]]] = {
    "words": (Label(name="y", classes=("no", "yes")), np.array(["no", "yes"] * 3)),
    "numbers": (Label(name="y", classes=(2, 1)), np.array([1, 2] * 3)),
    "some": (Label(name="y", classes=(2, 1), others="dropped"), np.array([1, 2, 3] * 2)),
    "value": (Label(name="y", dtype="float32"), np.arange(6.0)),
    "constant": (Label(name="y", constant=3), np.empty(0)),
}


def same(one: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> bool:
    return set(one) == set(other) and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name]) for name in one
    )


@pytest.mark.parametrize("label", LABELS)
@given(data=st.data())
def test_rows_that_were_checked_come_back_equal(label: str, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, unique=True))
    parts = [data.draw(KINDS[kind]) for kind in chosen]
    what, labels = LABELS[label]
    schema = DataSchema(tuple(feature for feature, _ in parts), what)
    raw = {name: array for _, arrays in parts for name, array in arrays.items()}
    checked = schema.check(raw if what.constant is not None else raw | {"y": labels}, "here")
    assert same(schema.check(checked, "here"), checked)
    assert same(load_data(checked, schema), checked)
    count = len(checked["y"])
    for part, rows in zip(split(checked, cut := iid(count, 2, seed=1)), cut, strict=True):
        assert same(schema.check(part, "here"), {name: array[rows] for name, array in checked.items()})
    assert same(schema.check(checked.select(np.arange(count) > 0), "here"), {n: a[1:] for n, a in checked.items()})


def test_arrays_cut_by_hand_stay_places_where_no_text_is_a_number(tmp_path: Path) -> None:
    schema = DataSchema(
        (Feature(name="city", dtype="int32", vocabulary=WORDS),), Label(name="ill", classes=("no", "yes"))
    )
    (tmp_path / "rows.csv").write_text("city,ill\nBonn,yes\nUlm,no\nRom,yes\n")
    rows = load_data(tmp_path / "rows.csv", schema)
    cut = {name: array[:2] for name, array in rows.items()}
    assert same(schema.check(cut, "here"), cut)
    for bad in (4, -1):
        assert schema.check(cut | {"city": np.array([1, bad])}, "here")["city"].tolist() == [1, 0]
        with pytest.raises(DataError, match=f"column 'ill', row 2: {bad} is not a class"):
            schema.check(cut | {"ill": np.array([0, bad])}, "here")
        rows["city"] = np.array([0, 1, bad])
        with pytest.raises(DataError, match=f"column 'city', row 3: {bad} is not an index"):
            schema.check(rows, "here")


def test_checked_rows_that_somebody_changed_are_checked(tmp_path: Path) -> None:
    schema = DataSchema((Feature(name="x", low=0, high=1),), Label(name="y", dtype="float32"))
    rows = schema.check({"x": np.array([0.0, 1.0]), "y": np.zeros(2)}, "here")
    rows["x"] = np.array([0.0, 2.0])
    with pytest.raises(DataError, match="row 2: 2.0 is too high"):
        schema.check(rows, "here")
    del rows["y"]
    with pytest.raises(DataError, match="column 'y' is missing"):
        schema.check(rows, "here")
    other = DataSchema((Feature(name="x"),), Label(name="y", dtype="float32", high=0.5))
    with pytest.raises(DataError, match="too high"):
        other.check(schema.check({"x": np.zeros(1), "y": np.ones(1)}, "here"), "here")
