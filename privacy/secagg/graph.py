"""Who is whose neighbour: a Harary graph, the ring in which each place is joined to the k/2 places on either side."""

import hashlib
from collections.abc import Sequence

from coterie import errors

_ORDER = b"coterie/secagg/v1/order\n"


def neighbours(position: int, clients: int, degree: int) -> tuple[int, ...]:
    """The places next to `position` among `clients`, in ascending order; everyone else where degree = clients - 1.

    Symmetric: q is a neighbour of p exactly if p is one of q. Share number x (from 1) of p's secrets goes to the x-th
    of these. Raises errors.ArgumentValueError (``secagg_parameters``) for an impossible place or degree.
    """
    if not 0 <= position < clients:
        raise _refused(f"There is no place {position} among {clients} clients")
    if degree == clients - 1:
        return tuple(place for place in range(clients) if place != position)
    if degree % 2 or not 2 <= degree < clients - 1:
        raise _refused(f"A ring of {clients} clients has an even degree below {clients - 1}, not {degree}")
    reach = degree // 2
    return tuple(sorted((position + step) % clients for step in range(-reach, reach + 1) if step))


def order(keys: Sequence[bytes], attempt: str) -> tuple[int, ...]:
    """The roster's order: element p is the index in `keys` of the client at place p.

    Places follow SHA-256(domain ‖ attempt ‖ all keys, sorted ‖ the client's own), so they depend on the fresh keys of
    every client, and neither the order of arrival nor one client alone sets them.
    keys: the public keys of each client, joined, all of one length.
    Raises errors.ArgumentValueError (``secagg_parameters``) where two clients have the same.
    """
    if len(set(keys)) != len(keys):
        raise _refused("Two clients of one attempt have the same keys")
    common = hashlib.sha256(_ORDER + hashlib.sha256(attempt.encode("utf-8")).digest() + b"".join(sorted(keys))).digest()
    return tuple(sorted(range(len(keys)), key=lambda index: hashlib.sha256(common + keys[index]).digest()))


def _refused(message: str) -> errors.ArgumentValueError:
    return errors.ArgumentValueError(f"{message}.", code="secagg_parameters")
