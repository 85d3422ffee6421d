"""Quantity skew: clients differ in how many rows they have, and in nothing else."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from coterie.simulation.partition.checks import check, fill, real, require, stream, whole
from coterie.simulation.partition.value import Partition

Law = Literal["linear", "square", "exponential", "lognormal", "dirichlet"]
ClientShares = NDArray[Any]

_LAWS: Mapping[str, Callable[[int, float, np.random.Generator], ClientShares]] = {
    "linear": lambda clients, strength, draw: np.arange(1, clients + 1) ** strength,
    "square": lambda clients, strength, draw: np.arange(1, clients + 1) ** (2 * strength),
    "exponential": lambda clients, strength, draw: np.exp(strength * (np.arange(clients) - clients + 1.0)),
    "lognormal": lambda clients, strength, draw: draw.lognormal(0, strength, clients),
    "dirichlet": lambda clients, strength, draw: draw.dirichlet(np.full(clients, strength)),
}


def quantity(
    count: int, clients: int, *, law: Law, seed: int, strength: float = 1.0, minimum: int | None = None
) -> Partition:
    """Rows 0 .. count-1 shuffled and dealt out in sizes that follow a law.

    linear, square: the k-th client's share is proportional to ``k ** strength`` and ``k ** (2 * strength)``;
    exponential: to ``exp(strength * k)``; lognormal: drawn with sigma ``strength``; dirichlet: drawn from
    Dirichlet(strength, …), the quantity skew of Li et al. (2022, NIID-Bench).
    minimum: rows that every client has at least, taken from the largest; None for none, and then a law that leaves a
        client empty is refused.
    Raises ConfigurationError (``partition_empty``, ``partition_invalid``).
    """
    least = 0 if minimum is None else whole(minimum, "minimum")
    check(count, clients, least or 1)
    require(law in get_args(Law), f"law must be one of {', '.join(get_args(Law))}, not {law!r}")
    strength = real(strength, "strength")
    require(bool(np.isfinite(strength) and strength > 0), f"strength must be positive and finite, not {strength}")
    draw = stream(seed)
    with np.errstate(over="ignore"):
        shares = _LAWS[law](clients, strength, draw)
        everything = float(shares.sum())
    require(np.isfinite(everything) and everything > 0, f"a strength of {strength} is beyond the range of floats")
    cuts = np.round(np.cumsum(shares / everything)[:-1] * count).astype(np.int64)
    parts = [part.tolist() for part in np.split(draw.permutation(count), cuts)]
    fill(parts, least)
    return Partition.of("quantity", count, parts, seed=seed, law=law, strength=strength, minimum=minimum)
