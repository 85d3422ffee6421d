"""Every engine gives what threads give."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulation_kit import CLIENTS, experiment, rows, same

from coterie.aggregation.horizontal import FedProx, Scaffold
from coterie.compute.nn import BatchNorm1d, Dropout, Linear, ReLU, Sequential, Tanh
from coterie.compute.optim import adam
from coterie.errors import ConfigurationError, DataError
from coterie.simulation import simulate, simulate_full

EXACT = ("threads", "processes")


@pytest.mark.parametrize("engine", EXACT)
@pytest.mark.parametrize("codecs", [("float32",), ("int8",)])
def test_an_engine_gives_the_weights_of_one_thread_bit_for_bit(engine: str, codecs: tuple[str, ...]) -> None:
    wanted = replace(experiment(), codecs=codecs)
    expected = simulate_full(wanted, CLIENTS)
    found = simulate_full(wanted, CLIENTS, engine=engine, workers=2)
    assert same(expected.weights, found.weights)
    for one, other in zip(expected.history, found.history, strict=True):
        assert replace(one, seconds=None) == replace(other, seconds=None)


def test_an_unknown_engine_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="no engine 'fibers'") as told:
        simulate(experiment(), CLIENTS, engine="fibers")
    assert told.value.reason == "unknown_engine"


def test_workers_read_files_themselves(tmp_path: Path) -> None:
    for number, client in enumerate(CLIENTS):
        np.savez(tmp_path / f"{number}.npz", allow_pickle=False, **client)
    files = [tmp_path / f"{number}.npz" for number in range(len(CLIENTS))]
    expected = simulate_full(experiment(), CLIENTS)
    assert same(expected.weights, simulate_full(experiment(), files, engine="processes", workers=2).weights)


def test_a_worker_that_meets_bad_data_says_what_a_device_says(tmp_path: Path) -> None:
    bad = rows()
    bad["x"][3, 0] = np.nan
    np.savez(tmp_path / "bad.npz", allow_pickle=False, **bad)
    with pytest.raises(DataError, match="bad.npz.*row 4"):
        simulate(experiment(), [tmp_path / "bad.npz"] * 4, engine="processes")


METHODS = {
    "fedavg": {},
    "adam": {"optimizer": adam(0.05)},
    "scaffold": {"algorithm": Scaffold(clients=6)},
    "fedprox": {"algorithm": FedProx(mu=0.1)},
    "dropout": {"model": Sequential(Linear(4, 8), ReLU(), Dropout(0.5), Linear(8, 3))},
    "batch norm": {"model": Sequential(Linear(4, 8), BatchNorm1d(8), Tanh(), Linear(8, 3))},
}


@pytest.mark.parametrize("engine", ["batched", "batched:3"])
@pytest.mark.parametrize("method", METHODS)
def test_clients_in_one_graph_send_what_each_would_send_alone(engine: str, method: str) -> None:
    """To rounding: clients of five different sizes, so that lanes end at different steps."""
    wanted = experiment(**METHODS[method])
    expected = simulate_full(wanted, CLIENTS)
    found = simulate_full(wanted, CLIENTS, engine=engine, workers=2)
    for name, weights in expected.weights.items():
        np.testing.assert_allclose(found.weights[name], weights, rtol=1e-5, atol=1e-5)
    assert [r.bytes_up for r in expected.history] == [r.bytes_up for r in found.history]
    assert same(found.weights, simulate_full(wanted, CLIENTS, engine=engine, workers=2).weights)
