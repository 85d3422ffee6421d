"""The chain: each entry's digest covers the entry before, so what is changed, moved or left out shows.

A digest is SHA-256 over canonical JSON (RFC 8785) of everything else in the entry; the coordinator signs it (Ed25519,
domain ``coterie ledger v1``). Whoever holds the key can still write a chain anew from its beginning: compare the
newest digest with one that you noted earlier.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from coterie import errors
from coterie.privacy.ledger.events import LedgerEvent
from coterie.privacy.ledger.state import Folding, State
from coterie.protocol.canonical import GENESIS, digest_of, sha256_hex
from coterie.protocol.conversion import from_json, to_json
from coterie.protocol.signing import Domain, SigningKey, verify

_COMMITMENT = b"coterie ledger noise v1\n"


def commitment(seed: bytes) -> str:
    """What a ledger says of a noise seed: SHA-256 under a domain of its own, which tells nothing of 32 random bytes."""
    return sha256_hex(_COMMITMENT + seed)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One event in its place.

    sequence: from 1.
    at: milliseconds since 1970 by the coordinator's clock, never less than the entry's before.
    digest: hex.
    signature: base64, over the digest's text.
    """

    population: str
    sequence: int
    at: int
    event: Annotated[LedgerEvent, Field(discriminator="kind")]
    previous: str
    digest: str
    signature: str

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Entry":
        """The entry that these JSON values say. Raises errors.InputError (``ledger_entry``)."""
        return from_json(Entry, value, code="ledger_entry")


def _content_digest(entry: Entry) -> str:
    content = to_json(entry)
    return digest_of({name: content[name] for name in content if name not in ("digest", "signature")})


@dataclass(frozen=True, kw_only=True)
class Head:
    """The end of a population's chain: the newest entry's place and digest; 0 and `GENESIS` before the first."""

    population: str
    sequence: int = 0
    digest: str = GENESIS


def link(head: Head, at: int, event: LedgerEvent, key: SigningKey) -> Entry:
    """The entry that follows a chain's end."""
    entry = Entry(
        population=head.population,
        sequence=head.sequence + 1,
        at=at,
        event=event,
        previous=head.digest,
        digest="",
        signature="",
    )
    digest = _content_digest(entry)
    return replace(entry, digest=digest, signature=key.sign(Domain.LEDGER, digest.encode("ascii")))


@dataclass(frozen=True)
class Broken:
    """The first entry at which a chain does not hold, by its place, and why."""

    sequence: int
    why: str


@dataclass(frozen=True)
class ChainVerdict:
    """What a chain says: the state up to where it holds, its end there, and the first break, if any."""

    state: State
    head: Head
    broken: Broken | None


def check(
    entries: Iterable[Entry], *, head: Head, state: State | None = None, public: str | None = None
) -> ChainVerdict:
    """Go along a population's chain.

    head, state: where to begin, at the very beginning with ``Head(population=...)`` and None.
    public: the coordinator's key, hex; where given every signature must verify. A chain holds when each entry has the
        next place, names the digest before, has the digest of its content, is signed, and may follow what came before.
    """
    start = state or State()
    folding = Folding(at=start.at, limits=dict(start.limits), charges=dict(start.charges))
    for entry in entries:
        why = _fault(head, entry, public)
        if why is None:
            try:
                folding.take(entry.at, entry.event)
            except errors.Conflict as error:
                why = error.message
        if why is not None:
            return ChainVerdict(folding.state, head, Broken(head.sequence + 1, why))
        head = Head(population=head.population, sequence=entry.sequence, digest=entry.digest)
    return ChainVerdict(folding.state, head, None)


def proven(entry: Entry, public: str) -> str | None:
    """Why one entry by itself is not what the holder of a key wrote; None where it is.

    public: the key, hex.
    """
    rules = (
        (entry.digest == _content_digest(entry), "its digest does not match its content: it was changed"),
        (_signed(public, entry), "its signature is not the coordinator's"),
    )
    return next((why for holds, why in rules if not holds), None)


def _fault(head: Head, entry: Entry, public: str | None) -> str | None:
    rules = (
        (entry.population == head.population, f"it is of the population {entry.population[:64]!r}"),
        (entry.sequence == head.sequence + 1, f"its number is {entry.sequence}, so entries are missing or moved"),
        (entry.previous == head.digest, "it does not follow the previous entry"),
        (entry.digest == _content_digest(entry), "its digest does not match its content: it was changed"),
        (public is None or _signed(public, entry), "its signature is not the coordinator's"),
    )
    return next((why for holds, why in rules if not holds), None)


def _signed(public: str, entry: Entry) -> bool:
    try:
        verify(public, Domain.LEDGER, entry.digest.encode("ascii"), entry.signature)
    except errors.CoterieError:
        return False
    return True
