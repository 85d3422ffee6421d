"""How a client's sums are bounded before they leave it under differential privacy, and what that does to an answer.

Each sum has a weight, so that what one row adds has a norm of at most 1. A client whose weighted sums v are longer than
the clip C shortens all of them by one factor, and says so in a sum of its own:

    sent    c · (min(1, C/‖v‖) · v,  s · C · [‖v‖ > C]),      c = 1/√(1 + s²),      s = `SAID`

whose norm is at most C. So a client of at most C rows counts with all of them. One of more rows keeps its shares and
its mean, and counts like one of C rows, or of more where its rows spread over many sums (n rows spread evenly over k
bins have the norm n/√k). What is asked is therefore answered for rows that count for min(1, C/‖v‖) each: exactly what
was asked where no client is shortened, and about how many were, the answer says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.analytics.checks import number, whole
from coterie.aggregation.analytics.noise import NOISE
from coterie.aggregation.reducers import Vector

if TYPE_CHECKING:
    from coterie.compute.array import Array

SAID = 0.25
"""How much of the clip tells that a client was shortened: the noise on all sums grows by 3 % for it."""
MOST_ELEMENTS = 1 << 20
_ROUNDING = 1e-5
"""Of norms in float32: a client this little above the clip is not called shortened."""


LEAST = 4.0
"""Deviations of its noise that a number must have before anything is divided by it."""


@dataclass(frozen=True, kw_only=True)
class QueryNoise:
    """What a query must know to be noised.

    clip: in rows; 0 where there is no noise.
    noise: its deviation on every sum as it is sent.
    elements: how many numbers a row of the column has.
    """

    clip: float = 0.0
    noise: float = 0.0
    elements: int = 1

    @staticmethod
    def read(query: str, clip: float, noise: float, elements: float) -> QueryNoise:
        """Raises errors.ExperimentError (``query_invalid``)."""
        return QueryNoise(
            clip=number(query, "clip", clip, least=0, most=1e9),
            noise=number(query, "noise", noise, least=0, most=1e30),
            elements=whole(query, "elements", elements, least=1, most=MOST_ELEMENTS),
        )

    @staticmethod
    def from_settings(query: str, settings: npt.NDArray[np.float32]) -> QueryNoise:
        """The inverse of `settings`. Raises errors.InputError (``query_mismatch``) for what is none."""
        if settings.shape == (3,) and (settings > 0).all():
            noise, clip, elements = (float(value) for value in settings)
            try:
                return QueryNoise.read(query, clip, noise, elements)
            except errors.ExperimentError:
                pass
        raise errors.InputError(
            f"The noise that this version states does not match the query {query}.",
            hint="Read the version of the experiment that was made from this very query, as its coordinator keeps it.",
            code="query_mismatch",
        )

    @property
    def parameters(self) -> dict[str, float]:
        """Those of a rule; none without noise."""
        return {"clip": self.clip, "noise": self.noise, "elements": float(self.elements)} if self.clip else {}

    @property
    def settings(self) -> dict[str, npt.NDArray[np.float32]]:
        """What versions say of it; nothing without noise."""
        return {NOISE: np.array([self.noise, self.clip, self.elements], np.float32)} if self.clip else {}

    def require_hope(self, query: str, clients: int) -> None:
        """Raises errors.ExperimentError (``query_hopeless``) where not even sums to which all clients add the most that
        they may are more than noise.
        """
        most = self.clip * clients / math.sqrt(1 + SAID**2)
        if self.clip and LEAST * self.noise > most:
            raise errors.ExperimentError(
                f"The query {query} was not asked: {clients} clients with a clip of {self.clip:g} rows contribute "
                f"at most {most:,.0f} rows, and the noise of this epsilon is {self.noise:,.0f}, so the noise "
                "would hide every answer.",
                hint="Ask more clients, or use a larger epsilon. A larger clip raises the noise in proportion.",
                code="query_hopeless",
            )

    def bound(self, weights: Vector) -> QueryBound | None:
        """The bound of sums with these weights ``[size]``, with which what one row adds has a norm of at most 1, and
        the last of which is of no row; None without noise.
        """
        return QueryBound(self, weights / math.sqrt(1 + SAID**2)) if self.clip else None


@dataclass(frozen=True, eq=False)
class QueryBound:
    """See the module's docstring.

    weights: ``[size]``, c among them; the last is 0, and its place holds what is said of shortening. A sum whose weight
        is 0 is not sent.
    """

    terms: QueryNoise
    weights: Vector

    def encode(self, sums: Array) -> Array:
        """What a client sends of its sums, ``[size]``."""
        from coterie.compute import numpy as xp

        weighted = sums * xp.asarray(self.weights.astype(np.float32))
        norm, most = xp.sqrt(xp.sum(weighted * weighted)), self.terms.clip / math.sqrt(1 + SAID**2)
        said = np.zeros(self.weights.size, np.float32)
        said[-1] = SAID * most
        kept = weighted * (most / xp.maximum(norm, most))
        return kept + xp.where(norm > most * (1 + _ROUNDING), xp.asarray(said), 0.0)

    def decode(self, total: Vector) -> Vector:
        """The sums of all clients, from those of what they sent: of rows, and last of clients that were shortened."""
        return np.divide(total, self._scales, out=np.zeros_like(total), where=self._scales > 0)

    def deviations(self) -> Vector:
        """Of the noise on each of the sums that are `received`, ``[size]``."""
        noise = np.full(self.weights.size, self.terms.noise)
        return np.divide(noise, self._scales, out=np.zeros_like(noise), where=self._scales > 0)

    @property
    def _scales(self) -> Vector:
        scales = self.weights.copy()
        scales[-1] = SAID * self.terms.clip / math.sqrt(1 + SAID**2)
        return scales

    def shortened(self, total: Vector) -> Shortened:
        """What an answer says of it.

        total: as `received`.
        """
        return Shortened(self.terms.clip, float(total[-1]), float(self.deviations()[-1]))


@dataclass(frozen=True)
class Shortened:
    """How many clients count for less than all of their rows.

    clip: a client of at most so many rows never does.
    clients: about how many do.
    error: its standard error. Where there are some, sums are too small by what was cut off, and means and shares are of
        rows that count the less, the more of them their client has.
    """

    clip: float
    clients: float
    error: float


def answered_total(query: str, total: float, deviation: float) -> float:
    """The total, which is more than noise. Raises errors.ExperimentError (``query_unanswered``)."""
    if total < LEAST * deviation:
        raise errors.ExperimentError(
            f"The query {query} has no usable answer: about {total:.0f} rows answered, and the noise has a standard "
            f"deviation of {deviation:.3g} rows.",
            hint="Ask more clients, or use less noise.",
            code="query_unanswered",
        )
    return total
