"""The experiment over its rounds: best version, early stop, target, stall, stop."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import errors
from coterie.aggregation.progress import (
    ExperimentEnd,
    ExperimentProgress,
    Reason,
    StartRound,
    after_round,
    configure,
    evaluates,
    first_round,
    measured,
)
from coterie.aggregation.round import Cause, Round, RoundConfig, RoundPhase
from coterie.protocol.conversion import from_text, to_text
from coterie.protocol.rounds import RoundPolicy

CONFIG = RoundConfig(cohort=1)


def policy(**changes: Any) -> RoundPolicy:
    values: dict[str, Any] = {"rounds": 5, "cohort": 2, **changes}
    return RoundPolicy(**values)


def committed(number: int, loss: float | None) -> Round:
    central = None if loss is None else {"loss": loss * 4, "examples": 4.0}
    return Round(
        number=number, base="b", config=CONFIG, phase=RoundPhase.COMMITTED, version=f"v{number}", central=central
    )


def abandoned(number: int, cause: Cause = Cause.DEADLINE) -> Round:
    return Round(number=number, base="b", config=CONFIG, phase=RoundPhase.ABANDONED, cause=cause)


def run(rules: RoundPolicy, *losses: float | None | Cause) -> tuple[ExperimentProgress, Any]:
    progress, action = first_round(ExperimentProgress(current="v0"), rules)
    result: Any = action
    for loss in losses:
        number = progress.started
        outcome = abandoned(number, loss) if isinstance(loss, Cause) else committed(number, loss)
        progress, result = after_round(progress, outcome, rules)
    return progress, result


def test_a_committed_round_is_the_base_of_the_next() -> None:
    progress, action = run(policy(hyper_schedule={"lr": (5.0, 4.0, 3.0, 2.0, 1.0)}), 1.0)
    assert action == StartRound(2, "v1", {"lr": 4.0}, place=1)
    assert (progress.committed, progress.best, progress.best_value) == (1, "v1", 1.0)


def test_an_abandoned_round_keeps_the_base() -> None:
    assert run(policy(), 1.0, Cause.DEADLINE)[1] == StartRound(3, "v1", place=1)


@pytest.mark.parametrize(
    ("changes", "losses", "reason", "kept"),
    [
        ({"rounds": 2}, (1.0, 2.0), Reason.COMPLETED, "v1"),
        ({"patience": 2}, (1.0, 2.0, 1.5), Reason.NO_IMPROVEMENT, "v1"),
        ({}, (1.0, *[Cause.DEADLINE] * 3), Reason.STALLED, "v1"),
        ({}, (3.0, Cause.STOPPED), Reason.STOPPED, "v1"),
        ({"target": {"metric": "loss", "value": 0.5, "mode": "min"}}, (1.0, 0.5), Reason.TARGET_REACHED, "v2"),
        ({"best": {"metric": "loss", "mode": "max"}, "rounds": 2}, (1.0, 2.0), Reason.COMPLETED, "v2"),
        ({"rounds": 2}, (None, None), Reason.COMPLETED, "v2"),
    ],
)
def test_an_experiment_finishes_for_a_named_reason(
    changes: dict[str, Any], losses: tuple[Any, ...], reason: Reason, kept: str
) -> None:
    progress, action = run(policy(**changes), *losses)
    assert action == ExperimentEnd(reason, kept)
    assert progress.finished is reason and reason.sentence.endswith(".")


def test_rounds_abandoned_now_and_then_do_not_stall() -> None:
    losses = (Cause.DEADLINE, Cause.DEADLINE, 1.0, Cause.DEADLINE)
    assert run(policy(rounds=9), *losses)[1] == StartRound(5, "v3", place=1)


def test_an_unmeasured_round_does_not_use_up_patience() -> None:
    assert isinstance(run(policy(patience=1), 1.0, None)[1], StartRound)


def test_only_the_round_that_is_awaited_counts() -> None:
    progress, _ = first_round(ExperimentProgress(current="v0"), policy())
    with pytest.raises(errors.Conflict):
        after_round(progress, committed(2, 1.0), policy())
    with pytest.raises(errors.Conflict):
        after_round(progress, Round(number=1, base="b", config=CONFIG), policy())
    ended, _ = after_round(progress, abandoned(1, Cause.STOPPED), policy())
    with pytest.raises(errors.Conflict):
        after_round(ended, committed(1, 1.0), policy())


def test_central_measures_come_before_the_devices() -> None:
    round = Round(number=1, base="b", config=CONFIG, federated={"loss": 6.0, "examples": 3.0})
    assert measured(round) == {"loss": 2.0}
    assert measured(committed(1, 1.0)) == {"loss": 1.0}
    assert measured(Round(number=1, base="b", config=CONFIG)) == {}


def test_devices_evaluate_every_so_often_and_after_the_last_round() -> None:
    rules = policy(rounds=5, evaluate_every=2)
    assert [evaluates(rules, number) for number in range(1, 6)] == [False, True, False, True, True]
    assert not any(evaluates(policy(evaluate_every=0), number) for number in range(1, 6))


def test_a_policy_becomes_a_round_config() -> None:
    rules = policy(cohort=4, over_selection=1.3, min_updates=2, deadline_s=9.0, evaluation_cohort=3)
    config = configure(rules, 1, central=True)
    assert (config.slots, config.min_updates, config.deadline_s, config.evaluation_cohort) == (6, 2, 9.0, 3)
    assert config.central_evaluation and config.federated_evaluation and config.evaluation_deadline_s == 9.0
    assert config.slots == rules.tasks()


def test_a_policy_says_whether_rounds_are_buffered_or_only_evaluate() -> None:
    rules = policy(rounds=3, mode="buffered", cohort=4, concurrency=7, staleness_cap=2)
    config = configure(rules, 2, central=False)
    assert (config.buffered, config.slots, config.staleness_cap, config.last) == (True, 7, 2, False)
    assert configure(rules, 3, central=False).last
    config = configure(policy(cohort=3, purpose="evaluate", deadline_s=9.0), 1, central=False)
    assert (config.evaluate_only, config.evaluation_cohort, config.evaluation_deadline_s) == (True, 3, 9.0)
    assert configure(policy(cohort=100, dropout=0.1), 1, central=False).slots == 120


@given(st.lists(st.one_of(st.floats(0, 9), st.none(), st.just(Cause.DEADLINE)), max_size=8))
def test_every_experiment_ends_and_survives_json(losses: list[Any]) -> None:
    rules = policy(rounds=6, patience=3)
    progress, action = first_round(ExperimentProgress(current="v0"), rules)
    result: Any = action
    for loss in [*losses, *[1.0] * 8]:
        if isinstance(result, ExperimentEnd):
            break
        number = progress.started
        outcome = abandoned(number) if isinstance(loss, Cause) else committed(number, loss)
        progress, result = after_round(progress, outcome, rules)
        assert from_text(ExperimentProgress, to_text(progress)) == progress
    assert isinstance(result, ExperimentEnd) and progress.started <= rules.rounds
