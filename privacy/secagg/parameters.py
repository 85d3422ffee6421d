"""How many neighbours a client has (k), and how many shares open a secret (t), from the size of the roster.

The promise: up to ⌊corrupt · n⌋ of the n clients may pool what they know with the coordinator, and up to ⌊dropout · n⌋
may vanish; yet, with k and t from here, but for a chance of 2**-40 nobody's vector can be told from noise (security),
and but for a chance of 2**-20 the sum can be unmasked (correctness). Places in the ring are random (`graph.order`), so
the corrupt and the dropped among k neighbours follow the hypergeometric distribution. The method is that of Bell et al.
(CCS 2020, section 3), by three events:

1. the honest, remaining clients fall apart into two groups, each of which would then be summed for itself: two runs of
   k/2 places on the ring are all corrupt or dropped. By the union bound at most n(n-k-1)/2 · C(bad, k) / C(n, k);
2. some client has more than c corrupt neighbours: at most n · P[X > c]; then t > c keeps its secrets;
3. some client has fewer than a remaining neighbours: at most n · P[Y < a]; then t ≤ a opens what must be opened.

In the mode ``consistent`` the coordinator may lie, and show different lists of survivors to different neighbours. It
would need t answers for each of two lists, of which only corrupt neighbours give both: 2t > k + c forbids it.

Below 60 clients, or where no ring does, everyone is everyone's neighbour, and counts are certain instead of probable.
All comparisons are between whole numbers, so every language finds the same k and t.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import comb, floor
from typing import Literal, TypeAlias

from coterie import errors

Mode: TypeAlias = Literal["semi_honest", "consistent"]
"""What is asked of the coordinator: to follow the protocol, or only to be honest about who the clients are."""

SECURITY_BITS = 40
CORRECTNESS_BITS = 20
FEWEST_CLIENTS = 3
LEAST_CLIENTS = 5
"""A client that is told nothing else takes part in no sum of fewer clients."""
COMPLETE_BELOW = 60
MOST_CLIENTS = 1 << 20
MOST_NEIGHBOURS = 1024
# Raises the fractions, so that 0.1 of 1000 is 100 whichever way the double nearest to 0.1 errs.
_NUDGE = 1e-14


@dataclass(frozen=True)
class Parameters:
    """What an attempt of `clients` clients needs: `neighbours` of each, and the `threshold` of shares, for the
    fractions `corrupt` and `dropout` and the `mode`. Only `parameters` makes good ones: recompute, then compare.
    """

    clients: int
    neighbours: int
    threshold: int
    corrupt: float
    dropout: float
    mode: Mode

    @property
    def complete(self) -> bool:
        """Whether everyone is everyone's neighbour."""
        return self.neighbours == self.clients - 1

    @property
    def fewest_survivors(self) -> int:
        """How many of the clients remain, at the least, for the promise of correctness to hold."""
        return self.clients - share_of(self.dropout, self.clients)


@lru_cache(maxsize=256)
def parameters(clients: int, *, corrupt: float, dropout: float, mode: Mode) -> Parameters:
    """The smallest k, and for it the smallest t, that keep the promise of this module.

    corrupt, dropout: fractions from 0 to less than 1.
    Raises errors.ArgumentValueError (``secagg_parameters``) where none do, saying why.
    """
    if not FEWEST_CLIENTS <= clients <= MOST_CLIENTS:
        raise _refused(f"Secure aggregation is among {FEWEST_CLIENTS} to {MOST_CLIENTS} clients, not {clients}")
    if not (0 <= corrupt < 1 and 0 <= dropout < 1):
        raise _refused(f"The fractions corrupt and dropout lie in [0, 1); they are {corrupt} and {dropout}")
    bad, dropped = share_of(corrupt, clients), share_of(dropout, clients)
    if clients >= COMPLETE_BELOW:
        for degree in range(2, min(clients - 1, MOST_NEIGHBOURS + 1), 2):
            found = _on_ring(clients, bad, dropped, degree, mode)
            if found is not None:
                return Parameters(clients, degree, found, corrupt, dropout, mode)
    if clients - 1 <= MOST_NEIGHBOURS:
        found = _complete(clients, bad, dropped, mode)
        if found is not None:
            return Parameters(clients, clients - 1, found, corrupt, dropout, mode)
    raise _refused(
        f"No secure aggregation among {clients} clients in the mode {mode} withstands {bad} corrupt and "
        f"{dropped} dropped ones"
    )


def share_of(fraction: float, clients: int) -> int:
    """The whole number of clients that a fraction stands for: ⌊(fraction + 1e-14) · clients⌋ in doubles."""
    return floor((fraction + _NUDGE) * clients)


def _on_ring(clients: int, bad: int, dropped: int, degree: int, mode: Mode) -> int | None:
    """The threshold with which a ring of this even degree keeps the promise, or None."""
    lost = bad + dropped
    pairs = clients * (clients - degree - 1)  # twice the number of ways to cut the ring in two places
    if degree <= lost and pairs * comb(lost, degree) << SECURITY_BITS + 1 >= 2 * comb(clients, degree):
        return None
    corrupt = _quantile(_ways_to_hold(clients, bad, degree), clients << SECURITY_BITS + 1)
    alive = degree - _quantile(_ways_to_hold(clients, dropped, degree), clients << CORRECTNESS_BITS)
    threshold = max(2, corrupt + 1)
    if mode == "consistent":
        threshold = max(threshold, (degree + corrupt) // 2 + 1)
    return threshold if threshold <= alive else None


def _complete(clients: int, bad: int, dropped: int, mode: Mode) -> int | None:
    """The threshold where all are neighbours: a majority of them where the drop-out allows one, or None."""
    degree = clients - 1
    alive = degree - dropped  # of a survivor; a dropped client has one remaining neighbour more
    least = max(2, bad + 1)
    threshold = max(least, min(alive, degree // 2 + 1))
    if mode == "consistent":
        threshold = max(threshold, (degree + bad) // 2 + 1)
    return threshold if threshold <= alive else None


def _ways_to_hold(clients: int, marked: int, degree: int) -> list[int]:
    """In how many ways `degree` of the clients hold x of the marked ones, for x from 0 to `degree`."""
    chosen, others = _binomials(marked, degree), _binomials(clients - marked, degree)
    return [chosen[x] * others[degree - x] for x in range(degree + 1)]


def _binomials(total: int, most: int) -> list[int]:
    """The binomials C(total, 0) to C(total, most)."""
    return list(accumulate(range(most), lambda ways, x: ways * (total - x) // (x + 1), initial=1))


def _quantile(ways: list[int], odds: int) -> int:
    """The least x that is exceeded with a chance below 1 / odds."""
    total, above = sum(ways), 0
    for x in range(len(ways) - 1, 0, -1):
        if (above + ways[x]) * odds >= total:
            return x
        above += ways[x]
    return 0


def _refused(message: str) -> errors.ArgumentValueError:
    return errors.ArgumentValueError(
        f"{message}.",
        hint="Let more clients take part, or count on smaller fractions of corrupt and dropped ones.",
        code="secagg_parameters",
    )
