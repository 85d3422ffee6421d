"""What an attack is: how a client's rows are poisoned, and what its update becomes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.protocol.arrays import AnyArray

Updates = npt.NDArray[np.float32]
Forge = Callable[[Updates, Updates, np.random.Generator], Updates]
"""(honest updates ``[n, d]``, the attackers' own ``[f, d]``, a generator) → what the attackers send ``[f, d]``."""
Poison = Callable[[AnyArray, AnyArray, int], tuple[AnyArray, AnyArray]]
"""(inputs ``[B, ...]``, labels ``[B]``, classes) → the rows that an attacker trains on."""


def as_they_are(features: AnyArray, labels: AnyArray, classes: int) -> tuple[AnyArray, AnyArray]:
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
