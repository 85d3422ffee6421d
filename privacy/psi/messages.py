"""What two parties of a private set intersection say to each other: a few words first, then items in buckets.

A message is ``magic (12) ‖ version (1) ‖ kind (1) ‖ bucket (4) ‖ items (4) ‖ job (32) ‖ body``, numbers big-endian. The
job is a digest of what both said first, fresh numbers among it, so that a message of another job, or that is moved to
another place of this one, is known. All pass sealed between the parties (`coterie.privacy.session.stream`).
"""

import hashlib
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from coterie import errors
from coterie.protocol.canonical import canonical_json
from coterie.protocol.conversion import from_text, to_json

VERSION: Final = 1
MAGIC: Final = b"coterie-psi\n"
HEAD_BYTES: Final = len(MAGIC) + 2 + 4 + 4 + 32
BUCKET: Final = 1 << 16
"""Items of a bucket; the last one has those that are left."""
MOST_IDS: Final = 1 << 28
"""More than a mailbox could hold buckets of."""
NO_JOB: Final = bytes(32)
_JOB_DOMAIN: Final = b"coterie/psi/v1/job\n"

PsiResult = Literal["rows", "count"]
"""What who is told is told: which of its own rows are common, or only how many are."""


class PsiKind(IntEnum):
    """Kinds of messages, by the byte that says which."""

    HELLO = 1
    POINTS = 2
    TAGS = 3
    ENOUGH = 4
    FEW = 5
    LINKS = 6


WIDTHS: Final = {PsiKind.POINTS: 32, PsiKind.TAGS: 16, PsiKind.LINKS: 4}
"""Bytes of an item, of the kinds that come in buckets."""


@dataclass(frozen=True, kw_only=True)
class PsiTerms:
    """What both parties must say alike.

    columns: how many make up an id.
    rules: how ids are normalised (`coterie.privacy.psi.ids`).
    result: what is told.
    told: the role that is told, or ``""`` for both.
    """

    columns: Annotated[int, Field(ge=1, le=64)]
    rules: tuple[str, ...]
    result: PsiResult
    told: str = ""


@dataclass(frozen=True, kw_only=True)
class PsiHello:
    """What a party says first, before anything is made of its ids.

    role: its own.
    ids: how many it has.
    minimum: fewer in common than this are never shown to it or to the partner; the larger of both holds.
    fresh: 16 bytes that nobody used before.
    """

    role: str
    terms: PsiTerms
    ids: Annotated[int, Field(ge=1, le=MOST_IDS)]
    minimum: Annotated[int, Field(ge=1, le=MOST_IDS)]
    fresh: bytes

    def to_bytes(self) -> bytes:
        """Canonical JSON, which the job's digest is over."""
        return canonical_json(to_json(self))


@dataclass(frozen=True, kw_only=True)
class PsiHead:
    """What a message is, without its body.

    bucket: its number among those of its kind, from 0.
    items: how many it holds.
    """

    kind: PsiKind
    job: bytes = NO_JOB
    bucket: int = 0
    items: int = 0

    def to_bytes(self) -> bytes:
        """The first bytes of the message."""
        numbers = self.bucket.to_bytes(4, "big") + self.items.to_bytes(4, "big")
        return MAGIC + bytes((VERSION, self.kind)) + numbers + self.job


@dataclass(frozen=True)
class PsiMessage:
    """A message whole."""

    head: PsiHead
    body: bytes = field(repr=False)

    def to_bytes(self) -> bytes:
        """As it is sent."""
        return self.head.to_bytes() + self.body


def most_bytes() -> int:
    """The longest message that may come."""
    return HEAD_BYTES + BUCKET * max(WIDTHS.values())


def read_psi_message(data: bytes) -> PsiMessage:
    """A message, of which all is checked that can be without knowing the job.

    Raises errors.InputError (``psi_message``).
    """
    head = read_psi_head(data)
    body = data[HEAD_BYTES:]
    width = WIDTHS.get(head.kind)
    if width is not None and (head.items > BUCKET or len(body) != head.items * width):
        raise refused_message(f"a bucket of {head.items} {head.kind.name.lower()} has {len(body)} bytes")
    return PsiMessage(head, body)


def read_psi_head(data: bytes) -> PsiHead:
    """The head of a message, whatever follows it. Raises errors.InputError (``psi_message``)."""
    if len(data) < HEAD_BYTES or not data.startswith(MAGIC):
        raise refused_message("it is no message of this protocol")
    version, kind = data[len(MAGIC)], data[len(MAGIC) + 1]
    if version != VERSION:
        raise refused_message(f"it is of version {version}, and this program speaks version {VERSION}")
    if kind not in {*PsiKind}:
        raise refused_message(f"version {VERSION} has no messages of kind {kind}")
    numbers = data[len(MAGIC) + 2 : len(MAGIC) + 10]
    return PsiHead(
        kind=PsiKind(kind),
        job=data[len(MAGIC) + 10 : HEAD_BYTES],
        bucket=int.from_bytes(numbers[:4], "big"),
        items=int.from_bytes(numbers[4:], "big"),
    )


def read_hello(message: PsiMessage) -> PsiHello:
    """What the partner said first. Raises errors.InputError (``psi_message``)."""
    found = from_text(PsiHello, message.body, code="psi_message")
    if len(found.fresh) != 16 or found.to_bytes() != message.body:
        raise refused_message("its first words are not written as they must be")
    return found


def job_of(one: PsiHello, other: PsiHello) -> bytes:
    """The digest of what both said first, the lower role's first: 32 bytes."""
    low, high = sorted((one, other), key=lambda each: each.role)
    parts = (low.to_bytes(), high.to_bytes())
    return hashlib.sha256(_JOB_DOMAIN + b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()


def refused_message(what: str) -> errors.InputError:
    """The error for a message that is not what must come now."""
    return errors.InputError(
        f"The partner sent a message that does not fit: {what}.",
        hint="Ask the partner which program and version it runs, and align in a new session or another stage.",
        code="psi_message",
    )
