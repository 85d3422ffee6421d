"""A classifier on CSV files, each at a device of its own, over real HTTP."""

import csv
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from sdk_kit import RESEARCHER, Coordinator, at_work, infer

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.preparation import Category, Draft, Number, Survey
from coterie.aggregation.preparation.tabular import tabular
from coterie.client_sdk import Control, Device
from coterie.client_sdk.control.preparing import prepared
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import adam
from coterie.errors import DataError, ExperimentError
from coterie.protocol.privacy import UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from tests.patience import patience

COLUMNS = tuple(f"x{number}" for number in range(10))
CLASSES = ("malignant", "benign")
SCHEMA = DataSchema(
    (Feature(name="measures", shape=(10,), columns=COLUMNS, low=-20, high=20),),
    Label(name="diagnosis", classes=CLASSES),
)
CLIENTS, HELD_BACK = 4, 120


Row = dict[str, str]


def _diagnosis(row: Row) -> str:
    return row["diagnosis"]


def shared_out(source: Path, folder: Path) -> tuple[list[Path], list[Row]]:
    """Client files skewed by label, with a text label and a column beyond the schema; and rows that nobody has."""
    with source.open(newline="") as file:
        table: list[Row] = [dict(row) for row in csv.DictReader(file)]
    for row in table:
        row["diagnosis"] = "benign" if row.pop("y") == "1" else "malignant"
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(table))
    shuffled = [table[int(place)] for place in order]
    held_back, rest = shuffled[:HELD_BACK], shuffled[HELD_BACK:]
    rest.sort(key=_diagnosis)
    half = len(rest) // 2
    parts = [rest[client * half // CLIENTS : (client + 1) * half // CLIENTS] for client in range(CLIENTS)]
    for place, row in enumerate(rest[half:]):
        parts[place % CLIENTS].append(row)
    paths = [folder / f"hospital{client}.csv" for client in range(CLIENTS)]
    for path, part in zip(paths, parts, strict=True):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(part[0]))
            writer.writeheader()
            writer.writerows(part)
    return paths, held_back


def test_hospitals_with_csv_files_train_one_model(coordinator: Coordinator, data_dir: Path, tmp_path: Path) -> None:
    paths, held_back = shared_out(data_dir / "breast_hetero_guest.csv", tmp_path)
    experiment = Experiment(
        name="csv",
        model=mlp((10, 16, 2)),
        schema=SCHEMA,
        loss=softmax_cross_entropy,
        metrics={"accuracy": accuracy},
        optimizer=adam(0.01),
        batch_size=16,
        epochs=3,
        codecs=("float16",),
        rounds=RoundPolicy(rounds=5, cohort=CLIENTS, evaluate_every=5),
        infer_batch=HELD_BACK,
    )
    with Control(coordinator.url, token=coordinator.token) as control:
        run = control.submit(experiment, key=RESEARCHER)
        token = control.enrolment_token("csv", uses=CLIENTS).token
        devices = [
            Device(coordinator.url, data=path, folder=tmp_path / f"d{client}", token=token)
            for client, path in enumerate(paths)
        ]
        with at_work(devices):
            history = run.wait(patience(120))
        path = run.download(tmp_path / "infer.onnx", version="latest")
    assert [record.state for record in history.rounds] == ["committed"] * 5
    measures = np.array([[float(row[name]) for name in COLUMNS] for row in held_back], np.float32)
    predicted: list[int] = infer(path, {"batch/measures": measures}).argmax(1).tolist()
    right = [CLASSES[place] == row["diagnosis"] for place, row in zip(predicted, held_back, strict=True)]
    assert sum(right) / HELD_BACK >= 0.88


def test_a_hospital_whose_file_does_not_fit_never_joins(coordinator: Coordinator, tmp_path: Path) -> None:
    bad = tmp_path / "hospital.csv"
    cells = ["1"] * 9
    bad.write_text(",".join([*COLUMNS, "diagnosis"]) + "\n" + ",".join([*cells, "n/a", "benign"]) + "\n")
    with Control(coordinator.url, token=coordinator.token) as control:
        control.ensure_population("strict", SCHEMA)
        token = control.enrolment_token("strict").token
        with Device(coordinator.url, data=bad, folder=tmp_path / "device", token=token) as device:
            with pytest.raises(DataError, match=r"hospital\.csv: column 'x9', row 1: 'n/a'"):
                device.run()
        assert control.devices("strict") == []


DRAFT = Draft((Number("dose"), Category("ward")), label=Category("outcome"))
WARDS = ("surgery", "children", "007")


def skewed(folder: Path) -> list[Path]:
    """Three hospitals, each with most of one ward, where doses are its own; who is healed shows in the dose."""
    paths: list[Path] = []
    for site in range(3):
        draw = np.random.Generator(np.random.PCG64(site))
        wards: list[int] = draw.choice(3, 60, p=np.roll((0.7, 0.2, 0.1), site)).tolist()
        doses: list[float] = draw.normal([500 + 200 * ward for ward in wards], 60).tolist()
        paths.append(folder / f"hospital{site}.csv")
        with paths[-1].open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("patient", "ward", "dose", "outcome"))
            for ward, dose in zip(wards, doses, strict=True):
                outcome = "healed" if dose > 650 else "ill"
                writer.writerow((f"p{draw.integers(1000)}", WARDS[ward], f"{dose:.1f}", outcome))
    return paths


@contextmanager
def devices(coordinator: Coordinator, token: str, paths: Sequence[Path], folder: Path) -> Generator[None, None, None]:
    """Devices on these files, which join once and stay."""
    made = [Device(coordinator.url, data=path, folder=folder / path.stem, token=token) for path in paths]
    with at_work(made):
        yield


@pytest.mark.capability("F3")
def test_files_with_text_are_prepared_and_trained_on_by_devices_that_join_once(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    """First the statistics of all files, with a little noise, whose price the population's ledger holds; then training;
    all in one population.
    """
    paths, survey = skewed(tmp_path), Survey(DRAFT, most=8)
    rows: list[Mapping[str, str]] = [row for path in paths for row in csv.DictReader(path.read_text().splitlines())]
    # Three devices hide nobody: this noise is too little to promise anything, and the ledger prices it so.
    privacy = UserLevel(clip=500.0, delta=1e-6, noise_multiplier=0.004)
    with Control(coordinator.url, token=coordinator.token) as control:
        run = control.submit(survey.ask(clients=3, privacy=privacy), key=RESEARCHER, population="wards")
        token = control.enrolment_token("wards", uses=3).token
        with devices(coordinator, token, paths, tmp_path):
            answer = prepared(survey, run, timeout_s=60)
            experiment = Experiment(
                name="outcome",
                model=tabular(answer.schema, hidden=(16,)),
                schema=answer.schema,
                loss=softmax_cross_entropy,
                metrics={"accuracy": accuracy},
                optimizer=adam(0.02),
                batch_size=8,
                epochs=6,
                rounds=RoundPolicy(rounds=3, cohort=3, evaluate_every=3),
            )
            history = control.submit(experiment, key=RESEARCHER, population="wards").wait(patience(60))
        assert len(control.devices("wards")) == 3
        spent = control.budget("wards")
        unlike = DataSchema((Feature(name="patient", dtype="int32"),), Label(name="y"))
        with pytest.raises(ExperimentError, match="reads patient as 'patient', which is not how it was declared"):
            control.ensure_population("wards", unlike)
    assert 0 < answer.noise < 10
    for found, column in zip(answer.categories, ("ward", "outcome"), strict=True):
        counted = Counter(row[column] for row in rows)
        assert set(found.counts) == set(counted)
        assert all(abs(count - counted[text]) < 6 * answer.noise for text, count in found.counts.items())
    doses = np.array([float(row["dose"]) for row in rows])
    assert abs(answer.numbers[0].mean - doses.mean()) <= answer.numbers[0].error
    assert [record.state for record in history.rounds] == ["committed"] * 3
    assert history.rounds[-1].metrics["accuracy"] > 0.75
    assert any(part.rounds_spent == survey.rounds and (part.epsilon_spent or 0) > 1e5 for part in spent.experiments)
