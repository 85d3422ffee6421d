"""The round machine: its table, its causes, and the laws that hold for every sequence of events."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coterie import errors
from coterie.aggregation import engine as e
from coterie.aggregation.events import NOTHING_USABLE

CONFIG = e.RoundConfig(cohort=2, over_selection=1.5, min_updates=1, federated_evaluation=True, evaluation_cohort=2)
V = "v" * 64


def play(round: e.Round, *events: e.Event) -> tuple[e.Round, e.Effects]:
    effects: e.Effects = ()
    for event in events:
        round, effects = e.step(round, event)
    return round, effects


def fresh(**changes: object) -> e.Round:
    return e.start(1, "b" * 64, replace(CONFIG, **changes))[0]  # pyright: ignore[reportArgumentType]


def test_a_round_that_goes_well() -> None:
    round, effects = e.start(7, "b" * 64, replace(CONFIG, central_evaluation=True))
    assert effects == (e.SetDeadline("train", 600.0), e.OfferTasks("train", 3))
    round, effects = play(round, e.TaskLeased(), e.TaskLeased(), e.TaskLeased(), e.UpdateAccepted(), e.UpdateAccepted())
    assert (round.phase, round.accepted, round.leased) == (e.Phase.AGGREGATING, 2, 0)
    assert effects == (e.CloseTasks("train"), e.Aggregate())
    round, effects = play(round, e.AggregateReady(V, {"loss": 3.0, "examples": 4.0}))
    assert effects == (e.EvaluateCentrally(V),)
    assert e.open_slots(round, "evaluate") == 0
    round, effects = play(round, e.Evaluated({"loss": 2.0, "examples": 2.0}))
    assert effects == (e.SetDeadline("evaluate", 120.0), e.OfferTasks("evaluate", 2))
    round, effects = play(round, e.EvaluationLeased(), e.EvaluationLeased(), e.EvaluationAccepted({"loss": 1.0}))
    round, effects = play(round, e.EvaluationAccepted({"loss": 2.5, "examples": 3.0}))
    assert effects == (e.CloseTasks("evaluate"), e.Commit(V))
    assert round.federated == {"loss": 3.5, "examples": 3.0}
    round, effects = play(round, e.Committed())
    assert (round.phase, effects) == (e.Phase.COMMITTED, ())


@pytest.mark.parametrize(
    ("accepted", "minimum", "phase", "cause"),
    [
        (0, 1, e.Phase.ABANDONED, e.Cause.DEADLINE),
        (1, 2, e.Phase.ABANDONED, e.Cause.TOO_FEW_UPDATES),
        (1, 1, e.Phase.AGGREGATING, None),
    ],
)
def test_the_deadline_aggregates_or_abandons(
    accepted: int, minimum: int, phase: e.Phase, cause: e.Cause | None
) -> None:
    round = fresh(cohort=3, min_updates=minimum)
    round, _ = play(round, *[e.TaskLeased()] * 3, *[e.UpdateAccepted()] * accepted, e.DeadlinePassed("train"))
    assert (round.phase, round.cause) == (phase, cause)


def test_over_selection_is_rounded_up_as_it_is_in_decimal() -> None:
    for cohort, over, slots in ((10, 1.1, 11), (10, 1.11, 12), (3, 1.0, 3)):
        assert e.RoundConfig(cohort=cohort, over_selection=over).slots == slots


def test_a_round_for_which_nobody_came_says_so() -> None:
    assert "no device took a task" in (play(fresh(), e.DeadlinePassed("train"))[0].detail or "")
    tried = play(fresh(), e.TaskLeased(), e.TaskFailed(), e.DeadlinePassed("train"))[0]
    assert tried.cause is e.Cause.DEADLINE and "no device" not in (tried.detail or "")


def test_a_round_for_which_too_few_came_says_how_many_tasks_were_left_over() -> None:
    secret = fresh(cohort=3, min_updates=3, secure=True)
    some = play(secret, e.TaskLeased(), e.UpdateAccepted(), e.DeadlinePassed("train"))[0]
    assert "no device took 4 of the 5 tasks" in (some.detail or "") and "secure aggregation" in (some.detail or "")


def test_a_failed_task_frees_its_slot() -> None:
    round, _ = play(fresh(), *[e.TaskLeased()] * 3)
    assert e.open_slots(round, "train") == 0
    with pytest.raises(errors.Conflict, match="no free training slot"):
        e.step(round, e.TaskLeased())
    round, effects = play(round, e.TaskFailed())
    assert effects == (e.OfferTasks("train", 1),)
    assert (round.failed, round.leased) == (1, 2)


def test_unusable_updates_found_while_aggregating_count_against_the_minimum() -> None:
    round, _ = play(fresh(min_updates=2), *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2)
    ended, effects = play(round, e.AggregateReady(V, rejected=1))
    assert (ended.phase, ended.cause) == (e.Phase.ABANDONED, e.Cause.TOO_FEW_UPDATES)
    assert effects == (e.Abandon(e.Cause.TOO_FEW_UPDATES),)


def test_a_failed_aggregate_names_its_detail() -> None:
    round, _ = play(fresh(), *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2, e.AggregateFailed("weights overflow"))
    assert (round.cause, round.detail) == (e.Cause.AGGREGATE_FAILED, "weights overflow")


def test_updates_of_which_none_is_usable_are_counted_as_failed() -> None:
    failure = e.AggregateFailed("None of the 2 updates can be used", NOTHING_USABLE)
    round, _ = play(fresh(), *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2, failure)
    assert (round.cause, round.usable, round.lost) == (e.Cause.AGGREGATE_FAILED, 0, 2)


def test_no_evaluation_at_all_still_commits() -> None:
    round, _ = play(fresh(), *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2, e.AggregateReady(V))
    round, effects = play(round, e.EvaluationLeased(), e.EvaluationFailed(), e.DeadlinePassed("evaluate"))
    assert effects == (e.CloseTasks("evaluate"), e.Commit(V))
    assert (round.evaluated, round.federated) == (0, {})


def test_a_failed_central_evaluation_still_commits() -> None:
    round = fresh(federated_evaluation=False, central_evaluation=True)
    round, _ = play(round, *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2, e.AggregateReady(V))
    round, effects = play(round, e.Evaluated(None, "worker died"))
    assert effects == (e.Commit(V),)
    assert (round.central, round.detail) == (None, "worker died")


def surveyed(**changes: object) -> e.Round:
    """A secure round whose two evaluators are ready to be summed."""
    asked = {"secure": True} | changes
    if asked.get("evaluate_only"):
        round = fresh(**asked)
    else:
        round, _ = play(
            fresh(**asked), *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2, e.AggregateReady(V, clipped=1)
        )
    return play(round, *[e.EvaluationLeased()] * 2, e.EvaluationAccepted(), e.EvaluationAccepted())[0]


def test_a_secure_round_sums_its_evaluations_before_it_commits() -> None:
    round = surveyed()
    assert (round.phase, round.survey_closed, round.clipped) == (e.Phase.EVALUATING, True, 1)
    assert e.resume(round) == (e.CloseTasks("evaluate"), e.SumEvaluations())
    assert not e.accepts(round, "evaluate") and e.open_slots(round, "evaluate") == 0
    for late in (e.EvaluationFailed(), e.DeadlinePassed("evaluate"), e.DeadlinePassed("train"), e.TaskFailed()):
        assert e.step(round, late) == (round, ())
    for early in (e.EvaluationLeased(), e.EvaluationAccepted()):
        with pytest.raises(errors.Conflict):
            e.step(round, early)
    summed, effects = play(round, e.EvaluationSummed({"loss": 2.0, "examples": 4.0}))
    assert (summed.federated, summed.detail) == ({"loss": 2.0, "examples": 4.0}, None)
    assert effects == (e.Commit(V),)


def test_a_sum_of_evaluations_that_fails_is_missing_in_the_record() -> None:
    summed, effects = play(surveyed(), e.EvaluationSummed(None, "too few survivors"))
    assert (summed.phase, summed.federated, summed.detail) == (e.Phase.COMMITTING, {}, "too few survivors")
    assert effects == (e.Commit(V),)
    ended, effects = play(surveyed(evaluate_only=True), e.EvaluationSummed(None, "too few survivors"))
    assert (ended.phase, ended.cause, ended.detail) == (
        e.Phase.ABANDONED,
        e.Cause.AGGREGATE_FAILED,
        "too few survivors",
    )


def test_the_deadline_sums_the_evaluations_that_are_there() -> None:
    round, _ = play(fresh(secure=True), *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2, e.AggregateReady(V))
    nobody, effects = play(round, e.DeadlinePassed("evaluate"))
    assert effects == (e.CloseTasks("evaluate"), e.Commit(V)) and not nobody.survey_closed
    with pytest.raises(errors.Conflict, match="not waiting for a sum"):
        e.step(round, e.EvaluationSummed(None))
    one, effects = play(round, *[e.EvaluationLeased()] * 2, e.EvaluationAccepted(), e.DeadlinePassed("evaluate"))
    assert effects == (e.CloseTasks("evaluate"), e.SumEvaluations())
    assert one.evaluation_leased == 0


EVERY_EVENT: list[e.Event] = [
    e.TaskLeased(), e.UpdateAccepted(), e.TaskFailed(), e.DeadlinePassed("train"), e.DeadlinePassed("evaluate"),
    e.AggregateReady(V, {"loss": 1.0, "examples": 2.0}), e.AggregateReady(V, rejected=2), e.AggregateFailed("x"),
    e.Evaluated({"loss": 1.0, "examples": 1.0}), e.Evaluated(None, "y"), e.EvaluationLeased(),
    e.EvaluationAccepted({"loss": 0.5, "examples": 1.0}), e.EvaluationFailed(), e.Committed(), e.StopRequested(),
    e.EvaluationSummed({"loss": 0.5, "examples": 3.0}), e.EvaluationSummed(None, "z"),
]  # fmt: skip


@pytest.mark.parametrize("phase", list(e.Phase))
@pytest.mark.parametrize("event", EVERY_EVENT, ids=repr)
def test_what_the_table_lacks_is_refused_by_name(phase: e.Phase, event: e.Event) -> None:
    if type(event) in e.TRANSITIONS[phase]:
        return
    round = replace(fresh(), phase=phase, version=V)
    with pytest.raises(errors.Conflict) as caught:
        e.step(round, event)
    assert phase.value in caught.value.message and type(event).__name__ in caught.value.message


def test_the_refusals_are_those_that_would_lose_or_double_something() -> None:
    late = {e.TaskLeased, e.UpdateAccepted, e.EvaluationLeased, e.EvaluationAccepted, e.Committed}
    for phase in (e.Phase.COMMITTED, e.Phase.ABANDONED):
        assert not late & set(e.TRANSITIONS[phase])
    assert [phase for phase in e.Phase if e.Committed in e.TRANSITIONS[phase]] == [e.Phase.COMMITTING]


@pytest.mark.parametrize("phase", [phase for phase in e.Phase if not phase.final])
def test_a_stop_ends_every_open_phase(phase: e.Phase) -> None:
    round, effects = e.step(replace(fresh(), phase=phase, version=V), e.StopRequested())
    assert (round.phase, round.cause) == (e.Phase.ABANDONED, e.Cause.STOPPED)
    assert effects[-1] == e.Abandon(e.Cause.STOPPED)


@pytest.mark.parametrize(
    "change",
    [
        {"cohort": 0}, {"over_selection": 0.5}, {"min_updates": 3}, {"min_updates": 0}, {"deadline_s": 0.0},
        {"deadline_s": float("inf")}, {"evaluation_deadline_s": -1.0}, {"evaluation_cohort": 0},
        {"secure": True, "buffered": True},
    ],
)  # fmt: skip
def test_an_impossible_config_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(errors.ExperimentError, match=next(iter(change))):
        replace(CONFIG, **change)  # pyright: ignore[reportArgumentType]


def test_every_cause_has_a_sentence() -> None:
    assert all(cause.sentence.endswith(".") for cause in e.Cause)


class Life(RuleBasedStateMachine):
    """Any events in any order, as an unruly host might report them."""

    @initialize(
        cohort=st.integers(1, 3),
        over=st.sampled_from([1.0, 1.5, 2.0]),
        central=st.booleans(),
        federated=st.booleans(),
        secure=st.booleans(),
        data=st.data(),
    )
    def begin(
        self, cohort: int, over: float, central: bool, federated: bool, secure: bool, data: st.DataObject
    ) -> None:
        config = e.RoundConfig(
            cohort=cohort,
            over_selection=over,
            min_updates=data.draw(st.integers(1, cohort)),
            central_evaluation=central,
            federated_evaluation=federated,
            secure=secure,
            evaluation_cohort=data.draw(st.integers(1, 2)),
        )
        self.round, effects = e.start(1, "b" * 64, config)
        self.commits = sum(isinstance(effect, e.Commit) for effect in effects)
        self.ends = 0

    @rule(event=st.sampled_from(EVERY_EVENT))
    def happen(self, event: e.Event) -> None:
        before = self.round
        try:
            after, effects = e.step(before, event)
        except errors.Conflict:
            assert self.round == before
            return
        if before.phase.final:
            assert after == before and effects == ()
        elif after.phase is not before.phase:
            assert after.phase in e.TRANSITIONS[before.phase][type(event)].leads_to
        self.commits += sum(isinstance(effect, e.Commit) for effect in effects)
        self.ends += sum(isinstance(effect, e.Abandon) for effect in effects)
        self.round = after

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "round"):
            return
        round, config = self.round, self.round.config
        assert min(round.leased, round.accepted, round.failed, round.evaluation_leased, round.evaluated) >= 0
        assert round.accepted <= config.cohort
        assert round.leased + round.accepted <= config.slots or round.phase is not e.Phase.COLLECTING
        assert self.commits <= 1 and self.ends <= 1
        assert (round.phase is e.Phase.ABANDONED) == (round.cause is not None) == (self.ends == 1)
        if round.phase is e.Phase.COMMITTED:
            assert self.commits == 1 and round.version == V and round.accepted >= config.min_updates
        assert e.Round.from_json(round.to_json()) == round
        assert e.resume(round) == e.resume(e.Round.from_json(round.to_json()))
        assert (e.resume(round) == ()) == round.phase.final

    def teardown(self) -> None:
        """Whatever happened, deadlines and workers' answers bring the round to an end."""
        if not hasattr(self, "round"):
            return
        closing = [e.DeadlinePassed("train"), e.AggregateReady(V), e.Evaluated(None, "-"), e.DeadlinePassed("evaluate")]
        for event in (*closing, e.EvaluationSummed(None, "-"), e.Committed()):
            self.happen(event)
            self.holds()
        assert self.round.phase.final


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(EVERY_EVENT), max_size=12), st.booleans())
def test_effects_may_be_repeated_after_a_restart(events: list[e.Event], secure: bool) -> None:
    """What the last event asked for is part of what resume asks for: a host that died before acting loses nothing."""
    round = fresh(secure=secure)
    for event in events:
        try:
            round, effects = e.step(round, event)
        except errors.Conflict:
            continue
        again = [effect for effect in effects if not isinstance(effect, e.CloseTasks | e.Abandon)]
        assert set(again) <= set(e.resume(round))


def test_the_diagram_in_the_documentation_is_that_of_the_table() -> None:
    diagram = e.diagram()
    for phase, row in e.TRANSITIONS.items():
        for event, entry in row.items():
            for target in entry.leads_to:
                assert f"{phase.value} --> {target.value}: {event.__name__}\n" in diagram
    page = Path(__file__).parents[2] / "docs" / "rounds.md"
    if page.exists():
        assert diagram.strip() in page.read_text("utf-8")
