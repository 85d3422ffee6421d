"""Whether a cost may still be paid: the limits of a ledger against everything that is reserved or spent.

The unit is a user (device) of the population, and the worst case is assumed: one that took part in every round of every
experiment. Nothing is gained by sampling, since devices choose themselves when they check in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coterie import errors
from coterie.privacy.ledger.events import EACH, YEAR, Bound
from coterie.privacy.ledger.state import Charge, CostState, State

YEAR_MS = 365 * 24 * 3600 * 1000

TotalEpsilon = Callable[[Sequence[str], float], float]
"""(accounting events as canonical JSON, δ) → ε of all of them together; infinite where no ε holds at that δ."""


@dataclass(frozen=True, kw_only=True)
class Excess:
    """A limit that a cost would break.

    scope: whose.
    epsilon: what would be lost with it, and before: without it.
    """

    scope: str
    bound: Bound
    before: float
    epsilon: float

    @property
    def reason(self) -> str:
        """Which kind of limit it is, as a code."""
        return _REASONS.get(self.scope, "budget_experiment")

    @property
    def sentence(self) -> str:
        """What is the matter, for people."""
        whose = _WHOSE.get(self.scope, "the experiment's own limit")
        return (
            f"{whose} is {self.bound}; ε {self.before:.4g} of it is spent or reserved, and with this it would be ε "
            f"{self.epsilon:.4g}"
        )


_REASONS = {EACH: "budget_each", YEAR: "budget_year"}
_WHOSE = {
    EACH: "the population's limit for each experiment (max_epsilon_per_experiment)",
    YEAR: "the population's limit for 365 days (max_epsilon_per_year)",
}


def clock(state: State, now: int) -> int:
    """The ledger's time: the coordinator's, but never before the newest entry, so a clock set back gains nothing."""
    return max(state.at, now)


def charged(state: State, scope: str, now: int, experiment: str) -> tuple[Charge, ...]:
    """The charges that count against a limit.

    Over 365 days an experiment counts whole as long as one of its charges is that young: the noise of its rounds may be
    correlated, and then no part of it has a cost of its own. What is reserved has no age: it may be spent at any time.
    """
    if scope != YEAR:
        return state.of(experiment)
    since = clock(state, now) - YEAR_MS
    return tuple(
        charge
        for name in state.experiments
        if name == experiment or any(_counts_since(charge, since) for charge in state.of(name))
        for charge in state.of(name)
    )


def _counts_since(charge: Charge, since: int) -> bool:
    return charge.state is CostState.RESERVED or charge.at > since


def events_of(charges: Sequence[Charge]) -> tuple[str, ...]:
    """Everything that these charges cost."""
    return tuple(event for charge in charges for event in charge.cost)


def excess(state: State, now: int, experiment: str, cost: Sequence[str], accountant: TotalEpsilon) -> Excess | None:
    """The first limit that the experiment would break with one more cost: its own, the one for each, the one for 365
    days; None when all hold.
    """
    for scope in (experiment, EACH, YEAR):
        bound = state.limits.get(scope)
        if bound is None:
            continue
        events = events_of(charged(state, scope, now, experiment))
        epsilon = accountant((*events, *cost), bound.delta)
        if not epsilon <= bound.epsilon * (1 + TOLERANCE):
            return Excess(scope=scope, bound=bound, before=accountant(events, bound.delta), epsilon=epsilon)
    return None


TOLERANCE = 1e-4
"""Noise that was calibrated for a target ε meets it but for rounding; less than this share above is no excess."""


def refusal(excess: Excess) -> errors.Conflict:
    """The error of a cost that may not be paid."""
    return errors.Conflict(
        f"The privacy budget does not allow this: {excess.sentence}.",
        hint="Ask for more noise or fewer rounds, or let the operator raise the limit.",
        code=excess.reason,
        epsilon=_finite(excess.epsilon),
        limit=excess.bound.epsilon,
        delta=excess.bound.delta,
    )


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None
