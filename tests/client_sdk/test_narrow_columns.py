"""Columns of int8, int16 and uint8, from a schema to a trained model: as if their values were int32, in less memory."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sdk_kit import RESEARCHER, Coordinator, at_work, infer

from coterie.aggregation.analytics import heavy_hitters, histogram
from coterie.aggregation.analytics.asking import ask
from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.client_sdk import Control, Device
from coterie.client_sdk.rows.loading import load_data
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.initialisers import Normal
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec
from coterie.compute.optim import sgd
from coterie.errors import DataError
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.schema_rules import DType
from coterie.simulation import simulate_full
from tests.patience import patience

Rows = dict[str, npt.NDArray[Any]]

KINDS, LEVELS = ("k0", "k1", "k2"), ("l0", "l1")
NARROW: tuple[DType, DType, DType] = ("int8", "int16", "uint8")
WIDE: tuple[DType, DType, DType] = ("int32", "int32", "int32")


def schema(kinds: DType, levels: DType, shade: DType) -> DataSchema:
    """Ids, which a model is given as they are; levels and a shade, which are normalised."""
    return DataSchema(
        (
            Feature(name="kinds", dtype=kinds, shape=(3,), columns=KINDS, low=-1, high=10),
            Feature(name="levels", dtype=levels, shape=(2,), columns=LEVELS, offset=100.0, scale=1 / 3_000),
            Feature(name="shade", dtype=shade, scale=1 / 255),
        ),
        Label(name="y", low=0, high=2),
    )


@dataclass(frozen=True)
class Readings(Module):
    """Logits of ids by a table, and of levels and a shade by weights."""

    def specs(self) -> dict[str, ParameterSpec]:
        return {"table": ParameterSpec((12, 3), Normal(0.5)), "weight": ParameterSpec((3, 3), Normal(0.5))}

    def __call__(self, params: Parameters, x: Any, mode: Mode = EVAL) -> Array:
        named: Mapping[str, Array] = x
        ids = xp.mean(xp.take(params["table"], named["kinds"] + 1, axis=0), axis=1)
        numbers = xp.concat([named["levels"], xp.expand_dims(named["shade"], axis=-1)], axis=1)
        return ids + xp.matmul(numbers, params["weight"])


def experiment(dtypes: tuple[DType, DType, DType], name: str = "narrow") -> Experiment:
    """Whole batches, so that no order of rows makes a difference."""
    return Experiment(
        name=name,
        model=Readings(),
        schema=schema(*dtypes),
        loss=softmax_cross_entropy,
        metrics={"accuracy": accuracy},
        optimizer=sgd(0.5),
        batch_size=32,
        epochs=2,
        rounds=RoundPolicy(rounds=3, cohort=2, evaluate_every=3),
        infer_batch=32,
    )


def rows(seed: int) -> Rows:
    """Values at both ends of what the dtypes hold."""
    draw = np.random.default_rng(seed)
    levels = draw.integers(-(1 << 15), 1 << 15, (32, 2))
    levels[0] = -(1 << 15), (1 << 15) - 1
    shade = draw.integers(0, 256, 32)
    shade[:2] = 0, 255
    kinds = draw.integers(-1, 11, (32, 3))
    return {"kinds": kinds, "levels": levels, "shade": shade, "y": (kinds[:, 0] + (levels[:, 0] > 0)) % 3}


def save_csv(path: Path, given: Rows) -> Path:
    """The rows as a table."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*KINDS, *LEVELS, "shade", "y"])
        writer.writerows(np.column_stack([given["kinds"], given["levels"], given["shade"], given["y"]]).tolist())
    return path


def save_npz(path: Path, given: Rows) -> Path:
    """The rows as arrays of their dtypes."""
    dtypes = {"kinds": "int8", "levels": "int16", "shade": "uint8", "y": "int32"}
    np.savez(path, **{name: array.astype(dtypes[name]) for name, array in given.items()})  # pyright: ignore[reportArgumentType]
    return path


def test_a_plan_takes_narrow_columns_as_they_are() -> None:
    for dtypes in (NARROW, WIDE):
        train = compile_plan(experiment(dtypes)).plan.manifest.stage("train")
        found = {t.key: t.dtype for t in train.inputs if t.source == "batch"}
        assert tuple(found[name] for name in ("kinds", "levels", "shade")) == dtypes


def test_classes_of_providers_take_them_too() -> None:
    plan = compile_plan(replace(experiment(NARROW), variants=("cpu", "gpu", "web", "npu"))).plan
    kinds = {file.kind for file in plan.manifest.stage("train").files}
    assert "npu" in kinds  # whose files are held to the update of the portable one while they are compiled


@pytest.mark.parametrize("form", ["csv", "npz", "arrays"])
def test_rows_are_read_in_the_dtypes_of_the_schema(tmp_path: Path, form: str) -> None:
    given = rows(0)
    saved = {"csv": save_csv, "npz": save_npz}
    made = saved[form](tmp_path / f"rows.{form}", given) if form in saved else given
    found = load_data(made, schema(*NARROW))
    assert [found[name].dtype.name for name in ("kinds", "levels", "shade")] == list(NARROW)
    for name, array in given.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int8", 128), ("int8", -129), ("int16", 1 << 15), ("int16", -(1 << 15) - 1), ("uint8", 256), ("uint8", -1)],
)
def test_a_value_that_does_not_fit_is_refused_with_its_cell(tmp_path: Path, dtype: DType, value: int) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"x,y\n1,0\n{value},1\n")
    narrow = DataSchema((Feature(name="x", dtype=dtype),), Label(name="y"))
    with pytest.raises(DataError, match=rf"rows\.csv: column 'x', row 2: {value}(\.0)? does not fit {dtype}") as caught:
        load_data(path, narrow)
    info = np.iinfo(dtype)
    assert f"from {info.min} to {info.max}" in str(caught.value)


@pytest.mark.capability("F3")
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_simulation_learns_the_same_to_the_bit_as_with_int32(engine: str) -> None:
    clients = [rows(1), rows(2)]
    narrow, wide = (simulate_full(experiment(dtypes), clients, engine=engine) for dtypes in (NARROW, WIDE))
    for name, weights in wide.weights.items():
        np.testing.assert_array_equal(narrow.weights[name], weights)
    assert narrow.history.rounds[-1].metrics == wide.history.rounds[-1].metrics


def test_questions_are_answered_about_narrow_columns() -> None:
    clients = [rows(1), rows(2)]
    for query in (histogram("levels", low=-32_768, high=32_768, bins=8), heavy_hitters("shade", bits=8, fraction=0.02)):
        answers = [
            query.answer(simulate_full(ask(query, schema(*dtypes), clients=2), clients).weights)
            for dtypes in (NARROW, WIDE)
        ]
        assert repr(answers[0]) == repr(answers[1])


@pytest.mark.capability("F3")
def test_devices_with_tables_and_arrays_train_what_a_simulation_does(coordinator: Coordinator, tmp_path: Path) -> None:
    given = [rows(1), rows(2)]
    files = [save_csv(tmp_path / "a.csv", given[0]), save_npz(tmp_path / "b.npz", given[1])]
    with Control(coordinator.url, token=coordinator.token) as control:
        run = control.submit(experiment(NARROW), key=RESEARCHER)
        token = control.enrolment_token("narrow", uses=2).token
        devices = [Device(coordinator.url, data=path, folder=tmp_path / path.stem, token=token) for path in files]
        with at_work(devices):
            history = run.wait(patience(120))
        path = run.download(tmp_path / "infer.onnx", version="latest")
    assert [record.state for record in history.rounds] == ["committed"] * 3
    wide = simulate_full(experiment(WIDE), given)
    columns = {f"batch/{name}": given[0][name] for name in ("kinds", "levels", "shade")}
    narrow = {name: array.astype(dtype) for (name, array), dtype in zip(columns.items(), NARROW, strict=True)}
    np.testing.assert_allclose(infer(path, narrow), expected(wide.weights, given[0]), rtol=1e-4, atol=1e-5)


def expected(weights: Mapping[str, npt.NDArray[Any]], given: Rows) -> npt.NDArray[Any]:
    """The logits by NumPy."""
    ids = weights["table"][given["kinds"] + 1].mean(axis=1)
    numbers = np.column_stack([(given["levels"] - 100.0) / 3_000, given["shade"] / 255])
    return ids + numbers @ weights["weight"]
