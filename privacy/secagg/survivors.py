"""The list of survivors: whose masked vectors are in the sum, as bits; what is signed of it; and when it is refused."""

import hashlib
from collections.abc import Iterable

from coterie import errors
from coterie.privacy.secagg.context import AttemptContext
from coterie.privacy.secagg.parameters import Parameters, share_of
from coterie.protocol.secagg import SecureTerms, from_base64, to_base64


def to_bits(alive: Iterable[int], clients: int) -> str:
    """Places as a message carries them: one bit each, bit p & 7 of byte p >> 3, in base64."""
    bits = bytearray(-(-clients // 8))
    for place in alive:
        bits[place >> 3] |= 1 << (place & 7)
    return to_base64(bytes(bits))


def from_bits(text: str, clients: int) -> frozenset[int]:
    """The places again. Raises errors.SecureAggregationRefused (``secagg_survivors``) for another number of bits."""
    bits = from_base64(text) or b""
    if len(bits) != -(-clients // 8) or int.from_bytes(bits, "little") >> clients:
        raise errors.SecureAggregationRefused(
            f"A list of survivors among {clients} clients must have exactly {clients} bits.",
            hint="The coordinator sent a list that does not belong to this attempt; the attempt is over.",
            code="secagg_survivors",
        )
    return frozenset(place for place in range(clients) if bits[place >> 3] >> (place & 7) & 1)


def survivors_digest(context: AttemptContext, alive: str, dealt: str) -> str:
    """SHA-256 of survivors and of those who dealt shares (as a message carries them) in context, as 64 hex digits."""
    return hashlib.sha256(context.bind("survivors", alive.encode("ascii"), dealt.encode("ascii"))).hexdigest()


def agreement_message(context: AttemptContext, digest: str) -> bytes:
    """What a device signs in the domain SECURE_SURVIVORS: the list of survivors of just this attempt and roster."""
    return context.bind("agreement", bytes.fromhex(digest))


def fewest_survivors(terms: SecureTerms, parameters: Parameters, floor: int = 0) -> int:
    """The fewest clients whose sum may be opened.

    The terms' and the reader's own floor; and on a ring, where a smaller number could leave groups without a neighbour
    in common, what the computation of the neighbours counted on (event 1 of `parameters`).
    """
    least = max(terms.min_clients, floor)
    return least if parameters.complete else max(least, parameters.fewest_survivors)


def quorum(parameters: Parameters) -> int:
    """So many clients must sign one list that no other can have as many signatures.

    Honest clients sign one list, the ⌊corrupt · n⌋ others any number: 2 · quorum > n + ⌊corrupt · n⌋. A majority among
    neighbours would not do: on a ring, lists that differ only near two places can each have one everywhere.
    """
    return (parameters.clients + share_of(parameters.corrupt, parameters.clients)) // 2 + 1


def fallen_apart(alive: Iterable[int], parameters: Parameters) -> bool:
    """Whether the survivors are two groups of which no client of one is the neighbour of a client of the other.

    Each group would be a sum of its own. Chance does it rarely (`parameters`); a list may also be made that way. On the
    ring a gap of more than k/2 separates its two sides; a single one leaves the ring a line, which hangs together.
    """
    places = sorted(alive)
    if parameters.complete or not places:
        return False
    reach = parameters.neighbours // 2
    following = [*places[1:], places[0] + parameters.clients]
    return sum(after - place > reach for place, after in zip(places, following, strict=True)) > 1
