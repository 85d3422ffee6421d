"""Methods over real HTTP: what devices and a coordinator make of them is what a simulation makes, also when every
device is stopped and started anew in between.
"""

import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from sdk_kit import RESEARCHER, Coordinator, experiment, rows

from coterie.aggregation.horizontal import IFCA, Algorithm, FedDyn, Scaffold
from coterie.client_sdk import Control, Device
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.tensors import read_file
from coterie.simulation import simulate_full
from tests.patience import patience

# Batches that hold all rows, so that the order of rows, which differs from run to run, does not matter.
ROWS = 60
# State on devices and in the version; state on devices and on the coordinator; several models and a probe.
METHODS: Mapping[str, Algorithm] = {rule.name: rule for rule in (Scaffold(2), FedDyn(2, 0.2), IFCA(2))}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_devices_that_are_restarted_make_what_a_simulation_makes(
    coordinator: Coordinator, tmp_path: Path, name: str
) -> None:
    wanted = experiment(
        f"method {name}",
        algorithm=METHODS[name],
        batch_size=ROWS,
        epochs=3,
        holdout=0.0,
        rounds=RoundPolicy(rounds=3, cohort=2, evaluate_every=0),
        evaluation=rows(40, 9),
    )
    with Control(coordinator.url, token=coordinator.token) as control:
        run = control.submit(wanted, key=RESEARCHER)
        token = control.enrolment_token(f"method-{name}").token
        # A round, and two more after a restart; the state of either device is in its folder.
        for until in (1, 3):
            made = [
                Device(coordinator.url, data=rows(ROWS, seed), folder=tmp_path / f"d{seed}", token=token)
                for seed in range(2)
            ]
            threads = [threading.Thread(target=device.run) for device in made]
            for thread in threads:
                thread.start()
            try:
                for event in run.watch():
                    if event.type == "round.committed" and len(run.models()) > until:
                        break
            finally:
                for device, thread in zip(made, threads, strict=True):
                    device.stop()
                    thread.join(patience(60))
                    device.close()
        history = run.wait(patience(30))
        found = read_file(run.download(tmp_path / "weights", version="3", form="weights"))
    simulated = simulate_full(wanted, [rows(ROWS, seed) for seed in range(2)])
    expected = simulated.weights
    assert dict(history.curve("loss")) == pytest.approx(dict(simulated.history.curve("loss")), rel=1e-4)
    assert found.keys() == expected.keys()
    for tensor, value in expected.items():
        np.testing.assert_allclose(found[tensor], value, rtol=1e-5, atol=1e-6, err_msg=tensor)
