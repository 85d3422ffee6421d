"""How a role's program of these tests comes to its session, however often it was killed before."""

from coterie.client_sdk.party.party import Party, Session
from coterie.errors import ConfigurationError, Unreachable


def joined(party: Party, url: str, token: str) -> Session:
    """The session that the party has joined: now, or in an earlier program."""
    while True:
        try:
            return party.session()
        except ConfigurationError:
            pass
        try:
            party.join(url, token)
        except Unreachable:
            continue
