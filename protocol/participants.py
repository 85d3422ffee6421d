"""Who took part in a round, as its record lists it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.protocol.wire import Response, Whole


@dataclass(frozen=True, kw_only=True)
class Participant:
    """A client whose update counts.

    client: the device's id; in a simulation the client's number.
    lag: how many versions were made since the one that it trained on.
    loss: the mean that it saw while training; None where it measured none, or where only sums over clients may be seen.
    """

    client: str
    lag: int = 0
    loss: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields by name, as JSON values."""
        loss = self.loss if self.loss is not None and math.isfinite(self.loss) else None
        return {"client": self.client, "lag": self.lag, "loss": loss}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Participant":
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError."""
        loss = value.get("loss")
        lag = int(value.get("lag") or 0)
        return Participant(client=str(value["client"]), lag=lag, loss=None if loss is None else float(loss))


class ParticipantView(Response):
    """A client whose update counts in a round."""

    client: str
    lag: Whole = 0
    loss: float | None = None
