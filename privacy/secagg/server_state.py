"""What the coordinator knows of an attempt, as a value: kept as a row between any two messages.

Its size grows with clients times neighbours, never with the length of the vectors. Sealed boxes and signatures are not
in it: the mailbox holds them, and they are handed on from there. In the phases ``reveal`` and ``summed`` it holds what
unmasks the sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Literal

from coterie.privacy.secagg.context import AttemptContext
from coterie.privacy.secagg.graph import neighbours
from coterie.privacy.secagg.parameters import Parameters, parameters
from coterie.privacy.secagg.roster import context_of
from coterie.privacy.secagg.stored import restored
from coterie.privacy.secagg.survivors import to_bits
from coterie.protocol.conversion import Sorted
from coterie.protocol.secagg import Reveal, RosterEntry, SecureTerms


class SecAggPhase(Enum):
    """What the coordinator collects; the last two are ends."""

    KEYS = "keys"
    SHARES = "shares"
    MASKED = "masked"
    AGREEMENT = "agreement"
    REVEAL = "reveal"
    SUMMED = "summed"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        """Whether nothing is collected any more."""
        return self in (SecAggPhase.SUMMED, SecAggPhase.FAILED)


class AttemptFailure(Enum):
    """Why an attempt has no sum."""

    TOO_FEW_CLIENTS = "too_few_clients"
    NO_PARAMETERS = "no_parameters"
    TOO_FEW_DEALT = "too_few_dealt"
    TOO_FEW_SURVIVORS = "too_few_survivors"
    FALLEN_APART = "fallen_apart"
    TOO_FEW_AGREED = "too_few_agreed"
    TOO_FEW_REVEALED = "too_few_revealed"
    WRONG_SHARES = "wrong_shares"

    @property
    def sentence(self) -> str:
        """The cause in words."""
        return _SENTENCES[self]


_SENTENCES: Mapping[AttemptFailure, str] = {
    AttemptFailure.TOO_FEW_CLIENTS: "fewer clients sent their keys than the terms require",
    AttemptFailure.NO_PARAMETERS: "this number of clients cannot tolerate this number of corrupt and dropped ones",
    AttemptFailure.TOO_FEW_DEALT: "too few clients dealt their shares",
    AttemptFailure.TOO_FEW_SURVIVORS: "too few masked vectors arrived to open the sum",
    AttemptFailure.FALLEN_APART: "the survivors are groups without a neighbour in common",
    AttemptFailure.TOO_FEW_AGREED: "too few clients signed the list of survivors",
    AttemptFailure.TOO_FEW_REVEALED: "too few clients revealed their shares to open the sum",
    AttemptFailure.WRONG_SHARES: "the shares of a client do not give the secret that it is bound to",
}


@dataclass(frozen=True)
class Dealt:
    """What is kept of a client's shares: its commitment, and the SHA-256 of the whole message."""

    commitment: str
    digest: str


@dataclass(frozen=True)
class Blame:
    """A share that does not fit: place `dealer` dealt it and place `revealer` revealed it, and one of the two is wrong.

    revealer None: none of the choices of shares that were tried gives what the dealer published. Then the dealer may
    have dealt wrong shares, or so many neighbours have revealed wrong ones that the right ones are not found.
    """

    dealer: int
    revealer: int | None = None


@dataclass(frozen=True)
class Opened:
    """What the shares gave, by place: survivors' seeds of their own masks, and mask keys of those who dropped out."""

    seeds: Mapping[int, bytes] = field(repr=False)
    keys: Mapping[int, bytes] = field(repr=False)


@dataclass(frozen=True, repr=False)
class ServerState:
    """One attempt.

    plan: its id.
    model: `roster.model_digest` of their tasks.

    entries: the clients, as they came while the phase is ``keys``, by place from then on.
    roster: their digest.
    dealt: who dealt its shares.
    arrived: whose masked vectors are here; from the phase after on, the survivors.
    agreed: who signed the list of survivors.
    revealed: the answers.
    opened: the secrets that unmask the sum.
    blamed: shares that do not fit.
    cause, detail: why there is no sum.
    """

    phase: SecAggPhase
    terms: SecureTerms
    plan: str
    model: str
    entries: tuple[RosterEntry, ...] = ()
    roster: str = ""
    dealt: Mapping[int, Dealt] = field(default_factory=dict[int, Dealt])
    arrived: Sorted[int] = frozenset()
    agreed: Sorted[int] = frozenset()
    revealed: Mapping[int, Reveal] = field(default_factory=dict[int, Reveal])
    opened: Opened | None = None
    blamed: tuple[Blame, ...] = ()
    cause: AttemptFailure | None = None
    detail: str = ""
    format: Literal[1] = 1

    @property
    def clients(self) -> int:
        """How many clients the roster has."""
        return len(self.entries)

    @property
    def survivors(self) -> tuple[int, ...]:
        """The places whose vectors are in the sum, ascending."""
        return tuple(sorted(self.arrived))

    @property
    def dropped(self) -> tuple[int, ...]:
        """The places that dealt their shares, but whose vectors are not in the sum, ascending."""
        return tuple(sorted(self.dealt.keys() - self.arrived))

    @cached_property
    def alive(self) -> str:
        """The list of survivors as a message carries it."""
        return to_bits(self.arrived, self.clients)

    @cached_property
    def in_graph(self) -> str:
        """Who dealt shares, as a message carries it."""
        return to_bits(self.dealt, self.clients)

    @cached_property
    def parameters(self) -> Parameters:
        """Neighbours and threshold for the roster's size."""
        terms = self.terms
        return parameters(self.clients, corrupt=terms.corrupt, dropout=terms.dropout, mode=terms.mode)

    @cached_property
    def context(self) -> AttemptContext:
        """What everything that follows the roster is bound to."""
        return context_of(self.terms, plan=self.plan, model=self.model, parameters=self.parameters, roster=self.roster)

    def near(self, place: int) -> tuple[int, ...]:
        """The neighbours of a place."""
        return neighbours(place, self.clients, self.parameters.neighbours)

    def __repr__(self) -> str:
        return f"ServerState(attempt={self.terms.attempt}, phase={self.phase.value}, clients={self.clients})"

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "ServerState":
        """The state that `coterie.protocol.conversion.to_json` wrote.

        Raises errors.StorageError (``secagg_state``) for anything else, without a word of what it holds.
        """
        return restored(
            ServerState,
            value,
            whose="an attempt",
            hint="The attempt is lost; its round is abandoned.",
        )
