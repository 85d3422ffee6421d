"""Key pairs and the secrets that two clients share: X25519 (RFC 7748), then HKDF-SHA256 (RFC 5869).

Each client makes two fresh pairs for every attempt: the mask key, whose private half is shared among its neighbours and
is opened if it drops out, and the channel key, which seals those shares and is never opened.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import urandom

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from coterie import errors
from coterie.privacy.secagg.context import Context
from coterie.privacy.secagg.entropy import Entropy, draw

KEY_BYTES = 32
_NO_SALT = bytes(32)
_HASH = "sha256"  # by name: a third faster than by its function, and masks are many


@dataclass(frozen=True)
class KeyPair:
    """An X25519 pair: 32 raw bytes each. The private half stays out of the repr."""

    private: bytes = field(repr=False)
    public: bytes

    @staticmethod
    def generate(entropy: Entropy = urandom) -> "KeyPair":
        """A fresh pair."""
        return KeyPair.from_private(draw(entropy, KEY_BYTES))

    @staticmethod
    def from_private(private: bytes) -> "KeyPair":
        """The pair of 32 private bytes. Raises errors.ArgumentValueError (``secagg_key_invalid``) of others."""
        return KeyPair(private, _private(private).public_key().public_bytes_raw())


@dataclass(frozen=True, order=True)
class Place:
    """A client's place in the roster, and one of its public keys."""

    position: int
    public: bytes


def pair_info(context: Context, purpose: str, one: Place, other: Place) -> bytes:
    """What the common secret of two clients is bound to: the context, both places and both public keys, lower first."""
    low, high = sorted((one, other))
    return context.bind(purpose, low.position, high.position, low.public, high.public)


def agree(private: bytes, public: bytes, info: bytes) -> bytes:
    """The 32 bytes that the holders of two pairs share: HKDF-SHA256 of the X25519 secret, without salt, for `info`.

    Symmetric. Raises errors.ArgumentValueError (``secagg_key_invalid``) for keys that are no 32 bytes, and for a public
    key that makes the secret all zeros whatever the private one is (RFC 7748 section 6.1).
    """
    return agree_each(private, [(public, info)])[0]


def agree_each(private: bytes, others: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """`agree` with each (public, info); the private key, whose public half takes as long as a secret, is read once."""
    own = _private(private)
    return [expand(hmac.digest(_NO_SALT, _exchange(own, public), _HASH), info, 32) for public, info in others]


def derive(secret: bytes, info: bytes, length: int = 32) -> bytes:
    """HKDF-SHA256 (RFC 5869) of a secret, without salt. length: at most 8160."""
    return expand(hmac.digest(_NO_SALT, secret, _HASH), info, length)


def expand(key: bytes, info: bytes, length: int) -> bytes:
    """HKDF-Expand with SHA-256 (RFC 5869 section 2.3) of a uniform 32-byte key."""
    if not 0 < length <= 255 * 32:
        raise errors.ArgumentValueError(f"HKDF-SHA256 expands to 1 to 8160 bytes, not {length}.")
    block, out = b"", b""
    while len(out) < length:
        block = hmac.digest(key, block + info + bytes([len(out) // 32 + 1]), _HASH)
        out += block
    return out[:length]


def _private(private: bytes) -> X25519PrivateKey:
    if len(private) != KEY_BYTES:
        raise _invalid(f"An X25519 private key has {KEY_BYTES} bytes, not {len(private)}")
    return X25519PrivateKey.from_private_bytes(private)


def _exchange(private: X25519PrivateKey, public: bytes) -> bytes:
    if len(public) != KEY_BYTES:
        raise _invalid(f"An X25519 public key has {KEY_BYTES} bytes, not {len(public)}")
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise _invalid(f"The public key {public.hex()} has small order: it shares no secret with anyone") from None


def _invalid(message: str) -> errors.ArgumentValueError:
    return errors.ArgumentValueError(
        f"{message}.", hint="The other side sent a key that no honest client makes.", code="secagg_key_invalid"
    )
