"""Ed25519 keys and signatures (RFC 8032), each signature bound to what it was made for by a domain prefix.

What is signed is ``domain || message``: a signature over a task can never pass for one over a plan. Requests are signed
by HTTP's own rules (`coterie.protocol.http_signatures`), whose bytes begin with a quotation mark, as no domain does.
Public keys travel as 64 lower-case hex digits, signatures as standard base64 (88 characters). Verification
raises, it never returns a boolean to forget.
"""

import base64
import binascii
import os
import re
import stat
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from coterie import errors
from coterie.protocol.files import create_durably

PUBLIC_PATTERN = r"^[0-9a-f]{64}$"
SIGNATURE_PATTERN = r"^[A-Za-z0-9+/]{86}==$"


class Domain(Enum):
    """What a signature is for."""

    PLAN = b"coterie plan v1\n"
    TASK = b"coterie task v1\n"
    SECURE_KEYS = b"coterie secure keys v1\n"
    SECURE_SURVIVORS = b"coterie secure survivors v1\n"
    LEDGER = b"coterie ledger v1\n"
    ENDORSEMENT = b"coterie endorsement v1\n"
    SESSION_KEYS = b"coterie session keys v1\n"
    SESSION_REPORT = b"coterie session report v1\n"


@dataclass(frozen=True, repr=False)
class SigningKey:
    """A private key.

    Its repr shows the public half only; `save` and `load` are the only ways out of and into memory.
    """

    _private: Ed25519PrivateKey = field(repr=False)

    @staticmethod
    def generate() -> "SigningKey":
        """A fresh key from the system's random source."""
        return SigningKey(Ed25519PrivateKey.generate())

    @staticmethod
    def from_seed(seed: bytes) -> "SigningKey":
        """The key of a 32-byte seed (RFC 8032 section 5.1.5); for test vectors and for keys held in other stores."""
        if len(seed) != 32:
            raise errors.ConfigurationError(f"An Ed25519 seed has 32 bytes; got {len(seed)}.", code="key_invalid")
        return SigningKey(Ed25519PrivateKey.from_private_bytes(seed))

    @property
    def public(self) -> str:
        """The public key as 64 hex digits."""
        return self._private.public_key().public_bytes_raw().hex()

    def sign(self, domain: Domain, message: bytes) -> str:
        """The signature over ``domain || message`` in base64. Deterministic (RFC 8032)."""
        return base64.b64encode(self._private.sign(domain.value + message)).decode("ascii")

    def sign_bytes(self, message: bytes) -> bytes:
        """The 64 bytes of the signature over a message that names its own purpose, as the base of RFC 9421 does."""
        return self._private.sign(message)

    def save(self, path: Path) -> None:
        """Write the key as PKCS#8 PEM, mode 0600, durably.

        Never overwrites: raises errors.ConfigurationError if `path` exists.
        """
        if not create_durably(path, self._pem(), mode=0o600):
            raise errors.ConfigurationError(
                f"{path} exists already.",
                hint="Move it away first: an overwritten key cannot be recovered.",
                code="key_exists",
            )

    @staticmethod
    def load(path: Path) -> "SigningKey":
        """Read a key that `save` wrote.

        Raises errors.ConfigurationError: ``key_missing``, ``key_unreadable``, ``key_exposed`` (other users may read
        it), ``key_invalid``.
        """
        try:
            with path.open("rb") as file:
                exposed = os.name == "posix" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
                data = file.read(65_536)
        except FileNotFoundError:
            raise errors.ConfigurationError(f"There is no key file {path}.", code="key_missing") from None
        except OSError as error:
            raise errors.ConfigurationError(
                f"The key file {path} cannot be read: {error.strerror}.",
                hint="Run as the user that owns it, and check that it is a file.",
                code="key_unreadable",
            ) from None
        try:
            private = serialization.load_pem_private_key(data, password=None)
        except (ValueError, TypeError, binascii.Error):
            private = None
        if not isinstance(private, Ed25519PrivateKey):
            raise errors.ConfigurationError(
                f"{path} is not an unencrypted Ed25519 private key in PKCS#8 PEM.",
                hint="Restore it from a copy, or move it away and let a new key be made.",
                code="key_invalid",
            )
        if exposed:
            raise errors.ConfigurationError(
                f"Other users may read the key file {path}.", hint=f"Run: chmod 600 {path}", code="key_exposed"
            )
        return SigningKey(private)

    @staticmethod
    def load_or_create(path: Path) -> "SigningKey":
        """The key at `path`, made there when absent.

        Of several racing processes all get the same key. The folder must exist.
        """
        try:
            return SigningKey.load(path)
        except errors.ConfigurationError as error:
            if error.reason != "key_missing":
                raise
        create_durably(path, SigningKey.generate()._pem(), mode=0o600)
        return SigningKey.load(path)

    def _pem(self) -> bytes:
        return self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public})"

    def __reduce__(self) -> str:
        raise TypeError("a SigningKey is not serialised; use save and load")


def verify(public: str, domain: Domain, message: bytes, signature: str) -> None:
    """Return only if `signature` is that of `public` over ``domain || message``.

    Raises errors.Unauthenticated (``signature_invalid``), also for a key or signature of the wrong form.
    """
    if not re.fullmatch(PUBLIC_PATTERN, public) or not re.fullmatch(SIGNATURE_PATTERN, signature):
        raise errors.Unauthenticated(
            "A public key must be 64 hex digits, and a signature 88 characters of base64.",
            code="signature_invalid",
        )
    try:
        verify_bytes(public, domain.value + message, base64.b64decode(signature, validate=True))
    except (errors.Unauthenticated, ValueError):
        raise errors.Unauthenticated(
            f"The signature is not that of key {public[:16]}… over this {domain.name.lower()}.",
            code="signature_invalid",
        ) from None


def verify_bytes(public: str, message: bytes, signature: bytes) -> None:
    """Return only if `signature` (64 bytes) is that of `public` over a message that names its own purpose.

    Raises errors.Unauthenticated (``signature_invalid``), also for a key or signature of the wrong form.
    """
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise errors.Unauthenticated(
            f"The signature is not that of key {public[:16]}….", code="signature_invalid"
        ) from None


def sign_plan(key: SigningKey, plan: str) -> str:
    """The signature over a plan's id (64 hex digits: the SHA-256 of its canonical manifest)."""
    return key.sign(Domain.PLAN, plan.encode("ascii"))


def verify_plan(public: str, plan: str, signature: str) -> None:
    """Raises errors.Unauthenticated unless `signature` is that of `public` over the plan's id."""
    verify(public, Domain.PLAN, plan.encode("utf-8"), signature)
