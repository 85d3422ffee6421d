"""The baselines: one place with all rows, and every client by itself."""

import numpy as np
import pytest
from simulation_kit import CLIENTS, experiment, rows, same

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.horizontal import IFCA, FedProx, Scaffold
from coterie.aggregation.server_optimizers import server_sgd
from coterie.errors import ExperimentError
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import simulate_full
from coterie.simulation.baselines import centralised, local_only


def test_central_training_is_federated_averaging_with_one_client() -> None:
    pool = {name: np.concatenate([client[name] for client in CLIENTS]) for name in CLIENTS[0]}
    one = simulate_full(experiment(rounds=RoundPolicy(rounds=4, cohort=1)), [pool])
    assert same(centralised(experiment(), CLIENTS).weights, one.weights)


def test_the_method_does_not_matter_where_there_is_one_client() -> None:
    changes = {"algorithm": Scaffold(6), "server_optimizer": server_sgd(0.5, 0.9), "codecs": ("int8",)}
    assert same(centralised(experiment(**changes), CLIENTS).weights, centralised(experiment(), CLIENTS).weights)
    robust = {"reducer": "krum(1)", "broadcast": "int8"}
    assert same(centralised(experiment(**robust), CLIENTS).weights, centralised(experiment(), CLIENTS).weights)
    pulled = RoundPolicy(rounds=4, cohort=3, hyper_schedule={"mu": (0.1,) * 4, "lr": (0.0,) * 4})
    still = centralised(experiment(algorithm=FedProx(), rounds=pulled), CLIENTS)
    assert same(still.weights, compile_plan(experiment()).initial)
    assert set(centralised(experiment(algorithm=IFCA(2)), CLIENTS).weights) == {
        "0.weight", "0.bias", "2.weight", "2.bias"
    }  # fmt: skip


def test_each_client_alone_is_a_simulation_of_that_client() -> None:
    found = local_only(experiment(), CLIENTS[:3])
    for run, client in zip(found.runs, CLIENTS[:3], strict=True):
        alone = simulate_full(experiment(rounds=RoundPolicy(rounds=4, cohort=1)), [client])
        assert same(run.weights, alone.weights)
    values = found.last("accuracy")
    assert len(values) == 3 and found.mean("accuracy") == pytest.approx(float(np.mean(values)))
    assert found.worst_decile("accuracy") == min(values)
    assert found.worst_decile("loss", lowest=False) == max(found.last("loss"))


def test_the_evaluation_rows_are_everybodys() -> None:
    test = rows(60, 5)
    found = local_only(experiment(evaluation=test), CLIENTS[:2])
    assert all(record.evaluation == "central" for run in found.runs for record in run.history.rounds)


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(ExperimentError) as caught:
        centralised(experiment(), [])
    assert caught.value.reason == "no_clients"
    unmeasured = experiment(rounds=RoundPolicy(rounds=1, cohort=2, evaluate_every=0))
    with pytest.raises(ExperimentError) as caught:
        local_only(unmeasured, CLIENTS[:1]).mean("accuracy")
    assert caught.value.reason == "not_measured"
