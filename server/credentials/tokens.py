"""Bearer tokens: ``coterie_<kind>_<id>_<secret>``. The secret has 256 random bits, so a plain SHA-256 digest of it is
safe to keep.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final, cast, get_args

from coterie.errors import Unauthenticated
from coterie.protocol.control import AnyTokenKind
from coterie.protocol.ids import TOKEN, new_id

PREFIX = f"{TOKEN}_"
_KINDS: Final[tuple[AnyTokenKind, ...]] = get_args(AnyTokenKind)
_FORM = re.compile(rf"coterie_({'|'.join(_KINDS)})_([0-9a-f]{{32}})_([A-Za-z0-9-]{{43}})")
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-"


@dataclass(frozen=True)
class Token:
    """A token in clear. Shown once; its text never enters a log or a row."""

    kind: AnyTokenKind
    id: str
    secret: str

    @property
    def text(self) -> str:
        """What the holder presents."""
        return f"coterie_{self.kind}_{self.id.removeprefix(PREFIX)}_{self.secret}"

    @property
    def digest(self) -> str:
        """What the coordinator keeps."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def __repr__(self) -> str:
        return f"Token({self.kind}, {self.id}, …)"


def new_token(kind: AnyTokenKind, identifier: str | None = None) -> Token:
    """A fresh token, or a fresh secret for an existing one."""
    return Token(kind, identifier or new_id(TOKEN), "".join(secrets.choice(_ALPHABET) for _ in range(43)))


def parse_token(text: str) -> Token:
    """Take a token apart. Raises Unauthenticated without repeating the text."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise Unauthenticated(
            "The bearer token does not have the form coterie_<kind>_<id>_<secret>.",
            hint="Copy the whole token, once, without line breaks.",
        )
    return Token(_KINDS[_KINDS.index(cast(AnyTokenKind, match[1]))], PREFIX + match[2], match[3])


def matches(token: Token, digest: str) -> bool:
    """Whether the secret has this digest, in constant time."""
    return hmac.compare_digest(token.digest, digest)
