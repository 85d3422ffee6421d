"""Queries with differential privacy on a real coordinator: devices add the noise together to sums that nobody sees
without it, the population's ledger pays for every round, and what it cannot pay is refused.
"""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sdk_kit import SCHEMA, Arrays, Lab, rows, run

from coterie.aggregation.analytics import Query, ask, histogram, quantiles
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.promises.claims import claim_of
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.errors import RemoteError
from coterie.protocol.control import PolicyChange
from coterie.protocol.privacy import LocalLevel, UserLevel
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.tensors import decode_tensors

CLIENTS = 6
PARTS = [rows(50 + 5 * number, number) for number in range(CLIENTS)]
TOGETHER = UserLevel(clip=100.0, delta=1e-6, noise_multiplier=0.1, mechanism="discrete_gaussian")


async def answered(place: Lab, query: Query[Any], asked: Experiment, policy: DevicePolicy | None = None) -> Any:
    """The answer of devices that join for the experiment, in a population of its name."""
    view = await place.submit(asked)
    more: Arrays | Any = {} if policy is None else {"policy": policy}
    agents = [
        await place.agent(asked.name, f"{asked.name}{number}", data=part, **more) for number, part in enumerate(PARTS)
    ]
    await asyncio.gather(*(agent.run(rounds=query.rule.rounds) for agent in agents))
    history = await place.control.history(view.id)
    assert [(round.state, round.accepted) for round in history.rounds] == [("committed", CLIENTS)] * query.rule.rounds
    newest = max(await place.control.models(view.id), key=lambda model: model.round)
    return query.answer(decode_tensors(await place.control.blob(newest.sha256)))


def test_the_ledger_pays_for_every_round_of_a_query_and_refuses_one_beyond_the_budget(tmp_path: Path) -> None:
    query = quantiles("x", (0.5,), low=-10, high=10, bins=8, rounds=2)
    secure = SecureAggregation(corrupt=0.1, dropout=0.1)

    def asked(privacy: UserLevel) -> Experiment:
        return ask(query, SCHEMA, clients=CLIENTS, name="asked", privacy=privacy, secure_aggregation=secure)

    wanted = asked(TOGETHER)

    async def work(place: Lab) -> None:
        found = await answered(place, query, wanted)
        values = np.concatenate([part["x"] for part in PARTS]).ravel()
        (median,) = found.quantiles
        exact = float(np.quantile(values, 0.5, method="inverted_cdf"))
        # The devices' noise is never the same, so the interval that holds it 19 times of 20 is taken twice as wide.
        assert abs(median.value - exact) < 2 * median.error < 6 and median.rank_error <= 0.5
        assert 0 < abs(found.values - values.size) < 5 * found.values_error
        assert abs(found.shortened.clients) < 5 * found.shortened.error

        # What is promised, and paid, is what the noise that the devices made really costs.
        spent = await place.control.budget("asked")
        length = sum(tensor.size for tensor in (await _version(place)).values())
        statement = claim_of(wanted, length=length)
        assert statement is not None
        promise = statement.claim.epsilon
        (part,) = spent.experiments
        assert (part.rounds_spent, part.rounds_reserved) == (2, 0)
        assert part.epsilon_spent == pytest.approx(promise, rel=1e-6) == part.limit
        kinds = [entry.event["kind"] for entry in await place.control.budget_entries("asked")]
        assert kinds[-4:] == ["reserve", "spend", "reserve", "spend"]

        await place.control.change_policy("asked", PolicyChange(max_epsilon_per_year=1.5 * promise, delta=1e-6))
        with pytest.raises(RemoteError) as refused:
            await place.submit(asked(TOGETHER))
        assert refused.value.reason == "budget_year"
        assert (await place.control.budget("asked")).experiments == spent.experiments

    run(work, tmp_path)


async def _version(place: Lab) -> Any:
    (view,) = await place.control.experiments()
    newest = max(await place.control.models(view.id), key=lambda model: model.round)
    return decode_tensors(await place.control.blob(newest.sha256))


OTHERS = {
    "the coordinator": (UserLevel(clip=100.0, delta=1e-6, noise_multiplier=0.1), False, None),
    "the coordinator, of secret sums": (UserLevel(clip=100.0, delta=1e-6, noise_multiplier=0.1), True, None),
    "each device": (
        LocalLevel(mechanism="gaussian", clip=100.0, epsilon=300.0, delta=1e-6),
        False,
        DevicePolicy(max_epsilon=600.0, max_delta=1e-4, trusts=frozenset({"device"})),
    ),
}


@pytest.mark.parametrize("who", OTHERS)
def test_counts_have_the_stated_error_whoever_makes_the_noise(tmp_path: Path, who: str) -> None:
    privacy, secure, policy = OTHERS[who]
    query = histogram("y", low=0, high=3, bins=3)

    async def work(place: Lab) -> None:
        asked = ask(query, SCHEMA, clients=CLIENTS, name="asked", privacy=privacy, secure_aggregation=secure)
        found = await answered(place, query, asked, policy)
        exact = np.bincount(np.concatenate([part["y"] for part in PARTS]), minlength=3)
        assert 0 < np.abs(found.counts - exact).max() < 5 * found.error < 300
        (spent,) = (await place.control.budget("asked")).experiments
        assert spent.rounds_spent == 1 and (spent.epsilon_spent or 0) > 0

    run(work, tmp_path)
