"""What every key, box and signature of an attempt is bound to.

Two clients that do not agree about anything here derive different masks, which do not cancel, and boxes that do not
open: a coordinator that shows one client another model, another roster or weaker parameters learns nothing by it
(Pasquini et al., "Eluding Secure Aggregation in Federated Learning via Model Inconsistency", CCS 2022).
"""

from dataclasses import dataclass
from functools import cached_property

from coterie.privacy.secagg.parameters import Parameters
from coterie.protocol.canonical import digest_of
from coterie.protocol.conversion import to_json

DOMAIN = b"coterie/secagg/v1/"
"""What every use of a key begins with; then its purpose, a line feed, the context's digest, and the use's own parts."""


@dataclass(frozen=True)
class AttemptContext:
    """What an attempt is about. Digests are 64 hex digits.

    attempt: its id.
    plan: SHA-256 of the signed plan.
    model: `roster.model_digest` of the tasks, which covers the version that was trained from and all that training
        depends on.
    spec: `roster.terms_digest`.
    parameters: of the attempt.
    roster: the digest of all clients' keys in their order.
    """

    attempt: str
    plan: str
    model: str
    spec: str
    parameters: Parameters
    roster: str

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the context as canonical JSON (RFC 8785): 32 bytes."""
        return bytes.fromhex(digest_of(to_json(self)))

    def bind(self, purpose: str, *parts: bytes | int) -> bytes:
        """The bytes that say what a key, box or signature is for: the HKDF info, the associated data, the message.

        ``DOMAIN ‖ purpose ‖ line feed ‖ digest ‖ parts``. A part of bytes is preceded by its length, and a whole number
        (a place in the roster) is itself; both as 4 big-endian bytes. So no two lists of parts of one purpose collide
        as long as each purpose has its own kinds of parts.
        """
        texts = (part.to_bytes(4, "big") if isinstance(part, int) else _length_prefixed(part) for part in parts)
        return b"".join((DOMAIN, purpose.encode("ascii"), b"\n", self.digest, *texts))


def _length_prefixed(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part
