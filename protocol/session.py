"""Sessions: parties in roles, and the messages that they send one another through the coordinator's mailbox.

A session is made on the control plane (``/v1/sessions``). A party joins it with a token of its role, and then speaks on
the party plane (``/v1/party/…``) with signed requests, as a device does. What travels between two parties is sealed end
to end (`coterie.privacy.session`); the coordinator sees who writes to whom, when, and how much.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from coterie.errors import InputError
from coterie.protocol.canonical import canonical_json, digest_of, sha256_hex
from coterie.protocol.conversion import UnlessNone
from coterie.protocol.session_job import SessionJob
from coterie.protocol.signing import Domain, SigningKey, verify
from coterie.protocol.wire import (
    Detail,
    DisplayName,
    Identifier,
    Nonce,
    PartyId,
    Positive,
    PublicKey,
    Request,
    Response,
    Secret,
    SessionId,
    SessionWord,
    Sha256,
    Signature,
    Signed,
    Whole,
)

KEYS_STAGE: Final = "keys"
"""The stage in which two parties exchange the keys of a session. No session may declare it as its own."""
EVERYBODY: Final = "*"
"""The recipient of a bundle that holds something for each recipient; no role has this name."""
SEQUENCE_HEADER: Final = "Coterie-Sequence"
GIBIBYTE: Final = 1 << 30
DAY_S: Final = 24 * 3600

MOST_STAGES: Final = 64
_Stages = Annotated[tuple[SessionWord, ...], Field(min_length=1, max_length=MOST_STAGES)]


class PartyRole(Signed):
    """A place in a session for one party.

    name: by which messages are addressed.
    party: the organisation that takes it, the name under which its partners pin its key.
    """

    name: SessionWord
    party: DisplayName


class SessionTerms(Signed):
    """What all parties of a session must agree on; their keys are bound to its digest.

    session: its id.
    roles: who takes part.
    stages: the names under which messages are sent.
    message_limit: the most bytes of one sealed message.
    job: what they do together; None, and not there in JSON, where that is agreed elsewhere.
    """

    session: SessionId
    roles: Annotated[tuple[PartyRole, ...], Field(min_length=2, max_length=16)]
    stages: _Stages
    message_limit: Positive
    job: Annotated[SessionJob | None, UnlessNone] = None

    @property
    def digest(self) -> str:
        """SHA-256 of the terms as canonical JSON, hex; fields that this version does not know count."""
        return digest_of(self.model_dump(mode="json", exclude_unset=True))

    def role(self, name: str) -> PartyRole | None:
        """The role of this name, if there is one."""
        return next((role for role in self.roles if role.name == name), None)


class SessionCreate(Request):
    """A session as it is asked for.

    name: for people.
    roles: at least two, each with a name of its own.
    job: what the parties do together; the stages of its steps need not be named.
    stages: what is sent, by name: ``messages`` where neither these nor a job are given, beside those of the job else.
    message_limit: the most bytes of one sealed message.
    party_quota, session_quota: the most bytes that wait in the mailbox, of one sender and of all.
    message_ttl_s: after how many seconds an unread message expires.
    expires_s: after how many seconds the session ends.
    """

    name: DisplayName
    roles: Annotated[tuple[PartyRole, ...], Field(min_length=2, max_length=16)]
    stages: Annotated[_Stages | None, UnlessNone] = None
    job: Annotated[SessionJob | None, UnlessNone] = None
    message_limit: Annotated[int, Field(strict=True, ge=1, le=64 * GIBIBYTE)] = 4 * GIBIBYTE
    party_quota: Annotated[int, Field(strict=True, ge=1, le=1024 * GIBIBYTE)] = 8 * GIBIBYTE
    session_quota: Annotated[int, Field(strict=True, ge=1, le=1024 * GIBIBYTE)] = 16 * GIBIBYTE
    message_ttl_s: Annotated[int, Field(strict=True, ge=1, le=90 * DAY_S)] = 7 * DAY_S
    expires_s: Annotated[int, Field(strict=True, ge=1, le=366 * DAY_S)] = 30 * DAY_S

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [role.name for role in self.roles]
        if len(set(names)) != len(names):
            raise ValueError("each role must have its own name")
        parties = [role.party for role in self.roles]
        if len(set(parties)) != len(parties):
            raise ValueError("each role must be for another party, since keys are pinned by its name")
        stages = self.stages or ()
        if len(set(stages)) != len(stages):
            raise ValueError("each stage must have its own name")
        if KEYS_STAGE in stages:
            raise ValueError(f"the stage {KEYS_STAGE!r} is reserved for the exchange of keys")
        if self.job is not None:
            fault = self.job.unknown() or self.job.fault(names)
            if fault is not None:
                raise ValueError(fault)
        if len(self.all_stages) > MOST_STAGES:
            raise ValueError(f"there are more than {MOST_STAGES} stages")
        return self

    @property
    def all_stages(self) -> tuple[str, ...]:
        """Those of the job, then those that are asked for."""
        if self.job is None:
            return self.stages or ("messages",)
        return (*self.job.stages, *(stage for stage in self.stages or () if stage not in self.job.stages))


def session_request(values: Mapping[str, Any]) -> SessionCreate:
    """A session out of the fields of `SessionCreate`.

    Raises InputError (``session_invalid``), in the words in which the coordinator refuses it.
    """
    try:
        return SessionCreate.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(
            f"The session cannot be made: {place + ': ' if place else ''}{first['msg'].removeprefix('Value error, ')}.",
            hint="Names of roles and stages are lower-case letters, digits, - and _; see docs/sessions.md, and "
            "docs/vertical.md for jobs.",
            code="session_invalid",
        ) from None


SessionState = Literal["open", "ended"]


class PartyView(Response):
    """A party as the coordinator knows it. That word alone proves nothing: partners pin the key.

    role: its place.
    party: the organisation's name.
    public_key: its identity; null until it has joined.
    held_bytes: bytes that it has sent and nobody has acknowledged yet.
    """

    role: SessionWord
    party: DisplayName
    id: PartyId | None = None
    public_key: PublicKey | None = None
    joined_at: datetime | None = None
    last_seen_at: datetime | None = None
    held_bytes: Whole = 0


class SessionView(Response):
    """A session as it stands.

    reason: why it ended: `ended`, `expired`, or the role of the party that ended it.
    """

    id: SessionId
    name: DisplayName
    terms: SessionTerms
    state: SessionState
    reason: Identifier | None = None
    detail: Detail | None = None
    parties: tuple[PartyView, ...] = ()
    messages: Whole = 0
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None = None


class SessionCreated(SessionView):
    """A new session.

    tokens: by role, what its party joins with; the only time that they are shown.
    """

    tokens: dict[str, Secret]


class SessionEnd(Request):
    """Why a session ends.

    detail: for people, without data.
    """

    detail: Detail = ""


class PartyJoin(Request):
    """A party takes its role.

    public_key: its identity.
    """

    public_key: PublicKey


class PartyJoined(Response):
    """A party has its role.

    party: its id in this session.
    terms: what its keys are bound to.
    nonce: of its first signed request.
    """

    party: PartyId
    role: SessionWord
    name: DisplayName
    terms: SessionTerms
    nonce: Nonce


class MessageHeader(Signed):
    """Where a message belongs; its seal is bound to all of it.

    sequence: from 0 in each (stage, sender, recipient).
    """

    session: SessionId
    stage: SessionWord
    sender: SessionWord
    recipient: SessionWord
    sequence: Whole

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical_json(self.model_dump(mode="json"))


class KeyOffer(Signed):
    """A fresh X25519 key of one party for one other, signed by its identity key. It travels in the stage ``keys``.

    terms: digest of the session's terms as the sender was told them.
    key: 32 bytes, hex.
    identity: the sender's Ed25519 key, which the recipient must have pinned.
    """

    session: SessionId
    terms: Sha256
    sender: SessionWord
    recipient: SessionWord
    identity: PublicKey
    key: PublicKey
    signature: Signature | Literal[""] = ""

    def signed_bytes(self) -> bytes:
        """What the signature covers: the canonical JSON of every field but `signature` itself."""
        return canonical_json(self.model_dump(mode="json", exclude={"signature"}))

    def signed(self, key: SigningKey) -> "KeyOffer":
        """This offer under the identity's signature."""
        return self.model_copy(update={"signature": key.sign(Domain.SESSION_KEYS, self.signed_bytes())})

    def verify(self) -> None:
        """Raise errors.Unauthenticated (``signature_invalid``) unless `identity` signed it. Whether that is the
        partner's identity is for pins to say.
        """
        verify(self.identity, Domain.SESSION_KEYS, self.signed_bytes(), self.signature)

    def to_bytes(self) -> bytes:
        """Canonical JSON: the body of the message that carries it."""
        return canonical_json(self.model_dump(mode="json"))


class SendReceipt(Response):
    """The message is stored durably. ``already``: these very bytes had been accepted before."""

    state: Literal["accepted", "already"]
    sequence: Whole
    sha256: Sha256


class Acknowledged(Response):
    """The message's body is deleted. ``already``: it had been acknowledged before."""

    state: Literal["acknowledged", "already"]
    sequence: Whole


def fingerprint(public: str) -> str:
    """The fingerprint of an Ed25519 identity for people to compare: SHA-256 of its 32 bytes, in eight groups of eight
    hex digits.
    """
    digits = sha256_hex(bytes.fromhex(public))
    return "-".join(digits[first : first + 8] for first in range(0, len(digits), 8))
