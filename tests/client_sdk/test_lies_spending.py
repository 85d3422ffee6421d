"""Coordinators whose operators would have rounds for nothing. One hears all that opens a sum with shared noise and lets
the round fail: it was paid for before the list of survivors left, in its ledger and in the record of each device. The
other cuts the end off its ledger: the checkpoint outside of its folder shows it, and no round is finished any more.
"""

import asyncio
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from liar import Lying, devices, lying_coordinator, refusals
from sdk_kit import experiment, kinds

from coterie.errors import RemoteError
from coterie.protocol.budget import BudgetView
from coterie.protocol.privacy import UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation
from tests.held_clock import held
from tests.patience import patience

CLIENTS = 4
NOISE = UserLevel(clip=1.0, delta=1e-6, noise_multiplier=2.0, mechanism="discrete_gaussian")
POLICY = 'min_cohort = 3\nmax_epsilon = {limit}\nmax_delta = 1e-6\ntrusts = ["cohort"]\n'


def asked(name: str) -> Any:
    """One round with noise that devices share, whose phases end soon."""
    rounds = RoundPolicy(rounds=1, cohort=CLIENTS, min_updates=CLIENTS, weight_cap=1, evaluate_every=0)
    secure = SecureAggregation(mode="consistent", norm=1.0, dropout=0.25, phase_s=4.0)
    return experiment(name, rounds=rounds, privacy=NOISE, secure_aggregation=secure)


def paid(folder: Path) -> list[str]:
    """The kinds of entries in the coordinator's ledger, as another process reads them from its disk now."""
    with sqlite3.connect(f"file:{folder / 'server' / 'coterie.db'}?mode=ro", uri=True) as database:
        rows = database.execute("select event from ledger order by sequence")
        return [json.loads(event)["kind"] for (event,) in rows]


def revealing(lying: Lying) -> set[str]:
    """The devices that have sent what opens the sum."""
    return {device for device, path, _ in list(lying.liar.heard) if path.endswith("/secure/reveal")}


def budget(lying: Lying) -> BudgetView:
    """What the coordinator says of the population's budget."""

    async def inside() -> BudgetView:
        control = lying.control()
        try:
            return await control.budget("own")
        finally:
            await control.close()

    return asyncio.run(inside())


def test_a_sum_that_can_be_opened_is_paid_for_though_its_round_fails(tmp_path: Path) -> None:
    """Every device reveals what opens the sum; the coordinator reads it on the way, and its application never does."""
    as_survivors_left: list[list[str]] = []

    def listen(path: str, answer: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/secure/survivors"):
            as_survivors_left.append(paid(tmp_path))
        return answer

    with lying_coordinator(tmp_path, answer=listen, withheld=lambda path: path.endswith("/secure/reveal")) as lying:
        first, token = lying.submit(asked("first"), population="own")
        limit = budget(lying).experiments[0].limit or 0.0
        policy = POLICY.format(limit=1.1 * limit)
        with devices(lying, token, tmp_path, count=CLIENTS, policy=policy, wanted=2) as running:
            with held():  # no phase ends before every device has revealed
                until = time.monotonic() + patience(60)
                while len(revealing(lying)) < CLIENTS and time.monotonic() < until:
                    time.sleep(0.02)
            (record,) = lying.history(first).rounds
            lying.liar.withheld = lambda path: False
            told = [device.events() for device in running]
        opened = revealing(lying)
        spent = budget(lying).experiments[0]

        lying.submit(asked("second"), population="own")
        with devices(lying, token, tmp_path, count=CLIENTS, policy=policy, wanted=2) as running:
            again = [device.events() for device in running]

    assert [refusals(events) for events in told] == [[]] * CLIENTS
    assert (len(opened), record.state) == (CLIENTS, "abandoned")
    assert as_survivors_left and set(map(tuple, as_survivors_left)) == {("limit", "reserve", "spend")}
    assert (spent.rounds_spent, spent.rounds_refunded, spent.epsilon_spent) == (1, 0, limit)
    assert paid(tmp_path)[:3] == ["limit", "reserve", "spend"] and "refund" not in paid(tmp_path)[:4]
    assert [refusals(events) for events in again] == [["privacy_spent"]] * CLIENTS, "each device counts it too"


def test_a_coordinator_whose_ledger_was_cut_short_finishes_no_round(tmp_path: Path) -> None:
    noise = UserLevel(clip=0.5, delta=1e-6, noise_multiplier=8.0)
    wanted = experiment("own", rounds=RoundPolicy(rounds=2, cohort=1, weight_cap=1, evaluate_every=0), privacy=noise)
    outside = tmp_path / "elsewhere"
    with lying_coordinator(tmp_path, ledger_checkpoints=outside) as lying:
        identity, token = lying.submit(wanted)
        with devices(lying, token, tmp_path, policy="max_epsilon = 9.0\n") as (device,):
            first = device.events()
        assert [one.state for one in lying.history(identity).rounds] == ["committed"]
    assert (kinds(first).count("uploaded"), refusals(first)) == (1, [])

    with sqlite3.connect(tmp_path / "server" / "coterie.db") as database:
        database.execute("DELETE FROM ledger WHERE sequence > 1")
        (digest,) = database.execute("SELECT digest FROM ledger").fetchone()
        database.execute("UPDATE chains SET sequence = 1, digest = ? WHERE name LIKE 'ledger/%'", (digest,))
    assert paid(tmp_path) == ["limit"], "whoever holds the key and the database has a whole chain"

    with lying_coordinator(tmp_path, ledger_checkpoints=outside) as lying:
        with devices(lying, token, tmp_path, policy="max_epsilon = 9.0\n") as (device,):
            device.events(6)
        with pytest.raises(RemoteError) as refused:
            lying.submit(experiment("more", rounds=wanted.rounds, privacy=noise), population="own")
        with pytest.raises(RemoteError) as unread:
            budget(lying)
        rounds = lying.history(identity).rounds
    assert [(one.round, one.state) for one in rounds] == [(1, "committed")]
    assert paid(tmp_path) == ["limit"]
    assert (refused.value.reason, unread.value.reason) == ("ledger_cut", "ledger_cut")
