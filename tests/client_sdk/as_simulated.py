"""Experiments over real HTTP, held against their simulation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sdk_kit import RESEARCHER, Coordinator, at_work

from coterie.aggregation.experiment import Experiment
from coterie.client_sdk import Control, Device
from coterie.protocol.tensors import read_file
from coterie.simulation import simulate_full
from tests.patience import patience


def assert_as_simulated(
    coordinator: Coordinator,
    folder: Path,
    wanted: Experiment,
    clients: Sequence[Mapping[str, NDArray[Any]]],
    *,
    tolerance: float = 1e-6,
) -> None:
    """Devices that are stopped after a round and started anew make the version that a simulation makes.

    wanted: an experiment whose batches hold all rows, so that their order, which differs from run to run, does not
        matter.
    tolerance: absolute, of weights.
    """
    last = wanted.rounds.rounds
    with Control(coordinator.url, token=coordinator.token) as control:
        run = control.submit(wanted, key=RESEARCHER)
        token = control.enrolment_token(wanted.name.replace(" ", "-")).token
        for until in (1, last):
            made = [
                Device(coordinator.url, data=rows, folder=folder / f"d{number}", token=token)
                for number, rows in enumerate(clients)
            ]
            with at_work(made):
                for event in run.watch():
                    if event.type == "round.committed" and len(run.models()) > until:
                        break
        history = run.wait(patience(30))
        found = read_file(run.download(folder / "weights", version=str(last), form="weights"))
    simulated = simulate_full(wanted, list(clients))
    assert dict(history.curve("loss")) == pytest.approx(dict(simulated.history.curve("loss")), rel=1e-4)
    assert found.keys() == simulated.weights.keys()
    for tensor, value in simulated.weights.items():
        np.testing.assert_allclose(found[tensor], value, rtol=1e-5, atol=tolerance, err_msg=tensor)
