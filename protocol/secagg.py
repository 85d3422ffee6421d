"""The messages of secure aggregation: what the clients of one attempt and the coordinator say to one another.

    keys        AdvertiseKeys   client → coordinator    "trained": two fresh public keys, signed by the device
    roster      Roster          coordinator → client    who takes part, at which place, with which keys
    shares      Shares          client → coordinator    sealed boxes for the neighbours, and a commitment
    shares      SharesFor       coordinator → client    the boxes that the neighbours sealed for this client
    masked      (the masked vector is uploaded as a file: `coterie.privacy.secagg.masked_file`)
    survivors   Survivors       coordinator → client    whose masked vectors arrived
    agreement   Agreement       client → coordinator    mode ``consistent``: that list, signed
    agreements  Agreements      coordinator → client    mode ``consistent``: the signatures of a quorum
    reveal      Reveal          client → coordinator    of every neighbour one share: of its own mask, or of its key
    outcome     Outcome         coordinator → client    whether there is a sum

A **place** is a client's position 0 … n-1 in the roster. What a message means, and every check of it, is in
`coterie.privacy.secagg.client` and `coterie.privacy.secagg.server`. Bytes travel as standard base64. Messages are
strict: a place is written in one way only, and no text of a message is ever part of an error.
"""

import base64
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BeforeValidator,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from coterie.protocol import ids
from coterie.protocol.endorsements import Endorsement
from coterie.protocol.noise import NoiseTerms
from coterie.protocol.secure_sections import SecureSection
from coterie.protocol.wire import (
    Detail,
    DeviceId,
    Identifier,
    Milliseconds,
    Positive,
    PublicKey,
    Request,
    Response,
    Sha256,
    Signature,
    Signed,
)

MOST_PLACES = 1 << 20
SHARE_BYTES = 36
"""A share: nine field elements of four bytes, little-endian."""

SecureMode: TypeAlias = Literal["semi_honest", "consistent"]
AttemptId = Annotated[str, StringConstraints(pattern=ids.pattern(ids.ATTEMPT))]
Fraction = Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)]
Clients = Annotated[int, Field(strict=True, ge=1, le=MOST_PLACES)]
AgreementKey = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""An X25519 public key in hex."""
Ciphertext = Annotated[str, StringConstraints(min_length=4, max_length=1024, pattern=r"^[A-Za-z0-9+/]+={0,2}$")]
"""A sealed box: AES-256-GCM of `coterie.privacy.secagg.channel`."""
KeyShare = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]{48}$")]
"""One share of a 32-byte secret: `SHARE_BYTES` bytes."""


def _place(value: object) -> object:
    """A place as JSON writes it for a key of an object: decimal digits without leading zeros."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 7:
        return int(value) if str(int(value)) == value else value
    return value


Place = Annotated[
    int,
    BeforeValidator(_place),
    Field(strict=True, ge=0, lt=MOST_PLACES),
    WithJsonSchema({"type": "integer", "minimum": 0, "exclusiveMaximum": MOST_PLACES}),
]


class SecureTerms(Signed):
    """What a signed task says of its attempt of secure aggregation.

    corrupt, dropout: the fractions of clients that may side with the coordinator, and that may vanish; with the size of
        the roster they fix the number of neighbours and the threshold (`coterie.privacy.secagg.parameters`), which
        every client computes for itself.
    min_clients: the fewest whose sum may be opened.
    max_clients, weight_cap: the most clients, and the largest weight of one, for which the rings of `sections` have
        room.
    noise: what each client adds to its vector, if anything.
    phase_ms: how long a phase may last.
    """

    attempt: AttemptId
    mode: SecureMode
    corrupt: Fraction
    dropout: Fraction
    min_clients: Clients
    max_clients: Clients
    weight_cap: Positive
    sections: Annotated[tuple[SecureSection, ...], Field(min_length=1, max_length=256)]
    noise: NoiseTerms | None
    phase_ms: Milliseconds

    @model_validator(mode="after")
    def _require_order(self) -> Self:
        if self.max_clients < self.min_clients:
            raise ValueError(f"max_clients {self.max_clients} must not be below min_clients {self.min_clients}")
        return self


OfOneEndorsed: TypeAlias = Annotated[Endorsement | None, Field(exclude_if=lambda endorsement: endorsement is None)]
"""A client without an endorsement says nothing of one."""


class AdvertiseKeys(Request):
    """Two fresh X25519 public keys, and the device's Ed25519 signature over them and what they are for
    (`coterie.privacy.secagg.roster.keys_message`).

    endorsement: of the device's identity, if it has one; it needs no other signature, and whoever takes it away has one
        endorsed client less.
    """

    mask_key: AgreementKey
    channel_key: AgreementKey
    signature: Signature
    endorsement: OfOneEndorsed = None


class RosterEntry(Response):
    """One client of the attempt.

    position: its place.
    device: its id.
    identity: the Ed25519 key of its enrolment.
    mask_key, channel_key: what it sent with its message ``keys``.
    signature: of its message ``keys``, by its identity.
    endorsement: of its identity; it is left out where there is none.
    """

    position: Place
    device: DeviceId
    identity: PublicKey
    mask_key: AgreementKey
    channel_key: AgreementKey
    signature: Signature
    endorsement: OfOneEndorsed = None


class Roster(Response):
    """Who takes part.

    clients: how many.
    neighbours, threshold: what the coordinator computed from that number; a client computes it too.
    position: the reader's own place.
    digest: of all clients' entries in order.
    entries: the reader's neighbours in the mode ``semi_honest``, all clients in ``consistent``, by ascending place.
    """

    clients: Clients
    neighbours: Clients
    threshold: Clients
    position: Place
    digest: Sha256
    entries: Annotated[tuple[RosterEntry, ...], Field(min_length=1, max_length=MOST_PLACES)]


class Shares(Request):
    """What a client deals: to each neighbour a share of its own mask's seed and one of its mask key, in a sealed box.

    commitment: the hash of the seed, to which the seed rebuilt from shares is held.
    """

    commitment: Sha256
    boxes: Annotated[dict[Place, Ciphertext], Field(min_length=1, max_length=MOST_PLACES)]


class SharesFor(Response):
    """The boxes for one client.

    boxes: by the place of the neighbour that sealed them; neighbours without one dropped out.
    """

    boxes: Annotated[dict[Place, Ciphertext], Field(max_length=MOST_PLACES)]


PackedPlaces = Annotated[str, StringConstraints(min_length=4, max_length=180_000, pattern=r"^[A-Za-z0-9+/]+={0,2}$")]
"""A set of places: one bit each."""


class Survivors(Response):
    """Whose masked vectors are in the sum; the same message for every client.

    alive: one bit for each place, bit p & 7 of byte p >> 3, in base64.
    dealt: who dealt shares, and so is part of the graph of masks, likewise.
    digest: of both (`coterie.privacy.secagg.survivors.survivors_digest`).
    """

    alive: PackedPlaces
    dealt: PackedPlaces
    digest: Sha256


class Agreement(Request):
    """The device's signature over the list of survivors that it was shown
    (`coterie.privacy.secagg.survivors.agreement_message`).
    """

    signature: Signature


class Agreements(Response):
    """The signatures of so many clients that no other list can have as many.

    signatures: by the place of the survivor that gave it.
    """

    signatures: Annotated[dict[Place, Signature], Field(max_length=MOST_PLACES)]


class Reveal(Request):
    """What opens the sum: of every survivor a share of its own mask's seed, of every client that dropped out after
    dealing its shares one of its mask key; each by the neighbour's place, and never both of one neighbour.
    """

    self_shares: Annotated[dict[Place, KeyShare], Field(max_length=MOST_PLACES)]
    mask_shares: Annotated[dict[Place, KeyShare], Field(max_length=MOST_PLACES)]

    def __repr__(self) -> str:
        return f"Reveal(self_shares of {len(self.self_shares)}, mask_shares of {len(self.mask_shares)})"

    __str__ = __repr__


class Outcome(Response):
    """What became of the attempt.

    cause, detail: why there is no sum.
    """

    state: Literal["open", "summed", "failed"]
    cause: Identifier | None = None
    detail: Detail = ""


class MessageReceipt(Response):
    """A client's message is kept. ``already``: this very message was kept before.

    next: the message that comes after it, where the client waited and it came in time.
    """

    state: Literal["accepted", "already"]
    next: dict[str, Any] | None = Field(default=None, exclude_if=lambda message: message is None)


ToClient: TypeAlias = Roster | SharesFor | Survivors | Agreements | Outcome


def to_base64(data: bytes) -> str:
    """Bytes as messages carry them."""
    return base64.b64encode(data).decode("ascii")


def from_base64(text: str) -> bytes | None:
    """The bytes again; None where the text is not just what `to_base64` writes (bits that count for nothing, say)."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return data if to_base64(data) == text else None
