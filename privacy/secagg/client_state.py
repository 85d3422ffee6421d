"""What a client knows in an attempt, as a value: kept on disk between any two messages, never shown.

As JSON it holds secrets: keep it where nobody else reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, Literal

from coterie.privacy.secagg.context import AttemptContext
from coterie.privacy.secagg.endorsed import NO_ENDORSEMENT, EndorsementRule
from coterie.privacy.secagg.parameters import Parameters, parameters
from coterie.privacy.secagg.roster import context_of
from coterie.privacy.secagg.stored import restored
from coterie.protocol.secagg import RosterEntry, SecureTerms


class SecAggClientPhase(Enum):
    """What the client waits for; the value is what its host has to fetch."""

    ROSTER = "roster"
    SHARES = "shares"
    VECTOR = "vector"
    SURVIVORS = "survivors"
    AGREEMENTS = "agreements"
    OUTCOME = "outcome"
    ENDED = "nothing"


@dataclass(frozen=True)
class ClientSecrets:
    """The client's own: private mask key, private channel key (X25519), seed of its own mask; 32 bytes each."""

    mask_key: bytes = field(repr=False)
    channel_key: bytes = field(repr=False)
    seed: bytes = field(repr=False)


@dataclass(frozen=True)
class Entrusted:
    """What a neighbour entrusted to the client: one share of the seed of its own mask, one of its mask key (base64)."""

    seed: str = field(repr=False)
    mask_key: str = field(repr=False)


@dataclass(frozen=True)
class Answered:
    """A message that was answered: its SHA-256; and the answer, its kind and its JSON, if something was said."""

    digest: str
    kind: str = ""
    reply: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)


@dataclass(frozen=True, repr=False)
class ClientState:
    """One client in one attempt.

    terms, plan: what its signed task says.
    model: `roster.model_digest` of it.
    floor: the fewest clients that it agrees to be one of.
    advertised: its own entry, whose place is 0 before there is a roster.
    secrets: None once nothing remains to be done with them.
    clients, roster: how many clients the roster has, and its digest.
    neighbours: their entries.
    channels: the keys of the boxes to and from them, until theirs are opened.
    shares: the shares of those neighbours that dealt theirs.
    vector: SHA-256 of the packed masked vector.
    alive, listed: the survivors that were accepted, and the list's digest.
    required: who must be endorsed.
    subjects: who is, by place.
    identities: mode ``consistent``: everybody's identity key by place.
    answered: phase → the message that ended it.
    """

    phase: SecAggClientPhase
    terms: SecureTerms
    plan: str
    model: str
    floor: int
    advertised: RosterEntry
    secrets: ClientSecrets | None
    clients: int = 0
    roster: str = ""
    neighbours: Mapping[int, RosterEntry] = field(default_factory=dict[int, RosterEntry])
    identities: tuple[str, ...] = ()
    channels: Mapping[int, bytes] = field(default_factory=dict[int, bytes])
    shares: Mapping[int, Entrusted] = field(default_factory=dict[int, Entrusted])
    vector: str | None = None
    alive: str = ""
    listed: str = ""
    answered: Mapping[SecAggClientPhase, Answered] = field(default_factory=dict[SecAggClientPhase, Answered])
    required: EndorsementRule = NO_ENDORSEMENT
    subjects: Mapping[int, str] = field(default_factory=dict[int, str])
    format: Literal[1] = 1

    @property
    def awaits(self) -> str:
        """What is needed next: the value of the phase."""
        return self.phase.value

    @property
    def position(self) -> int:
        """The client's place in the roster; 0 before there is one."""
        return self.advertised.position

    @cached_property
    def parameters(self) -> Parameters:
        """Neighbours and threshold for the roster's size, as this client computes them."""
        terms = self.terms
        return parameters(self.clients, corrupt=terms.corrupt, dropout=terms.dropout, mode=terms.mode)

    @cached_property
    def context(self) -> AttemptContext:
        """What everything that follows the roster is bound to."""
        return context_of(self.terms, plan=self.plan, model=self.model, parameters=self.parameters, roster=self.roster)

    def without_secrets(self) -> "ClientState":
        """The state once there is nothing left to say: nobody who reads it later learns anything that was secret."""
        return replace(self, phase=SecAggClientPhase.ENDED, secrets=None, channels={}, shares={}, answered={})

    def __repr__(self) -> str:
        return f"ClientState(attempt={self.terms.attempt}, awaits={self.awaits}, position={self.position})"

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "ClientState":
        """The state that `coterie.protocol.conversion.to_json` wrote.

        Raises errors.StorageError (``secagg_state``) for anything else, without a word of what it holds.
        """
        return restored(
            ClientState,
            value,
            whose="a client",
            hint="This attempt is lost for the client, which must not answer again; the next one starts afresh.",
        )
