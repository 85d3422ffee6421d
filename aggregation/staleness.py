"""What it means for an update to lag: how much less it weighs, and how far its base is from the model now. Pure.

An update that lags by s versions was trained on the model as it was s commits ago. Buffered rounds multiply its weight
by ``(1 + s) ** -exponent`` (Xie, Koyejo and Gupta, 2019, the polynomial s(t − τ); Nguyen et al., 2022, section 6).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coterie import errors


def freshness(lag: int, exponent: float) -> float:
    """``(1 + lag) ** -exponent``: 1 for an update of the newest version, falling with every version it lags.

    Raises errors.InputError for a negative lag or an exponent that is negative or not finite.
    """
    if lag < 0 or not 0 <= exponent < float("inf"):
        raise errors.InputError(
            f"A lag of {lag} versions and an exponent of {exponent} give no weight; both must be at least 0.",
            code="staleness_invalid",
        )
    return float((1 + lag) ** -exponent)


@dataclass(frozen=True, kw_only=True)
class Lags:
    """The updates of a buffer that were not trained on the round's own version; any other update lags by nothing.

    versions: by task, how many versions it lags.
    bases: by task, the file of the version that it was trained on.
    exponent: see `freshness`.
    """

    versions: Mapping[str, int] = field(default_factory=dict[str, int])
    bases: Mapping[str, Path] = field(default_factory=dict[str, Path])
    exponent: float = 0.5

    def freshness(self, task: str) -> float:
        """What the weight of a task's update is multiplied by."""
        return freshness(self.versions.get(task, 0), self.exponent)


NO_LAG = Lags()
