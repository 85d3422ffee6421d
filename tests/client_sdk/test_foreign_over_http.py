"""A network that PyTorch exported trains over real HTTP; the device has no PyTorch, and reads no foreign file."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sdk_kit import RESEARCHER, Coordinator, clean_environment, experiment, infer, rows, save_rows

from coterie.client_sdk import Control
from coterie.compute import onnx
from coterie.compute.array import Array
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.optim import adam
from coterie.protocol.rounds import RoundPolicy
from tests.patience import patience

FILE = Path(__file__).parents[1] / "compute" / "importer" / "fixtures" / "readings_17.onnx"
DEVICE = Path(__file__).parent / "device_modules.py"


@pytest.mark.capability("A15", "G1")
def test_an_exported_network_trains_on_a_device_that_has_no_pytorch(coordinator: Coordinator, tmp_path: Path) -> None:
    network = onnx.load(FILE)
    wanted = experiment(
        "foreign",
        model=network,
        optimizer=adam(0.05),
        epochs=4,
        rounds=RoundPolicy(rounds=1, cohort=1, evaluate_every=0),
        infer_batch=30,
    )
    test = rows(30, seed=9)
    with Control(coordinator.url, token=coordinator.token) as control:
        run = control.submit(wanted, key=RESEARCHER)
        token = control.enrolment_token("foreign").token
        data = save_rows(tmp_path / "rows.npz", rows(60))
        command = [sys.executable, str(DEVICE), coordinator.url, token, str(tmp_path / "device"), str(data)]
        device = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=patience(60), env=clean_environment()
        )
        history = run.wait(patience(60))
        path = run.download(tmp_path / "infer.onnx", version="latest")
    assert [record.state for record in history.rounds] == ["committed"]
    before = network(network.parameters, test["x"]).numpy()
    after = infer(path, {"batch/x": test["x"]})
    losses = [
        float(np.mean(softmax_cross_entropy(Array(logits), Array(test["y"])).numpy())) for logits in (before, after)
    ]
    assert losses[1] < 0.6 * losses[0]
    loaded = set[str](json.loads(device.stdout))
    assert "coterie.client_sdk.device.trainers.plan" in loaded
    assert not {"torch", "coterie.compute.onnx.importer.reading", "coterie.compute.nn"} & loaded
