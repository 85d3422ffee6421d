"""The key that two parties of a session share: X25519 between fresh keys, each signed by its party's identity.

The derived key is bound to the session's terms and to both offers as a whole. So two parties that were told other
roles, stages or limits, or another partner's identity, share no key, and no message between them opens.
"""

from coterie import errors
from coterie.privacy.secagg.keys import KeyPair, agree, is_canonical
from coterie.protocol.session import KeyOffer, SessionTerms
from coterie.protocol.signing import SigningKey
from coterie.protocol.wire import read_message

DOMAIN = b"coterie/session/v1/"


def offer(terms: SessionTerms, sender: str, recipient: str, identity: SigningKey, pair: KeyPair) -> KeyOffer:
    """The signed offer of a party's fresh key to one partner.

    sender, recipient: roles.
    """
    return KeyOffer(
        session=terms.session,
        terms=terms.digest,
        sender=sender,
        recipient=recipient,
        identity=identity.public,
        key=pair.public.hex(),
    ).signed(identity)


def read_offer(body: bytes, terms: SessionTerms, sender: str, recipient: str) -> KeyOffer:
    """A partner's offer, checked in all but who its identity is: that is for pins.

    sender: the partner's role.
    recipient: the reader's own.
    Raises errors.InputError (``message_invalid``, ``session_terms``, ``session_key``), errors.Unauthenticated
    (``signature_invalid``).
    """
    found = read_message(KeyOffer, body, limit=1 << 14)
    try:
        found.verify()
    except errors.Unauthenticated:
        raise errors.Unauthenticated(
            f"The key offer in the place of {sender} is not signed by the identity in it.",
            hint="End the session and make another; the coordinator changed the offer, or the partner is not honest.",
            code="signature_invalid",
        ) from None
    if found.session != terms.session or (found.sender, found.recipient) != (sender, recipient):
        raise errors.InputError(
            f"The key offer in the place of {sender} for {recipient} is a different one: of {found.sender} for "
            f"{found.recipient} in session {found.session}.",
            hint="End the session and make another; the coordinator mixed up its messages, or is not honest.",
            code="session_terms",
        )
    if found.terms != terms.digest:
        raise errors.InputError(
            f"Role {sender} was given other terms of session {terms.session} than this party: {found.terms[:16]}…, not "
            f"{terms.digest[:16]}….",
            hint="End the session and make another; the coordinator gave its parties different terms.",
            code="session_terms",
        )
    if not is_canonical(bytes.fromhex(found.key)):
        raise errors.InputError(
            f"The key that role {sender} offers is not a valid X25519 key.",
            hint="Ask the partner which software it runs; no honest software makes such a key.",
            code="session_key",
        )
    return found


def pair_key(private: bytes, own: KeyOffer, partner: KeyOffer) -> bytes:
    """The 32 bytes that both parties derive from each other's offers, the same on both sides.

    HKDF-SHA256 without salt of the X25519 secret, for ``DOMAIN ‖ "pair" ‖ line feed ‖`` both offers as canonical JSON,
    that of the role whose name is lower first, each after its length in four big-endian bytes.
    """
    low, high = sorted((own, partner), key=lambda each: each.sender)
    parts = (each.signed_bytes() for each in (low, high))
    info = DOMAIN + b"pair\n" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return agree(private, bytes.fromhex(partner.key), info)
