"""Dividing one data set among virtual clients. A partition is a list of row indices, one array per client.

Laws of every partition here: each row goes to exactly one client; no client is empty; the same arguments give the same
partition.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import ConfigurationError

Rows = NDArray[np.int64]


def iid(count: int, clients: int, *, seed: int) -> list[Rows]:
    """Rows 0 .. count-1 shuffled and cut into parts whose sizes differ by at most one.

    Raises ConfigurationError when there are more clients than rows.
    """
    _check(count, clients)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(count)
    return [np.sort(part) for part in np.array_split(order, clients)]


def dirichlet(labels: NDArray[Any], clients: int, *, alpha: float, seed: int, minimum: int = 1) -> list[Rows]:
    """Label skew: for each class its rows are shuffled and cut among the clients in proportions drawn from
    Dirichlet(alpha, ..., alpha).

    That is the convention of Yurochkin et al. (2019, "Bayesian nonparametric federated learning of neural networks")
    and Li et al. (2022, NIID-Bench, "distribution-based label imbalance"): proportions per class over clients, so
    clients differ in size as well as in labels. Hsu et al. (2019) draw class proportions per client instead. alpha:
    small is skewed, large is even.

    labels: one per row, any values. minimum: rows that every client has at least; clients below it are given rows of
    the largest ones at the end, which changes the draw as little as can be, and never fails (redrawing until it fits
    may).
    Raises ConfigurationError for an alpha that is not positive and finite, or fewer than ``clients * minimum`` rows.
    """
    values = np.asarray(labels).reshape(-1)
    _check(len(values), clients, minimum)
    if not (np.isfinite(alpha) and alpha > 0):
        raise ConfigurationError(f"alpha must be positive and finite, got {alpha}.")
    generator = np.random.Generator(np.random.PCG64(seed))
    parts: list[list[int]] = [[] for _ in range(clients)]
    for value in np.unique(values):
        rows = generator.permutation(np.flatnonzero(values == value))
        shares = generator.dirichlet(np.full(clients, alpha))
        cuts = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        for part, piece in zip(parts, np.split(rows, cuts), strict=True):
            part.extend(piece.tolist())
    _fill(parts, minimum)
    return [np.sort(np.array(part, np.int64)) for part in parts]


def split(arrays: Mapping[str, NDArray[Any]], parts: Sequence[Rows]) -> list[dict[str, NDArray[Any]]]:
    """The rows of each part, by array name."""
    return [{name: array[part] for name, array in arrays.items()} for part in parts]


def _fill(parts: list[list[int]], minimum: int) -> None:
    for part in parts:
        while len(part) < minimum:
            part.append(max(parts, key=len).pop())


def _check(count: int, clients: int, minimum: int = 1) -> None:
    if clients < 1 or minimum < 1:
        raise ConfigurationError(f"clients and minimum must be at least 1, got {clients} and {minimum}.")
    if count < clients * minimum:
        raise ConfigurationError(
            f"{count} rows cannot give {clients} clients {minimum} row{'s' if minimum > 1 else ''} each."
        )
