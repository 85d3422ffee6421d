"""Whom a simulation asks, where a coordinator would ask the same ones."""

from typing import Any

import numpy as np
import pytest
from simulation_kit import CLIENTS, SCHEMA, experiment, rows

from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import simulate
from coterie.simulation.population import Population


@pytest.mark.parametrize("selection", ["weighted", "power_of_choice(4)", "oort"])
def test_rows_count_for_no_more_than_an_update_may_weigh(selection: str) -> None:
    population = Population(SCHEMA, CLIENTS, 0.2)

    def told(**changes: Any) -> list[int | None]:
        policy = RoundPolicy(rounds=1, cohort=2, selection=selection, **changes)
        return [candidate.examples for candidate in population.candidates(policy, 1, None)]

    whole = [population.facts(number).examples for number in range(len(CLIENTS))]
    assert told() == whole and len(set(whole)) == len(CLIENTS)
    assert told(weight_cap=30) == np.minimum(whole, 30).tolist()
    assert told(weight_cap=1) == [1] * len(CLIENTS)


@pytest.mark.parametrize(
    ("wish", "measured"),
    [({}, 6), ({"min_examples": 40}, 2), ({"labels": (0, 1, 2)}, 5), ({"min_examples": 999}, 0)],
    ids=["anybody", "many rows", "all classes", "nobody"],
)
def test_an_experiment_that_only_evaluates_asks_who_is_eligible(wish: dict[str, Any], measured: int) -> None:
    one_class = rows(30, 0)
    one_class["y"] = np.zeros_like(one_class["y"])
    clients = [one_class, *CLIENTS[1:]]
    policy = RoundPolicy(rounds=1, cohort=6, min_updates=1, purpose="evaluate", **wish)
    (record,) = simulate(experiment(rounds=policy), clients).rounds
    assert {found.clients for found in record.fairness.values()} == ({measured} if measured else set())
    assert (record.state, record.cause) == (("committed", None) if measured else ("abandoned", "deadline"))
