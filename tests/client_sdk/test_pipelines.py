"""A source or a pipeline of the compute core as what a device holds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sdk_kit import Lab, experiment, rows, run

from coterie.client_sdk.rows.loading import load_data
from coterie.compute.data import ArraySource, Dataset
from coterie.errors import ArgumentValueError, DataError
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

SCHEMA = DataSchema(
    (
        Feature(name="measures", shape=(2,), columns=("width", "height"), low=0, high=100),
        Feature(name="age", dtype="int32", columns=("age",)),
    ),
    Label(name="kind", classes=("cat", "dog"), column="species"),
)
MEASURES = np.array([[1, 2.5], [3.25, 4], [100, 0]], np.float32)
TABLE = {
    "species": ["cat", "dog", "cat"],
    "age": np.array([3, 12, 1], np.int32),
    "width": MEASURES[:, 0],
    "height": MEASURES[:, 1],
    "secret": np.arange(3),
}


def double(value: Any) -> Any:
    return value * 2


PIPELINES: dict[str, Any] = {
    "source": ArraySource(TABLE),
    "data set": Dataset.of(ArraySource(TABLE)),
    "whole feature": Dataset.of(ArraySource({"measures": MEASURES, "age": TABLE["age"], "kind": TABLE["species"]})),
    "mapped": Dataset.of(ArraySource(TABLE | {"width": MEASURES[:, 0] / 2})).map(double, "width"),
    "filtered": Dataset.of(ArraySource(TABLE)).repeat(2).filter(lambda row: True).take(3),
}


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_a_pipeline_is_loaded_as_a_file_of_the_same_rows_is(name: str) -> None:
    found = load_data(PIPELINES[name], SCHEMA)
    assert found.keys() == {"measures", "age", "kind"}
    assert found["measures"].dtype == np.float32 and (found["measures"] == MEASURES).all()
    assert found["age"].tolist() == [3, 12, 1] and found["kind"].tolist() == [0, 1, 0]


def test_what_does_not_fit_is_refused() -> None:
    table = Dataset.of(ArraySource(TABLE))
    with pytest.raises(DataError, match=r"none of its columns, secret, is in the schema"):
        load_data(table.select("secret"), SCHEMA)
    with pytest.raises(DataError, match="column 'species' is missing"):
        load_data(table.select("age", "width", "height"), SCHEMA)
    with pytest.raises(ArgumentValueError, match="no end"):
        load_data(table.repeat(), SCHEMA)
    with pytest.raises(DataError, match=r"Column 'width': the rows hold values of shapes \(1,\) and \(2,\)"):
        load_data(table.map(lambda n: np.zeros(1 + n % 2), "secret", outputs="width"), SCHEMA)
    with pytest.raises(DataError, match="row 2"):
        load_data(table.map(lambda w: w * 40, "width"), SCHEMA)


def test_a_device_trains_on_a_pipeline(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=3, cohort=1, evaluate_every=1)
        view = await place.submit(experiment("pipeline", rounds=policy, epochs=4))
        held = rows(90, 1)
        # Half of what it should be, with a column that no schema names, in another order.
        pipeline = Dataset.of(ArraySource({"x": held["x"] / 2, "y": held["y"], "name": ["a"] * 90})).shuffle(1)
        agent = await place.agent("pipeline", data=pipeline.map(double, "x"))
        summary = await agent.run(rounds=3)
        assert (summary.trained, summary.counted, summary.failed) == (3, 3, 0)
        history = await place.control.history(view.id)
        assert [value for _, value in history.curve("accuracy")][-1] > 0.9

    run(work, tmp_path)
