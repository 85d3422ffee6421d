"""Who took part in a round, as its record lists it."""

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import PlainSerializer

from coterie.protocol.wire import Response, Whole


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, kw_only=True)
class Participant:
    """A client whose update counts.

    client: the device's id; in a simulation the client's number.
    lag: how many versions were made since the one that it trained on.
    loss: the mean that it saw while training; None where it measured none, or where only sums over clients may be seen.
    """

    client: str
    lag: int = 0
    loss: Annotated[float | None, PlainSerializer(_finite)] = None


class ParticipantView(Response):
    """A client whose update counts in a round."""

    client: str
    lag: Whole = 0
    loss: float | None = None
