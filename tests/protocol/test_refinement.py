"""What is a finer reading of declared columns, and what is another schema."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.client_sdk.rows.loading import load_data
from coterie.protocol.refinement import departure
from coterie.protocol.schema import DataSchema, Feature, Label

AGE, CITY = Feature(name="age", low=0, high=120), Feature(name="city", dtype="uint8", shape=(64,), encoding="utf-8")
ILL = Feature(name="ill", dtype="uint8", shape=(64,), encoding="utf-8", columns=("status",))
DRAFT = DataSchema((AGE, CITY, ILL), Label(name="unlabelled", constant=0))
SCALED = replace(AGE, offset=40.0, scale=0.1)
PLACES = Feature(name="city", dtype="int32", vocabulary=("Ulm",))
CLASSES = Label(name="ill", column="status", classes=("no", "yes"), others="dropped")
FINER: tuple[DataSchema, ...] = (
    DRAFT,
    DataSchema((SCALED, PLACES), CLASSES),
    DataSchema((PLACES,), CLASSES),
    DataSchema((SCALED,), Label(name="none", constant=1)),
    DataSchema((AGE, CITY), CLASSES),
)


@pytest.mark.parametrize("schema", FINER)
def test_statistics_and_vocabularies_make_a_finer_reading(schema: DataSchema) -> None:
    assert departure(schema, DRAFT) is None


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            DataSchema((SCALED, Feature(name="salary")), CLASSES),
            "reads salary as 'salary', which is not how it was declared",
        ),
        (DataSchema((replace(AGE, columns=("salary",)),), CLASSES), "reads salary as 'age'"),
        (DataSchema((replace(AGE, high=200),), CLASSES), "reads 'age' otherwise"),
        (DataSchema((replace(AGE, dtype="int32"),), CLASSES), "reads 'age' otherwise"),
        (DataSchema((replace(AGE, name="years", columns=("age",)),), CLASSES), "reads 'years' otherwise"),
        (DataSchema((Feature(name="city"),), CLASSES), "reads 'city' otherwise"),
        (DataSchema((replace(CITY, shape=(8,)),), CLASSES), "reads 'city' otherwise"),
        (DataSchema((AGE,), replace(CLASSES, column="salary")), "reads the label 'ill' differently"),
        (DataSchema((AGE,), Label(name="ill", column="status")), "reads the label 'ill' differently"),
        (DataSchema((CITY,), Label(name="age", classes=("1", "2"))), "reads the label 'age' differently"),
        (DataSchema((AGE,), replace(CLASSES, others="refused")), "refuses rows by the label 'ill'"),
        (DataSchema((AGE,), replace(CLASSES, name="salary")), "reads the label 'salary' differently"),
        (DataSchema((AGE,), replace(CLASSES, classes=("no", "ü" * 33))), "reads the label 'ill' differently"),
        (DataSchema((AGE,), replace(CLASSES, classes=(0, 1))), "reads the label 'ill' differently"),
        (DataSchema((replace(PLACES, vocabulary=("x" * 65,)),), CLASSES), "reads 'city' otherwise"),
    ],
)
def test_anything_else_departs_from_what_was_declared(schema: DataSchema, words: str) -> None:
    assert words in (departure(schema, DRAFT) or "")


def test_a_label_opens_no_array_that_was_not_declared(tmp_path: Path) -> None:
    """Arrays are found by the label's name, whatever its column is called."""
    np.savez(tmp_path / "rows.npz", age=np.ones(2), city=["Ulm"] * 2, ill=["no", "yes"], salary=["1", "2"])
    greedy = DataSchema((AGE,), replace(CLASSES, name="salary", classes=("1", "2")))
    assert set(load_data(tmp_path / "rows.npz", greedy)["salary"].tolist()) == {0, 1}
    assert departure(greedy, DRAFT) is not None


def test_what_a_finer_reading_allows_it_allows_in_one_direction() -> None:
    reached: list[Any] = [departure(DRAFT, schema) for schema in FINER[1:4]]
    assert all(reached)
