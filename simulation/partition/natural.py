"""Natural partitions: the data says who each row belongs to."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.simulation.partition.checks import check, column, require, stream, whole
from coterie.simulation.partition.value import Partition


def natural(owners: NDArray[Any], *, minimum: int = 1) -> Partition:
    """One client for each distinct owner (a writer, a speaker, a hospital), in the order of their sorted names.

    owners: one per row. Owners with fewer than ``minimum`` rows are left out, with their rows; the manifest counts
        them.
    Raises ConfigurationError (``partition_empty``) when nobody is left.
    """
    require(whole(minimum, "minimum") >= 1, f"minimum must be at least 1, not {minimum}")
    names, places = np.unique(column(owners, "owners"), return_inverse=True)
    groups = _by_place(places.reshape(-1), len(names))
    kept = [number for number, rows in enumerate(groups) if len(rows) >= minimum]
    check(len(kept), 1, what="owners with enough rows")
    return Partition.of(
        "natural",
        len(places),
        [groups[number] for number in kept],
        names=tuple(str(names[number]) for number in kept),
        minimum=minimum,
    )


def natural_groups(owners: NDArray[Any], clients: int, *, seed: int) -> Partition:
    """Owners are dealt out whole among ``clients``, so that nobody's rows lie at two clients: the shuffled owners are
    cut into groups whose numbers of owners differ by at most one.

    Raises ConfigurationError (``partition_empty``) for more clients than owners.
    """
    names, places = np.unique(column(owners, "owners"), return_inverse=True)
    check(len(names), clients, what="owners")
    groups = _by_place(places.reshape(-1), len(names))
    dealt: list[Any] = np.array_split(stream(seed).permutation(len(names)), clients)
    parts = [np.concatenate([groups[int(number)] for number in group]) for group in dealt]
    return Partition.of("natural_groups", len(places), parts, seed=seed, owners=len(names))


def _by_place(places: NDArray[np.int64], count: int) -> list[NDArray[np.int64]]:
    order = np.argsort(places, kind="stable")
    return np.split(order, np.cumsum(np.bincount(places, minlength=count))[:-1])
