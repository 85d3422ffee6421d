"""The machine of an attempt (`coterie.privacy.secagg.server`) as the coordinator keeps it: as its phase began.

A message is checked against that state when it arrives, which changes nothing; when the phase ends, the messages in the
mailbox are applied one after another. So a message costs a row, any replica can take it, and a restart loses nothing.
Worker processes use it too: nothing here knows of the database (`machines` does).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from coterie.errors import ArgumentValueError, SecureAggregationRefused, Unauthenticated
from coterie.privacy.secagg import server
from coterie.privacy.secagg.roster import model_digest
from coterie.privacy.secagg.server import (
    Advertised,
    Agreed,
    MaskedArrived,
    PhaseDeadline,
    Revealed,
    SecAggPhase,
    Shared,
)
from coterie.protocol.device import Task
from coterie.protocol.secagg import Agreement, Reveal, SecureTerms, Shares

REFUSALS: Final = (SecureAggregationRefused, Unauthenticated, ArgumentValueError)
ClientMessage = Shares | Agreement | Reveal | None
_MESSAGES: Final[Mapping[str, type[Shares] | type[Agreement] | type[Reveal]]] = {
    SecAggPhase.SHARES.value: Shares,
    SecAggPhase.AGREEMENT.value: Agreement,
    SecAggPhase.REVEAL.value: Reveal,
}


@dataclass(frozen=True)
class Failed:
    """An attempt without a sum: a stable word for why, and a sentence."""

    cause: str
    detail: str


@dataclass(frozen=True)
class Machine:
    """The state with which a phase began, and what follows from it."""

    state: server.ServerState

    @property
    def phase(self) -> str:
        """What it waits for; also the name of the phase in rows and routes."""
        return self.state.phase.value

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The place of each device in the roster."""
        return {entry.device: entry.position for entry in self.state.entries}

    @cached_property
    def awaited(self) -> frozenset[int]:
        """The places that are asked in this phase."""
        return frozenset(server.awaited(self.state))

    def check(self, place: int, message: ClientMessage) -> None:
        """Raise, naming the check, for a message that no honest client at this place sends in this phase."""
        server.step(self.state, event_of(place, message))

    def close(self, bundles: Mapping[int, str]) -> "Machine | Failed":
        """The phase after this one, with these answers by place, as JSON, and nobody else's."""
        after = fold(self.state, ((place, read(self.phase, text)) for place, text in sorted(bundles.items())))
        return settled(after)

    @staticmethod
    def from_text(text: str) -> "Machine":
        """The machine whose state `coterie.protocol.conversion.to_text` wrote."""
        return Machine(server.ServerState.from_json(json.loads(text)))


def begin(terms: SecureTerms, task: Task, advertised: Iterable[Advertised]) -> Machine | Failed:
    """The attempt among those that reported *trained*; who brought keys that cannot be used is not in its roster."""
    state = server.open_attempt(terms, plan=task.plan.id, model=model_digest(task))
    for event in advertised:
        try:
            state = server.step(state, event)
        except REFUSALS:
            continue
    return settled(server.step(state, PhaseDeadline()))


def fold(state: server.ServerState, messages: Iterable[tuple[int, ClientMessage]]) -> server.ServerState:
    """The state after its phase: with these answers, which were checked when they came, and nobody else's."""
    phase = state.phase
    for place, message in messages:
        if state.phase is phase:
            state = server.step(state, event_of(place, message))
    return state if state.phase is not phase else server.step(state, PhaseDeadline())


def settled(state: server.ServerState) -> Machine | Failed:
    """A machine that goes on, or why it does not."""
    if state.cause is None:
        return Machine(state)
    return Failed(state.cause.value, server.outcome_for(state).detail)


def event_of(place: int, message: ClientMessage) -> server.ServerEvent:
    """A message as the machine's event."""
    match message:
        case Shares():
            return Shared(place, message)
        case Agreement():
            return Agreed(place, message)
        case Reveal():
            return Revealed(place, message)
        case None:
            return MaskedArrived(place)


def read(phase: str, text: str) -> ClientMessage:
    """A message of a phase out of the mailbox; None for a masked vector, of which the machine sees nothing."""
    return None if phase == SecAggPhase.MASKED.value else _MESSAGES[phase].model_validate_json(text)
