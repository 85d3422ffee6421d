"""A LeNet script written for MindSpore, only its imports changed, trains on a device over real HTTP."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sdk_kit import RESEARCHER, Coordinator, clean_environment, example, infer, save_rows

from coterie.client_sdk import Control
from coterie.compute.mindspore import set_seed
from coterie.compute.optim import cosine
from tests.patience import patience

DEVICE = Path(__file__).parent / "device_modules.py"


@pytest.mark.capability("B5")
def test_the_lenet_script_trains_on_a_device_of_a_coordinator(
    coordinator: Coordinator, tmp_path: Path, data_dir: Path
) -> None:
    script = example("mindspore_lenet")
    file = script.load(str(data_dir))
    train, test = script.rows(file, "train", 400), script.rows(file, "test", 200)
    set_seed(0)
    # At the script's own rate the last of so few steps may undo much, and in fewer steps some orders of the rows do not
    # get going. Of 200 orders, each from first weights of its own, none ended below 0.82.
    wanted = replace(
        script.experiment(test, rounds=1, cohort=1),
        epochs=12,
        max_steps=240,
        schedules={"lr": cosine(0.05, length=240)},
        infer_batch=200,
    )
    with Control(coordinator.url, token=coordinator.token) as control:
        run = control.submit(wanted, key=RESEARCHER)
        token = control.enrolment_token(run.view().population).token
        data = save_rows(tmp_path / "rows.npz", train)
        command = [sys.executable, str(DEVICE), coordinator.url, token, str(tmp_path / "device"), str(data)]
        device = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=patience(60), env=clean_environment()
        )
        history = run.wait(patience(60))
        path = run.download(tmp_path / "infer.onnx", version="latest")
    assert [record.state for record in history.rounds] == ["committed"]
    found = infer(path, {"batch/image": test["image"]}).argmax(axis=1)
    accuracy = float(np.equal(found, test["digit"]).mean())
    assert accuracy > 0.6
    assert history.rounds[0].metrics["accuracy"] == pytest.approx(accuracy, abs=0.011)
    loaded = set[str](json.loads(device.stdout))
    assert not {name for name in loaded if name.startswith("coterie.compute.mindspore")}
