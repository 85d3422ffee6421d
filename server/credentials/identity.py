"""What a coordinator signs and seals with."""

from dataclasses import dataclass

from coterie.protocol.signing import SigningKey
from coterie.server.credentials.nonces import Nonces
from coterie.server.credentials.tokens import Token


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The coordinator's key and first token.

    key: signs tasks and the privacy ledgers.
    first_token: the admin token, if this start made it.
    """

    key: SigningKey
    nonces: Nonces
    first_token: Token | None
