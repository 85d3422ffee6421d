"""A query on a real coordinator: the same value that `simulate` takes is submitted, and devices answer it over HTTP."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sdk_kit import RESEARCHER, SCHEMA, Coordinator, at_work, rows

from coterie.aggregation.analytics import ask, histogram, quantiles
from coterie.client_sdk import Control, Device
from coterie.client_sdk.control.control import Run
from coterie.protocol.tensors import read_file
from tests.patience import patience


def answered(
    coordinator: Coordinator, runs: list[Run], parts: list[dict[str, NDArray[Any]]], token: str, folder: Path
) -> list[dict[str, NDArray[Any]]]:
    """The versions that devices with these rows bring the runs to."""
    devices = [
        Device(coordinator.url, data=part, folder=folder / f"d{number}", token=token)
        for number, part in enumerate(parts)
    ]
    with at_work(devices):
        assert [run.wait(patience(120)).reason for run in runs] == ["completed", "completed"]
        return [
            read_file(run.download(folder / f"{run.id}.safetensors", version="latest", form="weights")) for run in runs
        ]


def test_quantiles_and_a_histogram_over_http(coordinator: Coordinator, tmp_path: Path) -> None:
    parts = [rows(30 + 7 * seed, seed) for seed in range(3)]
    values = np.concatenate([part["x"] for part in parts]).ravel()
    labels = np.concatenate([part["y"] for part in parts])
    query, classes = quantiles("x", (0.25, 0.9), low=-10, high=10, rounds=2), histogram("y", low=0, high=3, bins=3)
    asked = (("quantiles", query), ("classes", classes))
    with Control(coordinator.url, token=coordinator.token) as control:
        runs = [
            control.submit(ask(question, SCHEMA, clients=3, name=name), key=RESEARCHER, population="asked")
            for name, question in asked
        ]
        token = control.enrolment_token("asked").token
        versions = answered(coordinator, runs, parts, token, tmp_path)
    found = query.answer(versions[0])
    assert found.values == values.size
    for quantile in found.quantiles:
        exact = float(np.quantile(values, quantile.level, method="inverted_cdf"))
        assert quantile.lower <= exact < quantile.upper
        assert quantile.error < 0.01
    counted = classes.answer(versions[1])
    assert counted.counts.tolist() == np.bincount(labels, minlength=3).tolist()
