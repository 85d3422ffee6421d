"""What can happen to a privacy budget. Names and fields never change their meaning: a chain outlives the code."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from coterie import errors
from coterie.protocol.canonical import canonical_json, parse_json

EACH = "each experiment"
YEAR = "365 days"
"""Scopes of a limit beside the id of one experiment."""


@dataclass(frozen=True)
class Bound:
    """An (ε, δ): what may be lost, ``epsilon`` > 0 except with probability 0 < ``delta`` < 1.

    Raises errors.ArgumentValueError for numbers outside of that.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name, value, holds in (
            ("epsilon", self.epsilon, math.isfinite(self.epsilon) and self.epsilon > 0),
            ("delta", self.delta, 0 < self.delta < 1),
        ):
            if not holds:
                raise errors.ArgumentValueError(
                    f"A bound's {name} cannot be {value}.", hint="epsilon > 0 is finite; delta lies between 0 and 1."
                )

    def __str__(self) -> str:
        return f"ε {self.epsilon:g} at δ {self.delta:g}"


@dataclass(frozen=True, kw_only=True)
class Limit:
    """From here on nobody may lose more than ``bound`` over ``scope``: an experiment's id, `EACH` or `YEAR`.

    A bound of None takes the limit away. Only an operator sets `EACH` and `YEAR`.
    """

    scope: str
    bound: Bound | None


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """A round begins that may cost this much.

    cost: accounting events, each as canonical JSON text; they compose.
    """

    experiment: str
    round: int
    cost: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Spend:
    """The first noised or unmasked value of a round may exist from here on: its reserved cost is paid, whatever comes.

    noise: SHA-256 commitment to the seed of the round's noise (see `chain.commitment`), by which a retry is held to
    the same noise; None where the noise is not the coordinator's.
    """

    experiment: str
    round: int
    noise: str | None = None


class Cause(StrEnum):
    """Why a reservation was given back."""

    ABANDONED = "abandoned"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True)
class Refund:
    """A round ended before any noised or unmasked value of it could exist: its reserved cost is free again."""

    experiment: str
    round: int
    cause: Cause


Event = Limit | Reserve | Spend | Refund


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as JSON values, tagged by its kind."""
    match event:
        case Limit(scope=scope, bound=bound):
            told = None if bound is None else {"epsilon": bound.epsilon, "delta": bound.delta}
            return {"kind": "limit", "scope": scope, "bound": told}
        case Reserve(experiment=experiment, round=round, cost=cost):
            costs = [parse_json(text.encode()) for text in cost]
            return {"kind": "reserve", "experiment": experiment, "round": round, "cost": costs}
        case Spend(experiment=experiment, round=round, noise=noise):
            return {"kind": "spend", "experiment": experiment, "round": round, "noise": noise}
        case Refund(experiment=experiment, round=round, cause=cause):
            return {"kind": "refund", "experiment": experiment, "round": round, "cause": cause.value}


def _limit(value: Mapping[str, Any]) -> Event:
    bound = value["bound"]
    read = None if bound is None else Bound(float(bound["epsilon"]), float(bound["delta"]))
    return Limit(scope=str(value["scope"]), bound=read)


def _reserve(value: Mapping[str, Any]) -> Event:
    cost = tuple(canonical_json(item).decode() for item in value["cost"])
    return Reserve(experiment=str(value["experiment"]), round=int(value["round"]), cost=cost)


def _spend(value: Mapping[str, Any]) -> Event:
    return Spend(experiment=str(value["experiment"]), round=int(value["round"]), noise=value["noise"])


def _refund(value: Mapping[str, Any]) -> Event:
    return Refund(experiment=str(value["experiment"]), round=int(value["round"]), cause=Cause(value["cause"]))


_READ: Mapping[str, Callable[[Mapping[str, Any]], Event]] = {
    "limit": _limit,
    "reserve": _reserve,
    "spend": _spend,
    "refund": _refund,
}


def event_from_json(value: Mapping[str, Any]) -> Event:
    """Read what `event_to_json` wrote. Raises errors.InputError (``ledger_entry``) for anything else."""
    try:
        return _READ[value["kind"]](value)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise errors.InputError(
            f"This is not an event of a ledger: {type(error).__name__}: {str(error)[:200]}.", code="ledger_entry"
        ) from error
