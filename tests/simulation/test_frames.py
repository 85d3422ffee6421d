"""Tables of pandas in and out. Where pandas is not installed, a table of the same shape stands for it."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulation_kit import experiment, rows, same

from coterie import errors
from coterie.aggregation.history import History
from coterie.aggregation.record import RoundRecord
from coterie.client_sdk.rows.loading import load_data
from coterie.compute.data import ArraySource
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate_full, split

NAMES = ("a", "b", "c", "d")
SCHEMA = DataSchema((Feature(name="x", shape=(4,), columns=NAMES),), Label(name="y", low=0, high=2))
POLICY = RoundPolicy(rounds=2, cohort=2)


class Column:
    """What a Series is to who takes its values."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def to_numpy(self) -> Any:
        return self.values


class Table:
    """What a DataFrame is to who takes its columns."""

    def __init__(self, columns: dict[Any, Any]) -> None:
        self._columns = columns
        self.columns = list(columns)

    def __getitem__(self, name: Any) -> Column:
        return Column(self._columns[name])

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def to_numpy(self) -> Any:
        return np.stack(list(self._columns.values()), 1)


def table(columns: dict[Any, Any]) -> Any:
    """A DataFrame where pandas is installed."""
    if importlib.util.find_spec("pandas") is None:
        return Table(columns)
    return importlib.import_module("pandas").DataFrame(columns)


def flat(count: int, seed: int) -> dict[str, Any]:
    data = rows(count, seed)
    return {**{name: data["x"][:, place] for place, name in enumerate(NAMES)}, "y": data["y"]}


def test_tables_are_rows_of_clients_of_the_evaluation_and_of_predictions() -> None:
    columns = [flat(40, seed) for seed in range(3)]
    wanted = {"schema": SCHEMA, "rounds": POLICY}
    plain = simulate_full(experiment(evaluation=columns[2], **wanted), columns)
    framed = [table(each) for each in columns[:2]]
    clients: list[Any] = [*framed, lambda: table(columns[2])]
    done = simulate_full(experiment(evaluation=table(columns[2]), **wanted), clients)
    assert same(plain.weights, done.weights)
    assert plain.history.curve("loss") == done.history.curve("loss") != []
    unlabelled = {name: columns[0][name] for name in NAMES}
    assert np.array_equal(plain.predict(unlabelled), done.predict(table(unlabelled)))
    assert same(load_data(framed[0], SCHEMA), load_data(columns[0], SCHEMA))
    parts = [np.array([3, 1])]
    assert same(split(framed[0], parts)[0], split(columns[0], parts)[0])


def test_evaluation_rows_may_be_a_file_a_source_or_a_function(tmp_path: Path) -> None:
    columns = [flat(40, seed) for seed in range(3)]
    wanted = {"schema": SCHEMA, "rounds": POLICY}
    plain = simulate_full(experiment(evaluation=columns[2], **wanted), columns).history.curve("loss")
    file = tmp_path / "held-out.csv"
    names = (*NAMES, "y")
    lines = [",".join(names)] + [",".join(str(columns[2][name][row]) for name in names) for row in range(40)]
    file.write_text("\n".join(lines) + "\n")
    for given in (file, str(file), tmp_path, ArraySource(columns[2]), lambda: table(columns[2])):
        done = simulate_full(experiment(evaluation=given, **wanted), columns)
        assert done.history.curve("loss") == plain != []
    with pytest.raises(errors.DataError, match="gone.csv: there is no such file"):
        simulate_full(experiment(evaluation="gone.csv", **wanted), columns)


def test_what_a_table_lacks_is_named() -> None:
    found = flat(6, 1)
    found["b"] = np.where(np.arange(6) == 2, np.nan, found["b"])
    for broken, code, words in (
        (found, "data_cell", "column 'b', row 3"),
        ({name: found[name] for name in ("a", "y")}, "data_missing", "missing; found a, y"),
        ({**found, 1: found["a"], "1": found["a"]}, "data_missing", "two columns are named '1'"),
    ):
        with pytest.raises(errors.DataError, match=words) as caught:
            load_data(table(broken), SCHEMA)
        assert caught.value.reason == code and "the table given" in caught.value.message
    with pytest.raises(errors.ExperimentError, match="clients must be a list"):
        simulate_full(experiment(schema=SCHEMA, rounds=POLICY), table(flat(6, 1)))


def test_a_history_is_a_table_by_round(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(
        (
            RoundRecord(round=1, state="committed", metrics={"loss": 2.0}),
            RoundRecord(round=2, state="abandoned", cause="deadline"),
        )
    )
    if importlib.util.find_spec("pandas") is not None:
        frame = history.to_dataframe()
        assert list(frame.index) == [1, 2] and frame.loc[1, "loss"] == 2.0 and np.isnan(frame.loc[2, "loss"])
        assert list(frame.columns) == history.to_csv().splitlines()[0].split(",")[1:]
    # As where it is not installed.
    monkeypatch.setitem(sys.modules, "pandas", None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(errors.ConfigurationError, match="needs pandas") as caught:
        history.to_dataframe()
    assert caught.value.reason == "extra_missing" and "to_csv" in (caught.value.hint or "")
