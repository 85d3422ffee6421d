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
from coterie.privacy.entropy import Entropy, draw
from coterie.privacy.secagg.context import AttemptContext

KEY_BYTES = 32
_FIELD = (1 << 255) - 19
_SMALL_ORDER = frozenset(
    (
        0,
        1,
        _FIELD - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    )
)
"""The coordinates of all points of order 1, 2, 4 and 8 on Curve25519 and on its twist."""
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
class RosterKey:
    """A client's place in the roster, and one of its public keys."""

    position: int
    public: bytes


def is_canonical(public: bytes) -> bool:
    """Whether it is the one spelling of a key that shares a secret with others: 32 bytes, little-endian, of a
    coordinate below 2**255 - 19, so with bit 255 clear, that is of no point of small order.

    X25519 ignores bit 255 and reduces what is larger (RFC 7748 section 5), so the same key has other spellings. They
    are refused, since whoever compares keys compares bytes.
    """
    coordinate = int.from_bytes(public, "little")
    return len(public) == KEY_BYTES and coordinate < _FIELD and coordinate not in _SMALL_ORDER


def check_public(public: bytes) -> None:
    """Raise errors.ArgumentValueError (``secagg_key_invalid``) unless the key `is_canonical`."""
    if len(public) != KEY_BYTES:
        raise _invalid(f"An X25519 public key has {KEY_BYTES} bytes, not {len(public)}")
    if not is_canonical(public):
        raise _invalid(
            f"The public key {public.hex()} is not a valid X25519 key: it has small order and shares no secret with "
            "anyone, or it is not in canonical form"
        )


def pair_info(context: AttemptContext, purpose: str, one: RosterKey, other: RosterKey) -> bytes:
    """What the common secret of two clients is bound to: the context, both places and both public keys, lower first."""
    low, high = sorted((one, other))
    return context.bind(purpose, low.position, high.position, low.public, high.public)


def agree(private: bytes, public: bytes, info: bytes) -> bytes:
    """The 32 bytes that the holders of two pairs share: HKDF-SHA256 of the X25519 secret, without salt, for `info`.

    Symmetric. Raises errors.ArgumentValueError (``secagg_key_invalid``) for keys that are no 32 bytes, and for a public
    key that is not canonical, or would make the secret all zeros whatever the private one is (RFC 7748 section 6.1).
    """
    return agree_each(private, [(public, info)])[0]


def agree_each(private: bytes, others: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """`agree` with each (public, info); the private key, whose public half takes as long as a secret, is read once."""
    own = _private(private)
    return [expand(hmac.digest(_NO_SALT, _exchange(own, public), _HASH), info, 32) for public, info in others]


def derive(secret: bytes, info: bytes, length: int = 32) -> bytes:
    """HKDF-SHA256 (RFC 5869) of a secret, without salt.

    length: at most 8160.
    """
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
    check_public(public)
    return private.exchange(X25519PublicKey.from_public_bytes(public))


def _invalid(message: str) -> errors.ArgumentValueError:
    return errors.ArgumentValueError(
        f"{message}.", hint="The other side sent a key that no honest client makes.", code="secagg_key_invalid"
    )
