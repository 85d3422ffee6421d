"""A coordinator in the middle of an attempt, about to lie, and what a client makes of it."""

from collections.abc import Callable

from attempt_kit import (
    Attempt,
    Party,
    start,
    terms,
)

from coterie.errors import CoterieError
from coterie.privacy.secagg.client import SecAggClientPhase
from coterie.privacy.secagg.survivors import survivors_digest, to_bits
from coterie.protocol.secagg import SecureMode, Survivors

BEFORE = ("roster", "shares", "survivors", "agreements")


def at(phase: str, mode: SecureMode, clients: int = 9, dropped: tuple[int, ...] = ()) -> Attempt:
    """An attempt whose coordinator is about to send the message of a phase. dropped: before their vectors came."""
    attempt = start(clients, terms(mode, dropout=0.3))
    attempt.form()
    steps: dict[str, Callable[[], None]] = {
        "roster": lambda: None,
        "shares": attempt.deal,
        "survivors": attempt.mask,
        "agreements": attempt.agree,
    }
    for name in BEFORE:
        steps[name]()
        if name == "shares":
            attempt.gone |= set(dropped)
        if name == phase:
            return attempt
    raise AssertionError(phase)


def refusal(party: Party, message: object) -> CoterieError:
    """Why a client says nothing to a message."""
    assert party.step(message) is None
    assert party.refusal is not None
    assert party.state.phase is SecAggClientPhase.ENDED
    assert party.state.secrets is None
    assert not party.state.shares
    assert not party.state.answered
    return party.refusal


def listed(party: Party, alive: set[int], dealt: set[int] | None = None) -> Survivors:
    """A list of survivors with a digest that is its own. dealt: all, unless said otherwise."""
    clients = party.state.clients
    bits, graph = to_bits(alive, clients), to_bits(range(clients) if dealt is None else dealt, clients)
    return Survivors(alive=bits, dealt=graph, digest=survivors_digest(party.state.context, bits, graph))
