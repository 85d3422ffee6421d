"""Methods with state, probes and several models give the same versions whatever engine the clients work in."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from simulation_kit import CLIENTS, experiment

from coterie.aggregation.horizontal import IFCA, Algorithm, FedAvg, FedSGD, Moon, QFedAvg, Scaffold
from coterie.aggregation.horizontal.algorithm import ClientPart
from coterie.compute.optim import sgd
from coterie.simulation import simulate_full

METHODS: Mapping[str, Algorithm] = {
    rule.name: rule for rule in (Scaffold(len(CLIENTS)), Moon(), QFedAvg(0.1), IFCA(2), FedSGD())
}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_clients_in_one_graph_call_are_the_clients_one_by_one(name: str) -> None:
    wanted = experiment(algorithm=METHODS[name], epochs=1)
    apart, together = (simulate_full(wanted, CLIENTS, engine=engine) for engine in ("threads", "batched"))
    for tensor, value in apart.weights.items():
        np.testing.assert_allclose(together.weights[tensor], value, rtol=0, atol=1e-6, err_msg=tensor)


def test_a_client_part_of_ones_own_needs_nothing_but_its_plan() -> None:
    halved = ClientPart(gradient=lambda gradient, step: {name: 0.5 * value for name, value in gradient.items()})
    own = simulate_full(experiment(algorithm=replace(FedAvg(), client=halved)), CLIENTS, engine="processes", workers=1)
    plain = simulate_full(experiment(optimizer=sgd(0.05)), CLIENTS)
    for tensor, value in plain.weights.items():
        np.testing.assert_allclose(own.weights[tensor], value, rtol=0, atol=1e-6, err_msg=tensor)
