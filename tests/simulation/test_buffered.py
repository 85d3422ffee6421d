"""Buffered rounds in virtual time: repeatable, resumable, with updates that lag, and true to their methods."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation_kit import CLIENTS, experiment, same

from coterie.aggregation.horizontal import FedAsync, FedAvg, FedBuff
from coterie.aggregation.record import RoundRecord
from coterie.aggregation.run_files import read_run
from coterie.errors import ExperimentError
from coterie.protocol.conversion import from_json, to_json
from coterie.protocol.privacy import LocalLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import simulate_full
from coterie.simulation.rounds import SimulationState
from coterie.simulation.virtual_time import Air


def buffered(rounds: int = 6, **changes: Any) -> RoundPolicy:
    values: dict[str, Any] = {"cohort": 2, "concurrency": 5, "evaluate_every": rounds, **changes}
    return RoundPolicy(rounds=rounds, mode="buffered", **values)


@pytest.mark.parametrize(
    ("algorithm", "policy"),
    [
        (FedAvg(), buffered()),
        (FedBuff(), buffered()),
        (FedAsync(alpha=0.5), buffered(12, cohort=1, concurrency=3)),
    ],
    ids=["fedavg", "fedbuff", "fedasync"],
)
def test_a_run_learns_and_repeats_itself_whoever_works(algorithm: Any, policy: RoundPolicy) -> None:
    wanted = experiment(algorithm=algorithm, rounds=policy)
    first, again = simulate_full(wanted, CLIENTS), simulate_full(wanted, CLIENTS, workers=3)
    assert same(first.weights, again.weights)
    assert [record.accepted for record in first.history] == [policy.cohort] * policy.rounds
    assert first.history.curve("training.loss")[0][1] > first.history.curve("training.loss")[-1][1]
    other = simulate_full(experiment(algorithm=algorithm, rounds=policy, seed=1), CLIENTS)
    assert not same(first.weights, other.weights)


@pytest.mark.parametrize("every", [1, 2])
def test_rounds_are_evaluated_by_clients_while_others_may_train(every: int) -> None:
    done = simulate_full(experiment(rounds=buffered(6, evaluate_every=every)), CLIENTS)
    assert [record.evaluation is not None for record in done.history] == [number % every == 0 for number in range(1, 7)]
    assert done.history.reason == "completed"


def test_updates_lag_but_never_beyond_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    lags: dict[int, set[int]] = {}
    whole = SimulationState._train_landed  # pyright: ignore[reportPrivateUsage]

    def watched(self: SimulationState, round: Any, *, noised: bool) -> None:
        cap = self.experiment.rounds.staleness_cap
        lags.setdefault(cap, set()).update(
            round.place - flight.place
            for flight in self.air.landed  # pyright: ignore[reportPrivateUsage]
        )
        whole(self, round, noised=noised)

    monkeypatch.setattr(SimulationState, "_train_landed", watched)
    for cap in (0, 1, 20):
        simulate_full(experiment(rounds=buffered(10, staleness_cap=cap, evaluate_every=0)), CLIENTS)
    assert lags[0] == {0} and lags[1] == {0, 1} and max(lags[20]) > 1


def test_as_many_at_work_as_the_goal_and_no_lag_is_what_a_cohort_does() -> None:
    """With a buffer of everybody, each round begins afresh: it is the synchronous round, whoever comes first."""
    clients = len(CLIENTS)
    slow = simulate_full(experiment(rounds=RoundPolicy(rounds=3, cohort=clients, evaluate_every=0)), CLIENTS)
    policy = buffered(3, cohort=clients, concurrency=clients, evaluate_every=0)
    assert same(slow.weights, simulate_full(experiment(rounds=policy), CLIENTS).weights)
    assert same(slow.weights, simulate_full(experiment(algorithm=FedBuff(), rounds=policy), CLIENTS).weights)


def test_a_run_that_was_killed_goes_on_bit_for_bit(tmp_path: Path) -> None:
    wanted = experiment(algorithm=FedBuff(), rounds=buffered(6))
    whole = simulate_full(wanted, CLIENTS)

    class Killed(Exception):
        pass

    def die(event: Any) -> None:
        if event.get("round") == 3:
            raise Killed

    with pytest.raises(Killed):
        simulate_full(wanted, CLIENTS, folder=tmp_path, on_event=die)
    resumed = simulate_full(wanted, CLIENTS, folder=tmp_path, resume=True)
    assert same(whole.weights, resumed.weights)

    def timeless(record: RoundRecord) -> dict[str, Any]:
        return {**record.to_dict(), "seconds": None}

    assert [timeless(record) for record in whole.history] == [timeless(record) for record in resumed.history]


def test_too_few_clients_for_a_buffer_end_by_name() -> None:
    policy = buffered(5, cohort=len(CLIENTS) + 1, min_updates=len(CLIENTS), evaluate_every=0)
    history = simulate_full(experiment(rounds=policy), CLIENTS).history
    assert [record.accepted for record in history] == [len(CLIENTS)] * 5


@settings(max_examples=60)
@given(
    steps=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=12),
    clients=st.integers(1, 8),
    cap=st.integers(0, 3),
)
def test_the_air_holds_each_client_once_and_lets_time_pass(
    steps: list[tuple[int, int]], clients: int, cap: int
) -> None:
    air, times = Air(), [0.0]
    for place, (up, down) in enumerate(steps):
        free = [number for number in range(clients) if number not in air.busy]
        went = air.start(free, up, round=place + 1, place=place, base=f"v{place}", seed=3)
        assert went == min(up, len(free)) and len(air.busy) == len(air.flights)
        for _ in range(down):
            flight = air.land()
            if flight is not None:
                times.append(flight.due)
        air.close(place + 1 - cap)
        assert all(flight.place >= place + 1 - cap for flight in air.flights)
        assert from_json(Air, to_json(air), code="checkpoint_damaged") == air
    assert times == sorted(times)
    air.close()
    assert air.land() is None


def test_an_experiment_that_only_evaluates_measures_what_it_was_given() -> None:
    trained = simulate_full(experiment(), CLIENTS)
    policy = RoundPolicy(rounds=1, cohort=len(CLIENTS), purpose="evaluate")
    told = simulate_full(experiment(rounds=policy, initial=trained.weights), CLIENTS)
    (record,) = told.history
    assert same(told.weights, trained.weights) and record.model == trained.history.rounds[-1].model
    assert (record.state, record.evaluation, record.accepted) == ("committed", "federated", 0)
    assert record.metrics["accuracy"] > 0.9


def test_a_selection_that_there_is_not_is_refused_with_the_experiment() -> None:
    with pytest.raises(ExperimentError, match="there is no 'best'") as caught:
        experiment(rounds=RoundPolicy(rounds=1, cohort=1, selection="best"))
    assert caught.value.reason == "selection_invalid"


def test_a_record_lists_who_took_part_with_lag_and_loss(tmp_path: Path) -> None:
    done = simulate_full(experiment(rounds=buffered(8, evaluate_every=0)), CLIENTS, folder=tmp_path)
    lists = [record.participants for record in done.history]
    assert all(len(found) == 2 and len({one.client for one in found}) == 2 for found in lists)
    assert {one.lag for found in lists for one in found} > {0}
    for record in done.history:
        losses = [one.loss for one in record.participants if one.loss is not None]
        assert len(losses) == 2 and min(losses) <= record.training["loss"] <= max(losses)
    assert read_run(tmp_path)[1] == done.history
    secret = RoundPolicy(rounds=1, cohort=4, evaluate_every=0)
    (only,) = simulate_full(experiment(rounds=secret, secure_aggregation=True), CLIENTS).history
    assert len(only.participants) == 4 and {one.loss for one in only.participants} == {None}
    level = LocalLevel(mechanism="gaussian", epsilon=50.0, delta=1e-3, clip=1.0)
    private = RoundPolicy(rounds=1, cohort=4, evaluate_every=0, weight_cap=1)
    (only,) = simulate_full(experiment(rounds=private, privacy=level), CLIENTS).history
    assert only.accepted == 4 and only.participants == ()
