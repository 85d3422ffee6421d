"""What a device that waits is told: made from its attempt's machine and mailbox, the same whenever it is asked for."""

from typing import Final, Literal

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.privacy.secagg import server
from coterie.protocol.secagg import Agreement, Outcome, Shares, ToClient
from coterie.server.coordinator import Coordinator
from coterie.server.device.attempt_states import ORDER, dropped_out, not_in_roster, not_secure, over_for_all
from coterie.server.device.task_states import refusal
from coterie.server.secure.machine import Machine
from coterie.server.secure.machines import Machines
from coterie.server.store import attempts, tasks
from coterie.server.store.attempts import AttemptPhase, Member

Awaited = Literal["roster", "shares", "survivors", "agreements", "outcome"]
FROM: Final[dict[str, str]] = {
    "roster": "shares",
    "shares": "masked",
    "survivors": "agreement",
    "agreements": "reveal",
}
"""The phase from which on a message is there."""


async def message_for(
    coordinator: Coordinator, session: AsyncSession, member: Member, device: str, awaited: Awaited
) -> ToClient | None:
    """The message for a task's device; None where the attempt is not that far.

    Raises Gone ``attempt_over`` when there will be none: the attempt is over, or goes on without this device.
    """
    attempt = member.attempt
    if attempt is None:
        raise not_secure()
    if awaited == "outcome":
        return _outcome(attempt)
    if attempt.phase in attempts.OVER:
        raise over_for_all(attempt)
    if ORDER.index(attempt.phase) < ORDER.index(FROM[awaited]):
        if member.state not in (tasks.LEASED, tasks.ACCEPTED):
            raise refusal(member.state)  # nothing comes for a task that is over without having trained
        return None
    machine = await coordinator.machines.of(session, attempt.id, attempt.version)
    if machine is None:
        return None  # it has just begun, or ended: the next look tells
    return await _message(session, coordinator.machines, machine, _place(machine, device, awaited), awaited)


def _outcome(attempt: AttemptPhase) -> Outcome | None:
    if attempt.phase == attempts.SUMMED:
        return Outcome(state="summed")
    if attempt.phase == attempts.FAILED:
        return Outcome(state="failed", cause=attempt.cause, detail=attempt.detail or "")
    return None


def _place(machine: Machine, device: str, awaited: Awaited) -> int:
    """The device's place, if it is still part of what comes next."""
    place = machine.places.get(device)
    if place is None:
        raise not_in_roster()
    state = machine.state
    if awaited != "roster" and place not in state.dealt:
        raise dropped_out("shares")
    if awaited in ("survivors", "agreements") and place not in state.arrived:
        raise dropped_out("masked")
    if awaited == "agreements" and place not in state.agreed:
        raise dropped_out("agreement")
    return place


async def _message(
    session: AsyncSession, machines: Machines, machine: Machine, place: int, awaited: Awaited
) -> ToClient | None:
    state = machine.state
    match awaited:
        case "roster":
            return server.roster_for(state, place)
        case "shares":
            return server.shares_for(state, place, await machines.messages(session, machine, "shares", Shares))
        case "survivors":
            return server.survivors_for(state)
        case "agreements":
            return server.agreements_for(
                state, place, await machines.messages(session, machine, "agreement", Agreement)
            )
        case "outcome":
            return None
