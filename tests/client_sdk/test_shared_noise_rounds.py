"""Noise that devices share, from the researcher's line to the last version, with nothing said of a mode: on a real
coordinator with devices in processes of their own, and in simulation.
"""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from liar import Lying, devices, lying_coordinator, refusals
from sdk_kit import Arrays, experiment, rows

from coterie.aggregation.history import History
from coterie.aggregation.promises.claims import claim_of
from coterie.protocol.device import Task
from coterie.protocol.privacy import UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.tensors import decode_tensors
from coterie.simulation.simulation import simulate_full

CLIENTS, ROUNDS, ROWS = 5, 2, 40
NOISE = UserLevel(clip=1.0, delta=1e-5, noise_multiplier=0.02, mechanism="discrete_gaussian")
# Whole batches and no rows held out: what a device trains does not depend on how it shuffles.
ASKED = experiment(
    "shared",
    rounds=RoundPolicy(rounds=ROUNDS, cohort=CLIENTS, weight_cap=1, evaluate_every=0),
    privacy=NOISE,
    secure_aggregation=True,
    batch_size=ROWS,
    holdout=0.0,
    epochs=20,
)
POLICY = 'max_epsilon = 1e6\nmax_delta = 1e-5\ntrusts = ["device", "cohort"]\nrequire_secure_aggregation = true\n'


def found(lying: Lying, wanted: str) -> tuple[History, list[Arrays]]:
    """The rounds of an experiment, and all of its versions."""

    async def inside() -> tuple[History, list[Arrays]]:
        control = lying.control()
        try:
            models = sorted(await control.models(wanted), key=lambda model: model.round)
            versions = [decode_tensors(await control.blob(model.sha256)) for model in models]
            return await control.history(wanted), versions
        finally:
            await control.close()

    return asyncio.run(inside())


def test_shared_noise_runs_in_consistent_to_the_end_and_simulation_agrees(tmp_path: Path) -> None:
    clients = [rows(ROWS, number) for number in range(CLIENTS)]
    tasks: list[Task] = []

    def listen(task: Task) -> Task:
        tasks.append(task)
        return task

    with lying_coordinator(tmp_path, task=listen) as honest:
        wanted, token = honest.submit(ASKED)
        wish = devices(honest, token, tmp_path, data=clients, count=CLIENTS, policy=POLICY, wanted=2 * ROUNDS)
        with wish as running:
            heard = [device.events() for device in running]
        history, versions = found(honest, wanted)

    assert {(task.secure.mode if task.secure else None) for task in tasks} == {"consistent"}
    assert all(refusals(events) == [] for events in heard)
    sent = [[event["message"] for event in events if event["event"] == "sent"] for events in heard]
    assert all(messages.count("agreement") == ROUNDS for messages in sent)
    assert [(record.state, record.accepted) for record in history.rounds] == [("committed", CLIENTS)] * ROUNDS

    simulated = simulate_full(ASKED, clients)
    claim = claim_of(ASKED, length=sum(value.size for value in versions[-1].values()))
    assert claim is not None and claim.trusts == "cohort"
    promises = [task.privacy for task in tasks if task.privacy is not None]
    assert len(promises) == len(tasks) and {promise.trusts for promise in promises} == {"cohort"}
    assert [promise.epsilon for promise in promises] == pytest.approx([claim.claim.epsilon] * len(tasks), rel=1e-6)
    assert simulated.history.rounds[-1].epsilon == pytest.approx(claim.claim.epsilon, rel=1e-6)
    # The same updates, each with noise of its own: of a deviation of 0.02 / 5 a round, a little more for rounding.
    apart = 6 * np.sqrt(2 * ROUNDS) * 1.1 * 0.02 / CLIENTS
    moved = 0.0
    for name, value in simulated.weights.items():
        assert np.abs(versions[-1][name] - value).max() < apart
        moved = max(moved, float(np.abs(value - versions[0][name]).max()))
    assert moved > 3 * apart, "and they learned what devices know"
