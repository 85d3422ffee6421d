"""What may still be paid: limits of one experiment, of each, and of 365 days; and a clock that jumps."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from ledger_kit import KEY, PEOPLE, adding, cost

from coterie import errors
from coterie.privacy.ledger.budget import YEAR_MS, clock, excess, refusal
from coterie.privacy.ledger.chain import Entry, Head, check, link
from coterie.privacy.ledger.events import EACH, YEAR, Bound, LedgerEvent, Limit, Refund, RefundCause, Reserve, Spend
from coterie.privacy.ledger.state import CostState, State, fold

DAY = 24 * 3600 * 1000
NOW = 50 * YEAR_MS


def limits(
    own: float | None = None, each: float | None = None, year: float | None = None
) -> list[tuple[int, LedgerEvent]]:
    """The events that set limits."""
    asked = {"exp_a": own, EACH: each, YEAR: year}
    return [(0, Limit(scope=s, bound=Bound(value, 1e-6))) for s, value in asked.items() if value is not None]


def paid(experiment: str, round: int, epsilon: float, at: int) -> list[tuple[int, LedgerEvent]]:
    """A round that spent."""
    return [
        (at, Reserve(experiment=experiment, round=round, cost=cost(epsilon))),
        (at, Spend(experiment=experiment, round=round)),
    ]


CASES: dict[str, tuple[list[tuple[int, LedgerEvent]], float, str | None]] = {
    "no limit": ([], 1e6, None),
    "exactly the limit": (limits(own=3), 3, None),
    "above its own": (limits(own=3), 3.1, "budget_experiment"),
    "above each": (limits(own=9, each=2), 2.5, "budget_each"),
    "others do not count against each": (limits(each=2) + paid("exp_b", 1, 1.9, NOW), 2, None),
    "others count against the year": (limits(year=3) + paid("exp_b", 1, 1.9, NOW), 2, "budget_year"),
    "a reservation counts": (limits(own=3) + paid("exp_a", 1, 2, NOW)[:1], 2, "budget_experiment"),
    "a refund does not": (
        limits(own=3)
        + paid("exp_a", 1, 2, NOW)[:1]
        + [(NOW, Refund(experiment="exp_a", round=1, cause=RefundCause.ABANDONED))],
        2,
        None,
    ),
    "older than a year": (limits(year=3) + paid("exp_b", 1, 2.9, NOW - YEAR_MS - DAY), 3, None),
    "almost a year": (limits(year=3) + paid("exp_b", 1, 2.9, NOW - YEAR_MS + DAY), 3, "budget_year"),
    "an experiment counts whole while one round is young": (
        limits(year=3) + paid("exp_b", 1, 1.5, NOW - YEAR_MS - DAY) + paid("exp_b", 2, 0.1, NOW - DAY),
        1.5,
        "budget_year",
    ),
    "a reservation has no age": (
        limits(year=3) + paid("exp_b", 1, 2.9, NOW - 2 * YEAR_MS)[:1],
        1,
        "budget_year",
    ),
    "a limit that was lifted": ([*limits(own=1), (0, Limit(scope="exp_a", bound=None))], 9, None),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_cost_is_held_against_every_limit(name: str) -> None:
    events, epsilon, reason = CASES[name]
    found = excess(fold(events), NOW, "exp_a", cost(epsilon), adding)
    assert (found.reason if found else None) == reason


def test_a_refusal_says_which_limit_and_what_is_left() -> None:
    found = excess(fold(limits(year=3) + paid("exp_b", 1, 2, NOW)), NOW, "exp_a", cost(2), adding)
    assert found is not None
    with pytest.raises(errors.Conflict) as caught:
        raise refusal(found)
    assert caught.value.reason == "budget_year"
    assert "max_epsilon_per_year" in caught.value.message and "ε 2 " in caught.value.message
    assert caught.value.details == {"epsilon": 4.0, "limit": 3.0, "delta": 1e-6}


def not_a_number(costs: Sequence[str], delta: float) -> float:
    """An accountant that fails."""
    return float("nan")


def test_an_infinite_epsilon_is_an_excess() -> None:
    found = excess(fold(limits(own=3)), NOW, "exp_a", cost(1), lambda costs, delta: float("inf" if costs else 0))
    assert found is not None and refusal(found).details["epsilon"] is None
    assert excess(fold(limits(own=3)), NOW, "exp_a", cost(1), not_a_number) is not None


def test_a_clock_set_back_gains_nothing() -> None:
    """What is spent while the clock is wrong is stamped no earlier than what was spent before."""
    state = fold(limits(year=3) + paid("exp_b", 1, 2, NOW))
    assert excess(state, NOW - 2 * YEAR_MS, "exp_a", cost(2), adding) is not None
    assert clock(state, NOW - 2 * YEAR_MS) == NOW
    later = fold(paid("exp_a", 1, 1, clock(state, NOW - 2 * YEAR_MS)), state)
    assert excess(later, NOW + 300 * DAY, "exp_c", cost(1), adding) is not None, "both are still within the year"


class Rounds(RuleBasedStateMachine):
    """Experiments that reserve, spend, refund and retry at jumping clocks never exceed a limit, and the chain holds."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.state, self.entries, self.now = PEOPLE, State(), list[Entry](), NOW
        self.spent: dict[tuple[str, int], tuple[float, int]] = {}

    def add(self, event: LedgerEvent) -> None:
        """One more entry, as the store adds it."""
        at = clock(self.state, self.now)
        entry = link(self.head, at, event, KEY)
        self.state = fold([(at, event)], self.state)
        self.head = Head(population="people", sequence=entry.sequence, digest=entry.digest)
        self.entries.append(entry)

    @initialize()
    def set_limits(self) -> None:
        """What the operator has drawn."""
        self.add(Limit(scope=EACH, bound=Bound(3.0, 1e-6)))
        self.add(Limit(scope=YEAR, bound=Bound(5.0, 1e-6)))

    @rule(experiment=st.sampled_from("abc"), round=st.integers(1, 5), epsilon=st.sampled_from([0.25, 1.0, 2.5]))
    def begin(self, experiment: str, round: int, epsilon: float) -> None:
        """A round begins, if it may."""
        if self.state.charge(experiment, round) is None and not excess(
            self.state, self.now, experiment, cost(epsilon), adding
        ):
            self.add(Reserve(experiment=experiment, round=round, cost=cost(epsilon)))

    @rule(experiment=st.sampled_from("abc"), round=st.integers(1, 5), refund=st.booleans())
    def end(self, experiment: str, round: int, refund: bool) -> None:
        """A round pays or is given up; whatever is not reserved is refused and changes nothing."""
        event: LedgerEvent = (
            Refund(experiment=experiment, round=round, cause=RefundCause.ABANDONED)
            if refund
            else Spend(experiment=experiment, round=round)
        )
        charge = self.state.charge(experiment, round)
        if charge is None or charge.state is not CostState.RESERVED:
            with pytest.raises(errors.Conflict):
                fold([(clock(self.state, self.now), event)], self.state)
            return
        self.add(event)
        if not refund:
            epsilon = adding(charge.cost, 1e-6)
            self.spent[experiment, round] = (epsilon, self.entries[-1].at)

    @rule(days=st.integers(-500, 500))
    def clock_jumps(self, days: int) -> None:
        """The coordinator's clock is set."""
        self.now += days * DAY

    @invariant()
    def nobody_overspends(self) -> None:
        """By an oracle of its own: what each experiment spent, and what any 365 days of the ledger saw."""
        for name in "abc":
            assert sum(epsilon for (experiment, _), (epsilon, _) in self.spent.items() if experiment == name) <= 3.0
        for _, start in self.spent.values():
            window = [epsilon for epsilon, at in self.spent.values() if start <= at < start + YEAR_MS]
            assert sum(window) <= 5.0

    @invariant()
    def the_chain_holds(self) -> None:
        """From the beginning, every time."""
        verdict = check(self.entries, head=PEOPLE, public=KEY.public)
        assert verdict.broken is None and verdict.head == self.head and verdict.state == self.state


Rounds.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow]
)
TestRounds = Rounds.TestCase
