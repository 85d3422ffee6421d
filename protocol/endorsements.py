"""Endorsements: somebody other than the coordinator says that a device's identity key is that of a real device.

The coordinator enrols whom it likes. An **issuer** is an Ed25519 key that it does not hold: an operator's, kept
offline, or that of a service which has checked a device's attestation. The issuer signs for one identity key and one
**subject**: an opaque name of the person, site or piece of hardware behind it. Whoever counts endorsed devices counts
distinct subjects, so one subject with many keys is one.

An endorsement does not expire, since devices trust no clock but their own: to take one back, use another issuer's key.
"""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field, StringConstraints

from coterie.errors import Unauthenticated
from coterie.protocol.canonical import canonical_json
from coterie.protocol.signing import Domain, SigningKey, verify
from coterie.protocol.wire import PublicKey, Response, Signature

SUBJECT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$"
Issuers = Annotated[tuple[PublicKey, ...], Field(min_length=1, max_length=64)]
Subject = Annotated[str, StringConstraints(pattern=SUBJECT_PATTERN)]


class Endorsement(Response):
    """One issuer's word for one device.

    identity: the device's Ed25519 key.
    issuer: the issuer's.
    signature: over identity and subject, in the domain ENDORSEMENT.
    """

    identity: PublicKey
    subject: Subject
    issuer: PublicKey
    signature: Signature

    @staticmethod
    def issue(key: SigningKey, *, identity: str, subject: str) -> "Endorsement":
        """Sign for an identity. Raises pydantic.ValidationError for a key or subject of another form."""
        message = _message(identity, subject)
        signature = key.sign(Domain.ENDORSEMENT, message)
        return Endorsement(identity=identity, subject=subject, issuer=key.public, signature=signature)

    def verify(self) -> None:
        """Raise errors.Unauthenticated (``signature_invalid``) unless the issuer signed just this."""
        verify(self.issuer, Domain.ENDORSEMENT, _message(self.identity, self.subject), self.signature)

    def is_for(self, identity: str, issuers: Iterable[str]) -> bool:
        """Whether one of these issuers really endorses this identity."""
        if self.identity != identity or self.issuer not in issuers:
            return False
        try:
            self.verify()
        except Unauthenticated:
            return False
        return True


def _message(identity: str, subject: str) -> bytes:
    return canonical_json({"identity": identity, "subject": subject})
