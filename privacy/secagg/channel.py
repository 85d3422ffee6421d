"""Sealed boxes between two clients, which the coordinator carries: AES-256-GCM (NIST SP 800-38D).

A box is ``nonce (12) ‖ ciphertext ‖ tag (16)``. Its key comes from both clients' channel keys, its nonce is
random, and its associated data names attempt, phase, sender and recipient: it opens nowhere but where it is meant to.
"""

from os import urandom

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from coterie import errors
from coterie.privacy.entropy import Entropy, draw
from coterie.privacy.secagg.context import AttemptContext

NONCE_BYTES = 12
"""How many bytes a box is longer than what it holds."""


def associated(context: AttemptContext, phase: str, sender: int, recipient: int) -> bytes:
    """The associated data of a box: the context, the phase, and the places of sender and recipient in the roster."""
    return context.bind("box", phase.encode("ascii"), sender, recipient)


def seal(key: bytes, plaintext: bytes, data: bytes, entropy: Entropy = urandom) -> bytes:
    """The box of a plaintext under a 32-byte key of `keys.agree`.

    data: from `associated`.
    """
    nonce = draw(entropy, NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plaintext, data)


def unseal(key: bytes, box: bytes, data: bytes) -> bytes:
    """What a box holds.

    Raises errors.InputError (``secagg_box``) unless it was sealed with this key for these associated data and every bit
    of it is as it was.
    """
    try:
        return AESGCM(key).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], data)
    except (InvalidTag, ValueError):
        raise errors.InputError(
            f"A sealed box of {len(box)} bytes cannot be decrypted: it was changed on its way, or made by or for "
            "another client, attempt or phase.",
            hint="Start another attempt; if it happens again, one of the clients or the coordinator is not honest.",
            code="secagg_box",
        ) from None
