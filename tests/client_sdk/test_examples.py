"""The examples run as their README says, and their trainers work on a coordinator too."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sdk_kit import RESEARCHER, Coordinator, at_work, clean_environment

from coterie.client_sdk import Control, Device
from tests.patience import patience

EXAMPLES = Path(__file__).parents[2] / "examples"


def digits() -> dict[str, NDArray[Any]]:
    """The handwritten digits by the schema's names."""
    datasets = pytest.importorskip("sklearn.datasets", reason="a plain install has no scikit-learn")
    pixels, classes = datasets.load_digits(return_X_y=True)
    return {"pixels": pixels.astype(np.float32), "digit": classes.astype(np.int32)}


def module(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("name", ["sklearn_sgd", "flower_numpy_client"])
def test_a_trainer_of_ones_own_learns_the_digits(name: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    ended = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=patience(120))
    accuracies = [float(value) for value in re.findall(r"accuracy (\d\.\d+)", ended.stdout)]
    assert ended.returncode == 0, ended.stderr
    assert len(accuracies) == 10 and accuracies[-1] > 0.8


@pytest.mark.parametrize("name", ["sklearn_sgd", "flower_numpy_client"])
def test_its_trainer_works_on_a_coordinator(name: str, coordinator: Coordinator, tmp_path: Path) -> None:
    example = module(name)
    policy = example.EXPERIMENT.rounds.model_copy(update={"rounds": 2, "cohort": 2, "min_updates": 2})
    arrays = digits()
    with Control(coordinator.url, token=coordinator.token) as control:
        run = control.submit(replace(example.EXPERIMENT, rounds=policy), key=RESEARCHER)
        token = control.enrolment_token(run.view().population).token
        devices = [
            Device(
                coordinator.url,
                data={key: array[start::20] for key, array in arrays.items()},
                folder=tmp_path / f"d{start}",
                token=token,
                trainer=example.TRAINER,
            )
            for start in range(2)
        ]
        with at_work(devices):
            history = run.wait(patience(60))
    assert [(record.state, record.accepted) for record in history.rounds] == [("committed", 2)] * 2
    losses = [value for _, value in history.curve("loss")]
    assert len(losses) == 2 and losses[1] < losses[0]
