"""Virtual clients whose rows are sources and pipelines of the compute core."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from simulation_kit import CLIENTS, experiment, same

from coterie.compute.data import ArraySource, Context, Dataset, Transform
from coterie.errors import DataError
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import simulate, simulate_full
from coterie.simulation.members import infer_members


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


@dataclass(frozen=True)
class Jitter(Transform):
    """Some noise."""

    def apply(self, value: Any, context: Context) -> Any:
        return value + context.random.uniform(-0.1, 0.1, value.shape).astype(np.float32)


@pytest.mark.capability("F8")
def test_rows_that_are_augmented_anew_give_the_same_on_every_engine() -> None:
    clients = [Dataset.of(ArraySource(client)).map(Jitter(), "x") for client in CLIENTS]
    expected = simulate_full(experiment(), clients)
    assert same(expected.weights, simulate_full(experiment(), clients, engine="processes", workers=2).weights)
    batched = simulate_full(experiment(), clients, engine="batched").weights
    assert all(np.allclose(expected.weights[name], batched[name], atol=1e-5) for name in batched)
    once = simulate_full(experiment(), [cast(Any, dataset.arrays()) for dataset in clients])
    assert not same(expected.weights, once.weights)
    assert simulate_full(experiment(), clients).history.rounds[-1].metrics["accuracy"] > 0.9


def test_members_are_inferred_of_streams_as_of_arrays() -> None:
    wanted = experiment(holdout=0.4)
    clients = [Dataset.of(ArraySource(client)) for client in CLIENTS]
    result = simulate_full(wanted, CLIENTS)
    assert infer_members(result, wanted, clients, rows=20) == infer_members(result, wanted, CLIENTS, rows=20)


MODULE = """
import numpy as np
from coterie.compute.data import ArraySource, Dataset

y = np.arange(60).astype(np.int32) % 3
whole = Dataset.of(ArraySource({"x": np.eye(4, dtype=np.float32)[y], "y": y}))
first, second = whole.shard(2, 0), whole.shard(2, 1)
"""


def test_worker_processes_make_the_rows_of_data_sets_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "named_shards.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    named = ["named_shards:first", "named_shards:second"]
    wanted = experiment(rounds=RoundPolicy(rounds=2, cohort=2))
    expected = simulate_full(wanted, named)
    assert same(expected.weights, simulate_full(wanted, named, engine="processes", workers=1).weights)
