"""What an attack is: how a client's rows are poisoned, and what its update becomes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Updates = npt.NDArray[np.float32]
Forge = Callable[[Updates, Updates, np.random.Generator], Updates]
"""(honest updates ``[n, d]``, the attackers' own ``[f, d]``, a generator) → what the attackers send ``[f, d]``."""
Rows = npt.NDArray[Any]
Poison = Callable[[Rows, Rows, int], tuple[Rows, Rows]]
"""(inputs ``[B, ...]``, labels ``[B]``, classes) → the rows that an attacker trains on."""


def as_they_are(features: Rows, labels: Rows, classes: int) -> tuple[Rows, Rows]:
    """Rows without poison."""
    return features, labels


@dataclass(frozen=True)
class Attack:
    """name.

    forge: what the attackers send, who see all honest updates and act together.
    poison: what they train on.

    forge draws from its generator alone, so an attack is repeated by its seed. It changes none of its arguments.
    """

    name: str
    forge: Forge
    poison: Poison = as_they_are
