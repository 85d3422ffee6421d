"""Buffered rounds: what arrives between two rounds counts in the next, what is too old is closed by name."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coterie import errors
from coterie.aggregation import engine as e
from coterie.protocol.conversion import from_text, to_text

CONFIG = e.RoundConfig(cohort=2, offered=4, min_updates=1, buffered=True, staleness_cap=1)
V = "v" * 64


def play(round: e.Round, *events: e.RoundEvent) -> e.Round:
    for event in events:
        round = e.step(round, event)
    return round


def fresh(**changes: object) -> e.Round:
    return e.start(1, "b" * 64, replace(CONFIG, **changes))  # pyright: ignore[reportArgumentType]


def committed(round: e.Round) -> e.Round:
    return play(round, e.AggregateReady(V), e.Committed())


def test_tasks_stay_out_when_the_buffer_is_full() -> None:
    round = play(fresh(), *[e.TaskLeased()] * 4)
    assert e.open_slots(round, "train") == 0
    round = play(round, e.UpdateAccepted())
    assert e.open_slots(round, "train") == 1
    round = play(round, e.UpdateAccepted())
    assert (round.phase, round.accepted, round.leased) == (e.RoundPhase.AGGREGATING, 2, 2)
    assert e.due(round)[1:] == (e.Do(e.Work.AGGREGATE), e.Ask("train", 2))


def test_an_update_between_two_rounds_counts_in_the_next() -> None:
    round = play(fresh(), *[e.TaskLeased()] * 4, *[e.UpdateAccepted()] * 2)
    assert e.counted_in(round) == 2
    round = play(round, e.UpdateAccepted(place=0))
    assert (round.accepted, dict(round.waiting)) == (2, {0: 1})
    assert e.open_slots(round, "train") == 3
    ended = committed(round)
    after = e.start(2, V, CONFIG, place=1, before=ended)
    assert (after.phase, dict(after.buffer), dict(after.leases)) == (e.RoundPhase.COLLECTING, {0: 1}, {0: 1})
    assert (e.oldest(after), e.due(after)[-1]) == (0, e.Ask("train", 3, 600.0))
    after = play(after, e.TaskLeased(), e.UpdateAccepted(place=0))
    assert (after.phase, dict(after.buffer), dict(after.leases)) == (e.RoundPhase.AGGREGATING, {0: 2}, {1: 1})


def test_a_buffer_that_filled_while_aggregating_is_aggregated_at_once() -> None:
    round = play(fresh(), *[e.TaskLeased()] * 4, *[e.UpdateAccepted()] * 4)
    after = e.start(2, V, CONFIG, place=1, before=committed(round))
    assert (after.phase, after.accepted, after.leased) == (e.RoundPhase.AGGREGATING, 2, 0)
    assert e.due(after)[1:] == (e.Do(e.Work.AGGREGATE), e.Ask("train", 4))


def test_what_lags_by_more_than_the_cap_is_closed_when_a_round_begins() -> None:
    round = play(fresh(), *[e.TaskLeased()] * 4, *[e.UpdateAccepted()] * 3)
    second = e.start(2, V, CONFIG, place=1, before=committed(round))
    second = play(second, e.TaskLeased(), e.TaskLeased(), e.UpdateAccepted(place=1))
    third = e.start(3, V, CONFIG, place=2, before=committed(second))
    assert e.oldest(third) == 1
    assert (dict(third.leases), dict(third.buffer)) == ({1: 1}, {})
    with pytest.raises(errors.Conflict, match="no task is leased"):
        e.step(third, e.UpdateAccepted(place=0))
    # A cap of nothing keeps only what was made from the newest version: then nothing survives a commit.
    strict = e.start(2, V, replace(CONFIG, staleness_cap=0), place=1, before=committed(round))
    assert (dict(strict.leases), dict(strict.buffer)) == ({}, {})


def test_an_abandoned_round_passes_its_buffer_on_and_ages_nothing() -> None:
    round = play(fresh(min_updates=2), *[e.TaskLeased()] * 3, e.UpdateAccepted(), e.TaskFailed())
    ended = play(round, e.DeadlinePassed("train"))
    assert (ended.phase, ended.cause) == (e.RoundPhase.ABANDONED, e.Cause.TOO_FEW_UPDATES)
    assert ended.passed_on
    after = e.start(2, "b" * 64, replace(CONFIG, staleness_cap=0), place=0, before=ended)
    assert (dict(after.buffer), dict(after.leases)) == ({0: 1}, {0: 1})


def test_updates_that_cannot_be_aggregated_are_not_tried_again() -> None:
    round = play(fresh(), *[e.TaskLeased()] * 3, *[e.UpdateAccepted()] * 3)
    ended = play(round, e.AggregateFailed("overflow"))
    assert ended.cause is e.Cause.AGGREGATE_FAILED and not ended.passed_on
    after = e.start(2, "b" * 64, CONFIG, place=0, before=ended)
    assert dict(after.buffer) == {0: 1}


def test_the_last_round_takes_its_tasks_back() -> None:
    round = play(fresh(last=True), *[e.TaskLeased()] * 3, *[e.UpdateAccepted()] * 2)
    assert e.due(round) == (e.Close("train"), e.Close("evaluate"), e.Do(e.Work.AGGREGATE))
    assert (round.leased, e.open_slots(round, "train"), e.accepts(round, "train")) == (0, 0, False)


@pytest.mark.parametrize("phase", [phase for phase in e.RoundPhase if not phase.final])
def test_a_stop_drops_everything(phase: e.RoundPhase) -> None:
    round = replace(fresh(), phase=phase, version=V, leases={0: 2}, buffer={0: 2}, waiting={0: 1})
    ended = e.step(round, e.StopRequested())
    assert (ended.cause, ended.leased, dict(ended.waiting)) == (e.Cause.STOPPED, 0, {})
    assert e.Close("train") in e.due(ended) and not ended.passed_on


def test_both_tables_draw_the_same_arrows() -> None:
    arrows = [
        {(phase, event, rule.leads_to) for phase, row in table.items() for event, rule in row.items() if rule.leads_to}
        for table in (e.TRANSITIONS, e.BUFFERED)
    ]
    assert arrows[0] == arrows[1]


def test_a_round_that_only_evaluates_commits_its_base() -> None:
    config = e.RoundConfig(
        cohort=2, min_updates=1, evaluate_only=True, federated_evaluation=True, evaluation_cohort=2,
        central_evaluation=True,
    )  # fmt: skip
    round = e.start(1, V, config)
    assert e.work_due(round) is e.Work.EVALUATE and e.open_slots(round, "train") == 0
    round = play(round, e.Evaluated({"loss": 1.0, "examples": 1.0}))
    assert e.due(round)[-1] == e.Ask("evaluate", 2, 120.0)
    done = play(round, *[e.EvaluationLeased()] * 2, *[e.EvaluationAccepted({"examples": 1.0})] * 2)
    assert e.due(done)[-1] == e.Do(e.Work.COMMIT, V)
    late = play(round, e.DeadlinePassed("evaluate"))
    assert (late.phase, late.cause) == (e.RoundPhase.ABANDONED, e.Cause.DEADLINE)


class Rounds(RuleBasedStateMachine):
    """Round after round, with any events in any order; a ledger of every task says what must be true."""

    @initialize(
        cohort=st.integers(1, 3), offered=st.integers(1, 5), cap=st.integers(0, 2), rounds=st.integers(1, 6),
        evaluates=st.booleans(),
    )  # fmt: skip
    def begin(self, cohort: int, offered: int, cap: int, rounds: int, evaluates: bool) -> None:
        self.config = e.RoundConfig(
            cohort=cohort, offered=offered, buffered=True, staleness_cap=cap, federated_evaluation=evaluates,
            evaluation_cohort=1,
        )  # fmt: skip
        self.rounds = rounds
        self.out: list[int] = []
        self.accepted: dict[int, list[int]] = {}
        self.counted: list[tuple[int, int]] = []
        self.round = e.start(1, "v0", replace(self.config, last=rounds == 1))

    @rule(event=st.sampled_from([
        e.TaskLeased(), e.DeadlinePassed("train"), e.DeadlinePassed("evaluate"), e.AggregateFailed("x"), e.Committed(),
        e.EvaluationLeased(), e.EvaluationAccepted({"examples": 1.0}), e.AggregateReady(V), e.AggregateReady(V),
    ]))  # fmt: skip
    def happen(self, event: e.RoundEvent) -> None:
        before = self.round
        try:
            after = e.step(before, event)
        except errors.Conflict:
            return
        if isinstance(event, e.TaskLeased):
            self.out.append(before.place)
        self.see(after)

    @rule(which=st.integers(0, 20), fails=st.booleans())
    def answer(self, which: int, fails: bool) -> None:
        if not self.out or not e.accepts(self.round, "train"):
            return
        place = self.out.pop(which % len(self.out))
        if not fails:
            self.accepted.setdefault(e.counted_in(self.round), []).append(place)
        self.see(e.step(self.round, e.TaskFailed(place) if fails else e.UpdateAccepted(place)))

    def see(self, round: e.Round) -> None:
        self.round = round
        if e.Close("train") in e.due(round):
            self.out = []
        if round.passed_on:
            passed = self.accepted.pop(round.number, [])
            self.accepted.setdefault(round.number + 1, []).extend(passed)
        if not round.phase.final or round.number >= self.rounds:
            return
        place = round.place
        if round.phase is e.RoundPhase.COMMITTED:
            self.counted += [(place, base) for base in self.accepted[round.number]]
            place += 1
        config = replace(self.config, last=round.number + 1 >= self.rounds)
        self.round = e.start(round.number + 1, V, config, place=place, before=round)
        oldest = e.oldest(self.round)
        assert oldest is not None
        self.out = [base for base in self.out if base >= oldest]
        kept = [base for base in self.accepted.get(self.round.number, []) if base >= oldest]
        self.accepted[self.round.number] = kept
        if e.Close("train") in e.due(self.round):
            self.out = []

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "round"):
            return
        round = self.round
        if not round.phase.final:
            assert sorted(self.out) == sorted(place for place, count in round.leases.items() for _ in range(count))
            assert round.accepted == len(self.accepted.get(round.number, []))
            assert sum(round.waiting.values()) == len(self.accepted.get(round.number + 1, []))
        assert round.leased <= self.config.slots
        assert all(0 <= place - base <= self.config.staleness_cap for place, base in self.counted)
        assert from_text(e.Round, to_text(round)) == round
        assert (e.work_due(round) is e.Work.CLEAN) == (round.phase.final and not round.cleaned)


TestRounds = Rounds.TestCase
TestRounds.settings = settings(max_examples=100, stateful_step_count=40)
