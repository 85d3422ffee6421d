"""What follows from a ledger's events: which limits hold and what each round has cost. Folding is all there is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from coterie import errors
from coterie.privacy.ledger.events import Bound, LedgerEvent, Limit, Refund, Reserve, Spend


class CostState(StrEnum):
    """Where a round's cost stands."""

    RESERVED = "reserved"
    SPENT = "spent"
    REFUNDED = "refunded"

    @property
    def counts(self) -> bool:
        """Whether it takes budget."""
        return self is not CostState.REFUNDED


@dataclass(frozen=True, kw_only=True)
class Charge:
    """The cost of one round.

    at: when it last changed, in milliseconds of the ledger's clock.
    """

    experiment: str
    round: int
    cost: tuple[str, ...]
    state: CostState
    at: int
    noise: str | None = None


@dataclass(frozen=True, kw_only=True)
class State:
    """A ledger folded.

    limits: by scope.
    charges: by (experiment, round), in the order of their reservation.
    """

    at: int = 0
    limits: Mapping[str, Bound] = field(default_factory=dict[str, Bound])
    charges: Mapping[tuple[str, int], Charge] = field(default_factory=dict[tuple[str, int], Charge])

    def charge(self, experiment: str, round: int) -> Charge | None:
        """What the ledger says of a round."""
        return self.charges.get((experiment, round))

    def of(self, experiment: str) -> tuple[Charge, ...]:
        """The charges of an experiment that take budget, in order."""
        return tuple(
            charge for charge in self.charges.values() if charge.experiment == experiment and charge.state.counts
        )

    @property
    def experiments(self) -> tuple[str, ...]:
        """Every experiment that has a charge, in the order of the first."""
        return tuple(dict.fromkeys(charge.experiment for charge in self.charges.values()))


# What a round's cost becomes, by where it stands and what happens; whatever is not here is refused.
_MOVES: Mapping[tuple[CostState | None, type[LedgerEvent]], CostState] = {
    (None, Reserve): CostState.RESERVED,
    (CostState.RESERVED, Spend): CostState.SPENT,
    (CostState.RESERVED, Refund): CostState.REFUNDED,
}


@dataclass
class Folding:
    """Events taken one after the other: a state that is being built, so that a long chain is folded in linear time."""

    at: int = 0
    limits: dict[str, Bound] = field(default_factory=dict[str, Bound])
    charges: dict[tuple[str, int], Charge] = field(default_factory=dict[tuple[str, int], Charge])

    def take(self, at: int, event: LedgerEvent) -> None:
        """One more event. Raises as `apply` does, having changed nothing."""
        if at < self.at:
            raise errors.Conflict(f"An entry at {at} cannot follow one at {self.at}.", code="ledger_order")
        if isinstance(event, Limit):
            self._limit(event)
        else:
            charge = self._next_charge(at, event)
            self.charges[charge.experiment, charge.round] = charge
        self.at = at

    @property
    def state(self) -> State:
        """The state so far."""
        return State(at=self.at, limits=dict(self.limits), charges=dict(self.charges))

    def _limit(self, event: Limit) -> None:
        self.limits.pop(event.scope, None)
        if event.bound is not None:
            self.limits[event.scope] = event.bound

    def _next_charge(self, at: int, event: Reserve | Spend | Refund) -> Charge:
        before = self.charges.get((event.experiment, event.round))
        after = _MOVES.get((None if before is None else before.state, type(event)))
        match event:
            case Reserve() if after is not None:
                return Charge(experiment=event.experiment, round=event.round, cost=event.cost, state=after, at=at)
            case Spend() if after is not None and before is not None:
                return replace(before, state=after, at=at, noise=event.noise)
            case Refund() if after is not None and before is not None:
                return replace(before, state=after, at=at)
            case _:
                where = "not reserved" if before is None else before.state.value
                raise errors.Conflict(
                    f"Round {event.round} of {event.experiment} is {where} in the ledger, so no "
                    f"{type(event).__name__.lower()} can follow.",
                    code="ledger_order",
                )


def apply(state: State, at: int, event: LedgerEvent) -> State:
    """The state after one event at a time of the ledger's clock, which never goes back.

    Raises errors.Conflict (``ledger_order``): time goes back, or the event cannot follow, such as a spend of what was
    never reserved, a refund of what is spent, or a second reservation of one round.
    """
    return fold([(at, event)], state)


def fold(events: Iterable[tuple[int, LedgerEvent]], state: State | None = None) -> State:
    """The state after events with their times, in order. Raises as `apply` does."""
    start = state or State()
    folding = Folding(at=start.at, limits=dict(start.limits), charges=dict(start.charges))
    for at, event in events:
        folding.take(at, event)
    return folding.state
