"""A personal model over real HTTP: trained, kept through a restart, evaluated, exported; a simulation has the same."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sdk_kit import RESEARCHER, Coordinator, example, experiment, infer, rows

from coterie import errors
from coterie.client_sdk import Control, Device
from coterie.client_sdk.device.export import export_model
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import simulate_full
from tests.patience import patience

ROWS = 40


def test_a_device_exports_the_personal_model_that_a_simulation_has(coordinator: Coordinator, tmp_path: Path) -> None:
    wanted = experiment(
        "personal",
        algorithm=example("fedper").FedPer(2),
        batch_size=ROWS,
        epochs=3,
        holdout=0.25,
        infer_batch=ROWS,
        rounds=RoundPolicy(rounds=3, cohort=1, evaluate_every=1),
    )
    folder, data = tmp_path / "device", rows(ROWS, 3)
    with Control(coordinator.url, token=coordinator.token) as control:
        run = control.submit(wanted, key=RESEARCHER)
        token = control.enrolment_token("personal").token
        # Two rounds, and one after a restart: the head is in the folder and nowhere else.
        for rounds in (2, 1):
            with Device(coordinator.url, data=data, folder=folder, token=token) as device:
                device.run(rounds=rounds)
        history = run.wait(patience(60))
        with pytest.raises(errors.ExperimentError, match="has its own model") as caught:
            run.download(tmp_path / "model.onnx")
    assert caught.value.reason == "personal_model"
    simulated = simulate_full(wanted, [data])
    assert [r.metrics["loss"] for r in history.rounds] == pytest.approx(
        [r.metrics["loss"] for r in simulated.history.rounds], rel=1e-4
    )
    exported = export_model(folder, "personal")
    assert exported.personal and exported.round == 3
    expected = simulated.predict(data, client=0, best=False)
    np.testing.assert_allclose(infer(exported.data, {"batch/x": data["x"]}), expected, rtol=1e-4, atol=1e-5)
    # What the device kept is part of it: the version's own head says something else.
    assert np.abs(expected - replace(simulated, states={}).predict(data, client=0, best=False)).max() > 0.01


def test_a_model_that_the_device_does_not_have_is_refused_by_name(coordinator: Coordinator, tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigurationError) as absent:
        export_model(tmp_path / "nowhere", "tiny")
    assert absent.value.reason == "store_unknown"
    folder = tmp_path / "device"
    with Control(coordinator.url, token=coordinator.token) as control:
        control.submit(experiment("exported", rounds=RoundPolicy(rounds=1, cohort=1, evaluate_every=0)), key=RESEARCHER)
        token = control.enrolment_token("exported").token
        with Device(coordinator.url, data=rows(), folder=folder, token=token) as device:
            device.run(rounds=1)
    with pytest.raises(errors.InputError) as unknown:
        export_model(folder, "another")
    assert unknown.value.reason == "no_finished_task"
    exported = export_model(folder, "exported")
    assert not exported.personal
    (folder / "cache" / exported.version).write_bytes(b"damaged")
    with pytest.raises(errors.InputError) as gone:
        export_model(folder, "exported")
    assert gone.value.reason == "version_uncached"
