"""The example of the FedAvg CNN on MNIST: the very file, in process and on a coordinator."""

import importlib.util
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from sdk_kit import Coordinator, clean_environment, infer

from coterie.client_sdk import Device, submit
from coterie.simulation import dirichlet, simulate_full, split
from tests.patience import patience

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist_fedavg_cnn.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("mnist_fedavg_cnn", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_twenty_skewed_clients_learn_in_process(example: ModuleType, data_dir: Path) -> None:
    file = example.load(str(data_dir))
    train, test = example.rows(file, "train", 3000), example.rows(file, "test", 500)
    clients = split(train, dirichlet(train["digit"], 20, alpha=0.5, seed=1))
    begun = time.process_time()
    result = simulate_full(example.experiment(test, rounds=4), clients, workers=2)
    # Of processor time, which a busy machine does not stretch; two cores halve it.
    assert time.process_time() - begun < 60
    measured = {record.model: record.metrics["accuracy"] for record in result.history.rounds}
    best_accuracy = measured[result.history.best]
    # Guessing gives 0.1, the second round about 0.3.
    assert best_accuracy >= 0.6
    # What is handed out runs on raw pixels in plain ONNX Runtime and is as good as was measured.
    model = result.infer()
    right = [
        int(infer(model, {"batch/image": test["image"][i : i + 1]}).argmax()) == test["digit"][i] for i in range(500)
    ]
    assert abs(float(np.mean(right)) - best_accuracy) < 0.005


def test_the_same_experiment_runs_on_a_coordinator(
    example: ModuleType, coordinator: Coordinator, data_dir: Path, tmp_path: Path
) -> None:
    file = example.load(str(data_dir))
    whole = example.experiment(example.rows(file, "test", 100))
    wanted = replace(whole, rounds=whole.rounds.model_copy(update={"rounds": 1, "cohort": 2, "min_updates": 2}))
    run = submit(wanted, coordinator.url, token=coordinator.token, key=tmp_path / "key")
    token = run.control.enrolment_token("mnist-fedavg-cnn").token
    parts = [
        {name: array[start : start + 32] for name, array in example.rows(file, "train", 64).items()}
        for start in (0, 32)
    ]
    devices = [
        Device(coordinator.url, data=part, folder=tmp_path / f"d{number}", token=token)
        for number, part in enumerate(parts)
    ]
    threads = [threading.Thread(target=device.run, kwargs={"rounds": 1}) for device in devices]
    for thread in threads:
        thread.start()
    history = run.wait(patience(120))
    for thread in threads:
        thread.join(patience(30))
    for device in devices:
        device.close()
    assert [(record.state, record.accepted, record.evaluation) for record in history.rounds] == [
        ("committed", 2, "central")
    ]
    # Two int8 updates of 1 663 370 parameters: about a quarter of float32.
    assert 2 * 1_663_370 < history.rounds[0].bytes_up < 2 * 1_663_370 * 1.1
    run.control.close()


def test_the_example_says_what_is_missing_without_data(tmp_path: Path) -> None:
    for arguments, message in (((), "COTERIE_DATA is not set"), (("--data", str(tmp_path)), f"There is no {tmp_path}")):
        command = [sys.executable, str(EXAMPLE), *arguments]
        ended = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=patience(120))
        assert ended.returncode == 1 and message in ended.stderr and "mnist.npz" in ended.stderr
