"""What can happen to a privacy budget. Names and fields never change their meaning: a chain outlives the code."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, PlainSerializer

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
    kind: Literal["limit"] = "limit"


def _text(value: object) -> str:
    return canonical_json(value).decode()


def _value(text: str) -> Any:
    return parse_json(text.encode())


# A cost is text in Python, so that it can be counted, and its own value in the event's JSON.
_AsValue: TypeAlias = Annotated[str, BeforeValidator(_text), PlainSerializer(_value)]


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """A round begins that may cost this much.

    cost: accounting events, each as canonical JSON text; they compose.
    """

    experiment: str
    round: int
    cost: tuple[_AsValue, ...]
    kind: Literal["reserve"] = "reserve"


@dataclass(frozen=True, kw_only=True)
class Spend:
    """The first noised or unmasked value of a round may exist from here on: its reserved cost is paid, whatever comes.

    noise: SHA-256 commitment to the seed of the round's noise (see `chain.commitment`), by which a retry is held to
    the same noise; None where the noise is not the coordinator's.
    """

    experiment: str
    round: int
    noise: str | None = None
    kind: Literal["spend"] = "spend"


class RefundCause(StrEnum):
    """Why a reservation was given back."""

    ABANDONED = "abandoned"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True)
class Refund:
    """A round ended before any noised or unmasked value of it could exist: its reserved cost is free again."""

    experiment: str
    round: int
    cause: RefundCause
    kind: Literal["refund"] = "refund"


LedgerEvent = Limit | Reserve | Spend | Refund
