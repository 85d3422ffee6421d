"""Virtual clients whose rows are sources and pipelines of the compute core."""

from typing import Any

import numpy as np
import pytest
from simulation_kit import CLIENTS, experiment, same

from coterie.compute.data import ArraySource, Dataset
from coterie.errors import DataError
from coterie.simulation import simulate, simulate_full


def minus(value: Any) -> Any:
    return -value


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_pipelines_of_the_same_rows_give_the_same_weights(engine: str) -> None:
    expected = simulate_full(experiment(), CLIENTS)
    clients = [
        ArraySource(client) if number % 2 else Dataset.of(ArraySource({**client, "x": -client["x"]})).map(minus, "x")
        for number, client in enumerate(CLIENTS)
    ]
    assert same(expected.weights, simulate_full(experiment(), clients, engine=engine, workers=2).weights)


def test_shards_of_one_source_are_clients() -> None:
    whole = {name: np.concatenate([client[name] for client in CLIENTS]) for name in CLIENTS[0]}
    dataset = Dataset.of(ArraySource(whole)).shuffle(3)
    history = simulate(experiment(), [dataset.shard(5, number) for number in range(5)])
    assert history.rounds[-1].metrics["accuracy"] > 0.9


def test_a_pipeline_that_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match="none of its columns, z, is in the schema"):
        simulate(experiment(), [Dataset.of(ArraySource({"z": np.zeros(3)}))] * 4)
