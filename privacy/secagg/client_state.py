"""What a client knows in an attempt, as a value: kept on disk between any two messages, never shown."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

from coterie.privacy.secagg.context import Context
from coterie.privacy.secagg.endorsed import NOTHING, Asked
from coterie.privacy.secagg.parameters import Parameters, parameters
from coterie.privacy.secagg.roster import context_of
from coterie.privacy.secagg.stored import restored
from coterie.protocol.secagg import RosterEntry, SecureTerms

FORMAT = 1


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
class Secrets:
    """The client's own: private mask key, private channel key (X25519), seed of its own mask; 32 bytes each."""

    mask_key: bytes = field(repr=False)
    channel_key: bytes = field(repr=False)
    seed: bytes = field(repr=False)


@dataclass(frozen=True)
class Held:
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
    held: the shares of those neighbours that dealt theirs.
    vector: SHA-256 of the packed masked vector.
    alive, listed: the survivors that were accepted, and the list's digest.
    asked: who must be endorsed.
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
    secrets: Secrets | None
    clients: int = 0
    roster: str = ""
    neighbours: Mapping[int, RosterEntry] = field(default_factory=dict[int, RosterEntry])
    identities: tuple[str, ...] = ()
    channels: Mapping[int, bytes] = field(default_factory=dict[int, bytes])
    held: Mapping[int, Held] = field(default_factory=dict[int, Held])
    vector: str | None = None
    alive: str = ""
    listed: str = ""
    answered: Mapping[SecAggClientPhase, Answered] = field(default_factory=dict[SecAggClientPhase, Answered])
    asked: Asked = NOTHING
    subjects: Mapping[int, str] = field(default_factory=dict[int, str])

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
    def context(self) -> Context:
        """What everything that follows the roster is bound to."""
        return context_of(self.terms, plan=self.plan, model=self.model, parameters=self.parameters, roster=self.roster)

    def without_secrets(self) -> "ClientState":
        """The state once there is nothing left to say: nobody who reads it later learns anything that was secret."""
        return replace(self, phase=SecAggClientPhase.ENDED, secrets=None, channels={}, held={}, answered={})

    def __repr__(self) -> str:
        return f"ClientState(attempt={self.terms.attempt}, awaits={self.awaits}, position={self.position})"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object. It holds secrets: keep it where nobody else reads."""
        secrets = self.secrets
        return {
            "format": FORMAT,
            "phase": self.phase.value,
            "terms": self.terms.model_dump(mode="json"),
            "plan": self.plan,
            "model": self.model,
            "floor": self.floor,
            "advertised": self.advertised.model_dump(mode="json"),
            "secrets": None
            if secrets is None
            else [secrets.mask_key.hex(), secrets.channel_key.hex(), secrets.seed.hex()],
            "clients": self.clients,
            "roster": self.roster,
            "neighbours": [entry.model_dump(mode="json") for entry in self.neighbours.values()],
            "identities": list(self.identities),
            "channels": {str(place): key.hex() for place, key in self.channels.items()},
            "held": {str(place): [held.seed, held.mask_key] for place, held in self.held.items()},
            "vector": self.vector,
            "alive": self.alive,
            "listed": self.listed,
            "answered": {phase.value: [told.digest, told.kind, told.reply] for phase, told in self.answered.items()},
            "asked": [sorted(self.asked.issuers), self.asked.least],
            "subjects": {str(place): subject for place, subject in self.subjects.items()},
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "ClientState":
        """The state that `to_json` wrote.

        Raises errors.StorageError (``secagg_state``) for anything else, without a word of what it holds.
        """
        return restored(
            value,
            _from_json,
            whose="a client",
            hint="This attempt is lost for the client, which must not answer again; the next one starts afresh.",
        )


def _from_json(value: Mapping[str, Any]) -> ClientState:
    if value["format"] != FORMAT:
        raise ValueError("another format")
    entries = [RosterEntry.model_validate(entry) for entry in value["neighbours"]]
    return ClientState(
        phase=SecAggClientPhase(value["phase"]),
        terms=SecureTerms.model_validate(value["terms"]),
        plan=value["plan"],
        model=value["model"],
        floor=value["floor"],
        advertised=RosterEntry.model_validate(value["advertised"]),
        secrets=None if value["secrets"] is None else Secrets(*(bytes.fromhex(each) for each in value["secrets"])),
        clients=value["clients"],
        roster=value["roster"],
        neighbours={entry.position: entry for entry in entries},
        identities=tuple(value["identities"]),
        channels={int(place): bytes.fromhex(key) for place, key in value["channels"].items()},
        held={int(place): Held(*pair) for place, pair in value["held"].items()},
        vector=value["vector"],
        alive=value["alive"],
        listed=value["listed"],
        answered={SecAggClientPhase(phase): Answered(*told) for phase, told in value["answered"].items()},
        asked=Asked(frozenset(value["asked"][0]), value["asked"][1]),
        subjects={int(place): subject for place, subject in value["subjects"].items()},
    )
