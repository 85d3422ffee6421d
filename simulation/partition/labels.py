"""Label skew: clients see the classes in different proportions, or not at all."""

from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from coterie.simulation.partition.checks import check, column, fill, real, refuse, require, stream, whole
from coterie.simulation.partition.value import Partition

Shortage = Literal["fill", "redraw"]
MOST_DRAWS = 1000


def dirichlet(
    labels: NDArray[Any], clients: int, *, alpha: float, seed: int, minimum: int = 1, shortage: Shortage = "fill"
) -> Partition:
    """Label skew: for each class its rows are shuffled and cut among the clients in proportions drawn from
    Dirichlet(alpha, ..., alpha).

    That is the convention of Yurochkin et al. (2019, "Bayesian nonparametric federated learning of neural networks")
    and Li et al. (2022, NIID-Bench, "distribution-based label imbalance"): proportions per class over clients, so
    clients differ in size as well as in labels. Hsu et al. (2019) draw class proportions per client instead
    (`dirichlet_clients`).
    alpha: small is skewed, large is even.

    labels: one per row, any values.
    minimum: rows that every client has at least.
    shortage: how that is reached. ``fill``: clients below it are given rows of the largest ones at the end, which
        changes the draw as little as can be, and never fails; ``redraw``: everything is drawn again until it fits, as
        NIID-Bench does with a minimum of 10.
    Raises ConfigurationError (``partition_invalid``, ``partition_empty``) for an alpha that is not positive and finite,
    fewer than ``clients * minimum`` rows, or no fit in 1000 draws.
    """
    values = column(labels, "labels")
    check(len(values), clients, minimum)
    alpha = _checked_alpha(alpha)
    require(shortage in get_args(Shortage), f"shortage must be fill or redraw, not {shortage!r}")
    generator = stream(seed)
    for _ in range(MOST_DRAWS):
        parts = _draw_parts(values, clients, alpha, generator)
        if shortage == "fill":
            fill(parts, minimum)
        if min(map(len, parts)) >= minimum:
            return Partition.of(
                "dirichlet", len(values), parts, labels=values, seed=seed, alpha=alpha, minimum=minimum,
                shortage=shortage, convention="proportions of each class over clients",
            )  # fmt: skip
    raise refuse(
        f"{MOST_DRAWS} draws with alpha {alpha} left some client with fewer than {minimum} rows",
        hint='Use a larger alpha, fewer clients, or shortage="fill".',
    )


def dirichlet_clients(
    labels: NDArray[Any], clients: int, *, alpha: float, seed: int, sizes: Sequence[int] | None = None
) -> Partition:
    """Label skew: each client draws its class proportions from Dirichlet(alpha * prior), where the prior is the share
    of each class in the data, and then its rows one by one from the classes; a class that is used up is left out.

    That is the convention of Hsu et al. (2019, "Measuring the effects of non-identical data distribution for federated
    visual classification"), of TensorFlow Federated and, with given sizes, of Acar et al. (2021, FedDyn; Flower calls
    it inner Dirichlet): proportions per client over classes, so all clients have the size that they should.
    With ten even classes, alpha 1 here is a concentration of 0.1 for each class; alpha → 0 gives clients of one class.

    sizes: rows of each client; None for sizes that differ by at most one. Rows beyond their sum are left out.
    Raises ConfigurationError (``partition_invalid``, ``partition_empty``).
    """
    values = column(labels, "labels")
    check(len(values), clients)
    alpha = _checked_alpha(alpha)
    given = cast(object, [len(part) for part in np.array_split(values, clients)] if sizes is None else sizes)
    require(isinstance(given, Sequence | np.ndarray), f"sizes must be one for each of the {clients} clients")
    wanted = [whole(size, "a client's size") for size in cast(Sequence[object], given)]
    require(
        len(wanted) == clients and min(wanted) >= 1 and sum(wanted) <= len(values),
        f"sizes must be {clients} whole numbers of at least 1 with a sum of at most {len(values)}",
    )
    generator = stream(seed)
    classes, counts = np.unique(values, return_counts=True)
    pools: list[list[int]] = [generator.permutation(np.flatnonzero(values == value)).tolist() for value in classes]
    with np.errstate(over="ignore"):
        concentration = alpha * counts / counts.sum()
    shares = _shares(generator, concentration, alpha, clients)
    parts: list[list[int]] = [[] for _ in range(clients)]
    for client in map(int, generator.permutation(clients)):
        while len(parts[client]) < wanted[client]:
            left = np.array([len(pool) for pool in pools])
            odds = shares[client] * (left > 0)
            # A client whose classes are all used up takes from what there is.
            odds = odds if odds.sum() > 0 else left.astype(np.float64)
            # What is drawn of a class beyond its rows is drawn again without it, as drawing one by one would.
            drawn = generator.multinomial(wanted[client] - len(parts[client]), odds / odds.sum())
            for pool, number in zip(pools, np.minimum(drawn, left).tolist(), strict=True):
                parts[client].extend(pool[:number])
                del pool[:number]
    return Partition.of(
        "dirichlet_clients", len(values), parts, labels=values, seed=seed, alpha=alpha,
        convention="proportions of each client over classes",
    )  # fmt: skip


def shards(labels: NDArray[Any], clients: int, *, seed: int, per_client: int = 2) -> Partition:
    """Rows sorted by label and cut into ``clients * per_client`` shards of even size; each client gets ``per_client``
    of them at random.

    With 2, that is the pathological non-iid split of McMahan et al. (2017, "Communication-efficient learning of deep
    networks from decentralized data"): most clients see two classes. Raises ConfigurationError (``partition_empty``).
    """
    values = column(labels, "labels")
    require(whole(per_client, "per_client") >= 1, f"per_client must be at least 1, not {per_client}")
    check(len(values), clients, per_client)
    cut = np.array_split(np.argsort(values, kind="stable"), clients * per_client)
    dealt = stream(seed).permutation(len(cut)).reshape(clients, per_client)
    parts = [np.concatenate([cut[number] for number in hand]) for hand in dealt.tolist()]
    return Partition.of("shards", len(values), parts, labels=values, seed=seed, per_client=per_client)


def pathological(labels: NDArray[Any], clients: int, *, classes: int, seed: int) -> Partition:
    """Every client has rows of exactly ``classes`` classes, and every class is cut evenly among the clients that have
    it.

    That is "#C = k" of Li et al. (2022, NIID-Bench): the first class of client k is the k-th, in turn, so that no class
    is without a client when there are as many clients as classes; the others are drawn. With fewer clients, rows of
    classes that nobody has are left out, and counted in the manifest.
    Raises ConfigurationError: ``partition_invalid`` for more classes than there are, ``partition_empty`` when a class
    has fewer rows than clients.
    """
    values = column(labels, "labels")
    check(len(values), clients)
    found = np.unique(values)
    require(1 <= whole(classes, "classes") <= len(found), f"classes must be in 1..{len(found)}, not {classes}")
    generator = stream(seed)
    holders: list[list[int]] = [[] for _ in found]
    for client in range(clients):
        first = client % len(found)
        others = generator.choice([at for at in range(len(found)) if at != first], classes - 1, replace=False)
        for at in (first, *others.tolist()):
            holders[at].append(client)
    parts: list[list[int]] = [[] for _ in range(clients)]
    for at, having in enumerate(holders):
        if having:
            rows = generator.permutation(np.flatnonzero(values == found[at]))
            check(len(rows), len(having), what=f"rows of class {found[at]}")
            for client, piece in zip(having, np.array_split(rows, len(having)), strict=True):
                parts[client].extend(piece.tolist())
    return Partition.of("pathological", len(values), parts, labels=values, seed=seed, classes=classes)


def _draw_parts(values: NDArray[Any], clients: int, alpha: float, generator: np.random.Generator) -> list[list[int]]:
    parts: list[list[int]] = [[] for _ in range(clients)]
    for value in np.unique(values):
        rows = generator.permutation(np.flatnonzero(values == value))
        shares = _shares(generator, np.full(clients, alpha), alpha)
        cuts = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        for part, piece in zip(parts, np.split(rows, cuts), strict=True):
            part.extend(piece.tolist())
    return parts


def _shares(
    generator: np.random.Generator, concentration: NDArray[np.float64], alpha: float, size: int | None = None
) -> NDArray[np.float64]:
    """Draws from a Dirichlet distribution; refused where their sums overflow, since what is left then is no share."""
    shares = generator.dirichlet(concentration, size)
    fair = bool((np.abs(shares.sum(axis=-1) - 1) < 1e-6).all())
    require(fair, f"an alpha of {alpha} is beyond the range of floats")
    return shares


def _checked_alpha(alpha: object) -> float:
    number = real(alpha, "alpha")
    require(bool(np.isfinite(number) and number > 0), f"alpha must be positive and finite, got {number}")
    return number
