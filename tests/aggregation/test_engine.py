"""The round machine: its table, its causes, and the laws that hold for every sequence of events."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coterie import errors
from coterie.aggregation import engine as e
from coterie.aggregation.due import KINDS, table
from coterie.aggregation.events import NOTHING_USABLE
from coterie.protocol.conversion import from_text, to_text
from coterie.protocol.device import TaskKind
from tests.engine_walk import CONFIG, EVERY_EVENT, WALKS, V, reachable

NONE_OUT = (e.Close("train"), e.Close("evaluate"))


def play(round: e.Round, *events: e.RoundEvent) -> e.Round:
    for event in events:
        round = e.step(round, event)
    return round


def fresh(**changes: object) -> e.Round:
    return e.start(1, "b" * 64, replace(CONFIG, **changes))  # pyright: ignore[reportArgumentType]


def test_a_round_that_goes_well() -> None:
    round = e.start(7, "b" * 64, replace(CONFIG, central_evaluation=True))
    assert e.due(round) == (e.Close("evaluate"), e.Ask("train", 3, 600.0))
    round = play(round, e.TaskLeased(), e.TaskLeased(), e.TaskLeased(), e.UpdateAccepted(), e.UpdateAccepted())
    assert (round.phase, round.accepted, round.leased) == (e.RoundPhase.AGGREGATING, 2, 0)
    assert e.due(round) == (*NONE_OUT, e.Do(e.Work.AGGREGATE))
    round = play(round, e.AggregateReady(V, {"loss": 3.0, "examples": 4.0}))
    assert e.due(round) == (*NONE_OUT, e.Do(e.Work.EVALUATE, V))
    assert e.open_slots(round, "evaluate") == 0
    round = play(round, e.Evaluated({"loss": 2.0, "examples": 2.0}))
    assert e.due(round) == (e.Close("train"), e.Ask("evaluate", 2, 120.0))
    round = play(round, e.EvaluationLeased(), e.EvaluationLeased(), e.EvaluationAccepted({"loss": 1.0}))
    round = play(round, e.EvaluationAccepted({"loss": 2.5, "examples": 3.0}))
    assert e.due(round) == (*NONE_OUT, e.Do(e.Work.COMMIT, V))
    assert round.federated == {"loss": 3.5, "examples": 3.0}
    round = play(round, e.Committed())
    assert (round.phase, e.due(round)) == (e.RoundPhase.COMMITTED, (*NONE_OUT, e.Do(e.Work.CLEAN, V)))
    assert e.due(play(round, e.Cleaned())) == NONE_OUT


@pytest.mark.parametrize(
    ("accepted", "minimum", "phase", "cause"),
    [
        (0, 1, e.RoundPhase.ABANDONED, e.Cause.DEADLINE),
        (1, 2, e.RoundPhase.ABANDONED, e.Cause.TOO_FEW_UPDATES),
        (1, 1, e.RoundPhase.AGGREGATING, None),
    ],
)
def test_the_deadline_aggregates_or_abandons(
    accepted: int, minimum: int, phase: e.RoundPhase, cause: e.Cause | None
) -> None:
    round = fresh(cohort=3, min_updates=minimum)
    round = play(round, *[e.TaskLeased()] * 3, *[e.UpdateAccepted()] * accepted, e.DeadlinePassed("train"))
    assert (round.phase, round.cause) == (phase, cause)


def test_over_selection_is_rounded_up_as_it_is_in_decimal() -> None:
    for cohort, over, slots in ((10, 1.1, 11), (10, 1.11, 12), (3, 1.0, 3)):
        assert e.RoundConfig(cohort=cohort, over_selection=over).slots == slots


def test_a_round_for_which_nobody_came_says_so() -> None:
    assert "no device took a task" in (play(fresh(), e.DeadlinePassed("train")).detail or "")
    tried = play(fresh(), e.TaskLeased(), e.TaskFailed(), e.DeadlinePassed("train"))
    assert tried.cause is e.Cause.DEADLINE and "no device" not in (tried.detail or "")


def test_a_round_for_which_too_few_came_says_how_many_tasks_were_left_over() -> None:
    secret = fresh(cohort=3, min_updates=3, secure=True)
    some = play(secret, e.TaskLeased(), e.UpdateAccepted(), e.DeadlinePassed("train"))
    assert "no device took 4 of the 5 tasks" in (some.detail or "") and "secure aggregation" in (some.detail or "")


def test_a_failed_task_frees_its_slot() -> None:
    round = play(fresh(), *[e.TaskLeased()] * 3)
    assert e.open_slots(round, "train") == 0
    with pytest.raises(errors.Conflict, match="no free training slot"):
        e.step(round, e.TaskLeased())
    round = play(round, e.TaskFailed())
    assert e.open_slots(round, "train") == 1
    assert (round.failed, round.leased) == (1, 2)


def test_unusable_updates_found_while_aggregating_count_against_the_minimum() -> None:
    round = play(fresh(min_updates=2), *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2)
    ended = play(round, e.AggregateReady(V, rejected=1))
    assert (ended.phase, ended.cause) == (e.RoundPhase.ABANDONED, e.Cause.TOO_FEW_UPDATES)


def test_a_failed_aggregate_names_its_detail() -> None:
    round = play(fresh(), *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2, e.AggregateFailed("weights overflow"))
    assert (round.cause, round.detail) == (e.Cause.AGGREGATE_FAILED, "weights overflow")


def test_updates_of_which_none_is_usable_are_counted_as_failed() -> None:
    failure = e.AggregateFailed("None of the 2 updates can be used", NOTHING_USABLE)
    round = play(fresh(), *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2, failure)
    assert (round.cause, round.usable, round.lost) == (e.Cause.AGGREGATE_FAILED, 0, 2)


def test_no_evaluation_at_all_still_commits() -> None:
    round = play(fresh(), *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2, e.AggregateReady(V))
    round = play(round, e.EvaluationLeased(), e.EvaluationFailed(), e.DeadlinePassed("evaluate"))
    assert e.work_due(round) is e.Work.COMMIT
    assert (round.evaluated, round.federated) == (0, {})


def test_a_failed_central_evaluation_still_commits() -> None:
    round = fresh(federated_evaluation=False, central_evaluation=True)
    round = play(round, *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2, e.AggregateReady(V))
    round = play(round, e.Evaluated(None, "worker died"))
    assert e.work_due(round) is e.Work.COMMIT
    assert (round.central, round.detail) == (None, "worker died")


def surveyed(**changes: object) -> e.Round:
    """A secure round whose two evaluators are ready to be summed."""
    asked = {"secure": True} | changes
    if asked.get("evaluate_only"):
        round = fresh(**asked)
    else:
        round = play(fresh(**asked), *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2, e.AggregateReady(V, clipped=1))
    return play(round, *[e.EvaluationLeased()] * 2, e.EvaluationAccepted(), e.EvaluationAccepted())


def test_a_secure_round_sums_its_evaluations_before_it_commits() -> None:
    round = surveyed()
    assert (round.phase, round.survey_closed, round.clipped) == (e.RoundPhase.EVALUATING, True, 1)
    assert e.due(round) == (*NONE_OUT, e.Do(e.Work.SUM_EVALUATIONS, V))
    assert not e.accepts(round, "evaluate") and e.open_slots(round, "evaluate") == 0
    for late in (e.EvaluationFailed(), e.DeadlinePassed("evaluate"), e.DeadlinePassed("train"), e.TaskFailed()):
        assert e.step(round, late) == round
    for early in (e.EvaluationLeased(), e.EvaluationAccepted()):
        with pytest.raises(errors.Conflict):
            e.step(round, early)
    summed = play(round, e.EvaluationSummed({"loss": 2.0, "examples": 4.0}))
    assert (summed.federated, summed.detail) == ({"loss": 2.0, "examples": 4.0}, None)
    assert e.work_due(summed) is e.Work.COMMIT


def test_a_sum_of_evaluations_that_fails_is_missing_in_the_record() -> None:
    summed = play(surveyed(), e.EvaluationSummed(None, "too few survivors"))
    assert (summed.phase, summed.federated, summed.detail) == (e.RoundPhase.COMMITTING, {}, "too few survivors")
    assert e.work_due(summed) is e.Work.COMMIT
    ended = play(surveyed(evaluate_only=True), e.EvaluationSummed(None, "too few survivors"))
    assert (ended.phase, ended.cause, ended.detail) == (
        e.RoundPhase.ABANDONED,
        e.Cause.AGGREGATE_FAILED,
        "too few survivors",
    )


def test_the_deadline_sums_the_evaluations_that_are_there() -> None:
    round = play(fresh(secure=True), *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2, e.AggregateReady(V))
    nobody = play(round, e.DeadlinePassed("evaluate"))
    assert e.work_due(nobody) is e.Work.COMMIT and not nobody.survey_closed
    with pytest.raises(errors.Conflict, match="not waiting for a sum"):
        e.step(round, e.EvaluationSummed(None))
    one = play(round, *[e.EvaluationLeased()] * 2, e.EvaluationAccepted(), e.DeadlinePassed("evaluate"))
    assert e.work_due(one) is e.Work.SUM_EVALUATIONS
    assert one.evaluation_leased == 0


def summing(**changes: object) -> e.Round:
    """A secure round whose two clients are ready to be summed."""
    return play(fresh(secure=True, **changes), *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2)


def attempts(*stages: e.AttemptStage, kind: TaskKind = "train") -> list[e.SumAttempt]:
    """One attempt at each stage, named a, b and so on."""
    return [e.SumAttempt("abcdef"[place], kind, stage) for place, stage in enumerate(stages)]


def test_what_opens_the_sums_is_due_before_a_version_of_them() -> None:
    stage = e.AttemptStage
    every = attempts(stage.GATHERING, stage.ASKING, stage.ANSWERED, stage.CLOSED, stage.OPENED)
    assert e.due(summing(), every) == (
        *NONE_OUT,
        e.Do(e.Work.BEGIN_ATTEMPT, attempt="a"),
        e.Do(e.Work.END_PHASE, attempt="c"),
        e.Do(e.Work.UNMASK, attempt="d"),
    )
    assert e.due(summing(), attempts(stage.OPENED, stage.ASKING)) == NONE_OUT
    assert e.due(summing(), attempts(stage.OPENED, stage.OPENED)) == (*NONE_OUT, e.Do(e.Work.SUM))


def test_an_attempt_has_nothing_due_while_its_round_waits_for_something_else() -> None:
    ready = attempts(e.AttemptStage.GATHERING, kind="evaluate")
    assert e.due(summing(), ready) == (*NONE_OUT, e.Do(e.Work.SUM))
    assert e.due(surveyed(), ready) == (*NONE_OUT, e.Do(e.Work.BEGIN_ATTEMPT, attempt="a"))
    for value in (fresh(secure=True), play(summing(), e.AggregateReady(V)), play(summing(), e.StopRequested())):
        early = attempts(*e.AttemptStage)
        assert e.due(value, early) == e.due(value)


def test_noise_goes_into_what_is_made_of_updates_alone() -> None:
    open_to_see = play(fresh(noised=True), *[e.TaskLeased()] * 2, *[e.UpdateAccepted()] * 2)
    assert e.due(fresh(noised=True))[-1] == e.Ask("train", 3, 600.0, noised=True)
    assert e.do_due(open_to_see) == e.Do(e.Work.AGGREGATE, noised=True)
    assert e.do_due(summing(noised=True)) == e.Do(e.Work.SUM, noised=True)
    assert e.do_due(surveyed(noised=True)) == e.Do(e.Work.SUM_EVALUATIONS, V)


@pytest.mark.parametrize("phase", list(e.RoundPhase))
@pytest.mark.parametrize("event", EVERY_EVENT, ids=repr)
def test_what_the_table_lacks_is_refused_by_name(phase: e.RoundPhase, event: e.RoundEvent) -> None:
    if type(event) in e.TRANSITIONS[phase]:
        return
    round = replace(fresh(), phase=phase, version=V)
    with pytest.raises(errors.Conflict) as caught:
        e.step(round, event)
    assert phase.value in caught.value.message and type(event).__name__ in caught.value.message


def test_the_refusals_are_those_that_would_lose_or_double_something() -> None:
    late = {e.TaskLeased, e.UpdateAccepted, e.EvaluationLeased, e.EvaluationAccepted, e.Committed}
    for phase in (e.RoundPhase.COMMITTED, e.RoundPhase.ABANDONED):
        assert not late & set(e.TRANSITIONS[phase])
    assert [phase for phase in e.RoundPhase if e.Committed in e.TRANSITIONS[phase]] == [e.RoundPhase.COMMITTING]


@pytest.mark.parametrize("phase", [phase for phase in e.RoundPhase if not phase.final])
def test_a_stop_ends_every_open_phase(phase: e.RoundPhase) -> None:
    round = e.step(replace(fresh(), phase=phase, version=V, leases={0: 1}), e.StopRequested())
    assert (round.phase, round.cause) == (e.RoundPhase.ABANDONED, e.Cause.STOPPED)
    assert e.due(round) == (*NONE_OUT, e.Do(e.Work.CLEAN, V))


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
        self.round = e.start(1, "b" * 64, config)
        self.commits = self.ends = 0

    @rule(event=st.sampled_from(EVERY_EVENT))
    def happen(self, event: e.RoundEvent) -> None:
        before = self.round
        try:
            after = e.step(before, event)
        except errors.Conflict:
            assert self.round == before
            return
        if before.phase.final:
            assert after == replace(before, cleaned=before.cleaned or event == e.Cleaned())
        elif after.phase is not before.phase:
            assert after.phase in e.TRANSITIONS[before.phase][type(event)].leads_to
            self.commits += after.phase is e.RoundPhase.COMMITTING
            self.ends += after.phase is e.RoundPhase.ABANDONED
        self.round = after

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "round"):
            return
        round, config = self.round, self.round.config
        assert min(round.leased, round.accepted, round.failed, round.evaluation_leased, round.evaluated) >= 0
        assert round.accepted <= config.cohort
        assert round.leased + round.accepted <= config.slots or round.phase is not e.RoundPhase.COLLECTING
        assert self.commits <= 1 and self.ends <= 1
        assert (round.phase is e.RoundPhase.ABANDONED) == (round.cause is not None) == (self.ends == 1)
        if round.phase is e.RoundPhase.COMMITTED:
            assert self.commits == 1 and round.version == V and round.accepted >= config.min_updates
        assert from_text(e.Round, to_text(round)) == round
        check_due(round)

    def teardown(self) -> None:
        """Whatever happened, deadlines and workers' answers bring the round to an end."""
        if not hasattr(self, "round"):
            return
        closing = [e.DeadlinePassed("train"), e.AggregateReady(V), e.Evaluated(None, "-"), e.DeadlinePassed("evaluate")]
        for event in (*closing, e.EvaluationSummed(None, "-"), e.Committed(), e.Cleaned()):
            self.happen(event)
            self.holds()
        assert self.round.phase.final and self.round.cleaned


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=150, stateful_step_count=25)


def check_due(round: e.Round) -> None:
    """What is due fits the value: work, or devices that are waited for with a deadline, never both; of a round that is
    over only its files, until they are deleted. No task of a kind is out that is to be taken back.
    """
    entries = e.due(round)
    assert entries == e.due(from_text(e.Round, to_text(round)))
    work = [entry.work for entry in entries if isinstance(entry, e.Do)]
    waits = [entry.kind for entry in entries if isinstance(entry, e.Ask) and entry.deadline_s is not None]
    assert len(work) + len(waits) == (0 if round.cleaned else 1)
    assert (work == [e.Work.CLEAN]) == (round.phase.final and not round.cleaned)
    for kind in KINDS:
        out = round.leased if kind == "train" else round.evaluation_leased
        assert (e.Close(kind) in entries) == (not e.accepts(round, kind) and not out)
        assert not out or e.accepts(round, kind) or (round.config.buffered and round.phase.final)


ANSWERS = {
    e.Work.AGGREGATE: (e.AggregateReady, e.AggregateFailed),
    e.Work.SUM: (e.AggregateReady, e.AggregateFailed),
    e.Work.EVALUATE: (e.Evaluated,),
    e.Work.SUM_EVALUATIONS: (e.EvaluationSummed,),
    e.Work.COMMIT: (e.Committed,),
    e.Work.CLEAN: (e.Cleaned,),
}


@pytest.mark.parametrize("walk", WALKS)
def test_every_reachable_round_has_something_due_and_its_answer_is_taken_once(walk: str) -> None:
    rounds = reachable(WALKS[walk])
    assert {round.phase for round in rounds} >= {e.RoundPhase.COMMITTED, e.RoundPhase.ABANDONED}
    for round in rounds:
        check_due(round)
        work = e.work_due(round)
        taken = [event for event in EVERY_EVENT if work is not None and isinstance(event, ANSWERS[work])]
        for answer in taken:
            after = e.step(round, answer)
            assert after.phase is not round.phase or e.work_due(after) is not work
            # Done twice: the second answer is refused, or of no consequence.
            try:
                again = e.step(after, answer)
            except errors.Conflict:
                continue
            assert again == after
        assert bool(taken) or work is None


def test_the_diagram_and_the_table_in_the_documentation_are_those_of_the_engine() -> None:
    diagram = e.diagram()
    for phase, row in e.TRANSITIONS.items():
        for event, entry in row.items():
            for target in entry.leads_to:
                assert f"{phase.value} --> {target.value}: {event.__name__}\n" in diagram
    page = Path(__file__).parents[2] / "docs" / "rounds.md"
    if page.exists():
        assert diagram.strip() in page.read_text("utf-8")
        assert table().strip() in page.read_text("utf-8")
