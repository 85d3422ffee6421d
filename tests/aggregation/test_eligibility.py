"""Who may take part, who must, and what is tried again: the rules that coordinator and simulation share."""

from itertools import product

import pytest

from coterie.aggregation import engine as e
from coterie.aggregation.eligibility import (
    MOST_TRIES,
    ClientHistory,
    Holdings,
    TaskOutcome,
    choose,
    eligible,
    keeps_last_slot,
    may_try,
    measures,
    without_trusted,
)
from coterie.aggregation.selection import Candidate
from coterie.protocol.rounds import RoundPolicy

LOST, OUT, ACCEPTED, REFUSED = TaskOutcome.LOST, TaskOutcome.OUT, TaskOutcome.ACCEPTED, TaskOutcome.REFUSED
POLICY = RoundPolicy(rounds=3, cohort=2, min_examples=10, labels=(1, 2), rest_rounds=1, rest_s=60)
ENOUGH = Holdings(10, frozenset((1, 2, 3)))


@pytest.mark.parametrize(
    ("holdings", "past", "may"),
    [
        (ENOUGH, None, True),
        (None, None, False),
        (Holdings(9, frozenset((1, 2))), None, False),
        (Holdings(10, frozenset((1,))), None, False),
        (ENOUGH, ClientHistory(last_round=3, times=1), True),
        (ENOUGH, ClientHistory(last_round=4, times=1), False),
        (ENOUGH, ClientHistory(last_round=1, times=1, rested_s=59.0), False),
        (ENOUGH, ClientHistory(last_round=1, times=1, rested_s=60.0), True),
    ],
)
def test_a_client_takes_part_with_the_data_asked_for_and_after_its_rest(
    holdings: Holdings | None, past: ClientHistory | None, may: bool
) -> None:
    assert eligible(POLICY, lambda: holdings, past, round=5, privacy=None) is may


def test_a_client_is_asked_for_its_data_only_where_the_answer_decides() -> None:
    def never() -> Holdings:
        raise AssertionError("nobody needs to know")

    resting, nothing = ClientHistory(last_round=4, times=1), RoundPolicy(rounds=3, cohort=2)
    assert not eligible(POLICY, never, resting, round=5, privacy=None)
    assert eligible(nothing, never, None, round=5, privacy=None)


def test_a_client_tries_again_until_it_has_an_answer_or_failed_too_often() -> None:
    for outcomes in product(TaskOutcome, repeat=2):
        assert may_try(outcomes, "train", None) == (ACCEPTED not in outcomes and REFUSED not in outcomes)
    assert not may_try([LOST] * MOST_TRIES, "train", None)


def test_a_client_has_one_say_in_a_buffer() -> None:
    assert may_try((), "train", None) and not may_try((), "train", None, in_buffer=True)
    assert may_try((), "evaluate", None, in_buffer=True)


def test_whoever_can_measures_what_training_made() -> None:
    asked = RoundPolicy(rounds=1, cohort=2, purpose="evaluate")
    assert [measures(rounds, "evaluate") for rounds in (POLICY, asked)] == [True, False]
    assert not measures(POLICY, "train")


def test_the_trusted_client_has_one_of_the_places_whatever_the_selection_says() -> None:
    everybody = [Candidate(id=name) for name in "abcdef"]
    for seed in range(20):
        chosen = choose(POLICY, everybody, 3, round=1, seed=seed, trusted="f")
        assert "f" in chosen and len(set(chosen)) == 3
        # While it may not come its place stays free: without it nothing could be judged.
        assert len(choose(POLICY, everybody[:5], 3, round=1, seed=seed, trusted="f")) == 2


@pytest.mark.parametrize(
    ("client", "slots", "outcomes", "kept"),
    [("a", 1, (), True), ("a", 1, (LOST,), True), ("a", 1, (OUT,), False), ("a", 2, (), False), ("t", 1, (), False)],
)
def test_the_last_slot_waits_for_the_trusted_client(
    client: str, slots: int, outcomes: tuple[TaskOutcome, ...], kept: bool
) -> None:
    assert keeps_last_slot("t", client, slots, outcomes) is kept
    assert not keeps_last_slot(None, client, slots, outcomes)


@pytest.mark.parametrize(
    ("outcomes", "enrolled", "why"),
    [
        ((), True, None),
        ((OUT,), True, None),
        ((LOST,), True, None),
        ((ACCEPTED,), False, None),
        ((OUT,), False, "was revoked"),
        ((REFUSED,), True, "failed once"),
        ((LOST,) * MOST_TRIES, True, "failed 3 times"),
    ],
)
def test_a_round_ends_without_a_trusted_client_that_cannot_come(
    outcomes: tuple[TaskOutcome, ...], enrolled: bool, why: str | None
) -> None:
    round = e.start(1, "b" * 64, e.RoundConfig(cohort=2))
    told = without_trusted(round, outcomes, enrolled=enrolled, privacy=None)
    assert told is None if why is None else why in (told or "")
    over = e.step(round, e.StopRequested())
    assert without_trusted(over, outcomes, enrolled=enrolled, privacy=None) is None
