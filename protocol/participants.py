"""Who took part in a round, as its record lists it."""

from dataclasses import dataclass

from coterie.protocol.conversion import FiniteOrNull
from coterie.protocol.wire import FiniteNumber, Response, Title, Whole


@dataclass(frozen=True, kw_only=True)
class Participant:
    """A client whose update counts.

    client: the device's id; in a simulation the client's number.
    lag: how many versions were made since the one that it trained on.
    loss: the mean that it saw while training; None where it measured none, or where only sums over clients may be seen.
    """

    client: str
    lag: int = 0
    loss: FiniteOrNull | None = None


class ParticipantView(Response):
    """A client whose update counts in a round."""

    client: Title
    lag: Whole = 0
    loss: FiniteNumber | None = None
