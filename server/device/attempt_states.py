"""What to say to a device whose message does not fit where its attempt is."""

from typing import Final

from coterie.errors import Conflict, CoterieError, Gone
from coterie.server.secure.machine import Machine
from coterie.server.store import attempts
from coterie.server.store.attempts import AttemptPhase

DROPPED_OUT: Final = "dropped_out"
NOT_IN_ROSTER: Final = "not_in_roster"
ORDER: Final = (attempts.GATHERING, "shares", "masked", "agreement", "reveal", attempts.UNMASKING, *attempts.OVER)
"""The phases of an attempt, in order."""


def over(cause: str, detail: str) -> CoterieError:
    """The refusal of everything more for an attempt, or for a device that is out of it."""
    return Gone(
        detail,
        hint="Delete what belongs to this attempt and check in; nothing of its update was seen.",
        code="attempt_over",
        cause=cause,
    )


def over_for_all(row: AttemptPhase) -> CoterieError:
    """The refusal of an attempt that has its sum, or has failed."""
    if row.phase == attempts.SUMMED:
        return over(attempts.SUMMED, "This attempt at secure aggregation has its sum.")
    return over(row.cause or attempts.FAILED, f"This attempt at secure aggregation failed: {row.detail}")


def dropped_out(phase: str) -> CoterieError:
    """The refusal of a device that was missing when a phase ended."""
    return over(DROPPED_OUT, f"The attempt went on without this device: it was missing when {phase!r} ended.")


def not_in_roster() -> CoterieError:
    """The refusal of a device that is not one of the attempt's."""
    return over(NOT_IN_ROSTER, "This device is not in the attempt's roster.")


def unfit(row: AttemptPhase, phase: str) -> CoterieError | None:
    """Why a message of this phase cannot be taken now; None where it can."""
    if row.phase == phase:
        return None
    if row.phase in attempts.OVER:
        return over_for_all(row)
    if ORDER.index(row.phase) < ORDER.index(phase):
        return Conflict(
            f"The attempt is {row.phase}; its phase {phase!r} has not begun.",
            hint="Wait for the message that begins it.",
            code="phase_early",
        )
    return Gone(
        f"The phase {phase!r} of this attempt is over; it went on without this message.",
        hint="Delete what belongs to this attempt and check in.",
        code="phase_over",
        cause=DROPPED_OUT,
    )


def awaited_place(row: AttemptPhase, machine: Machine | None, device: str, phase: str) -> tuple[Machine, int]:
    """The attempt's machine and the device's place in it, where a message of this phase is awaited from it now.

    Raises what the others here return.
    """
    refused = unfit(row, phase)
    if refused is not None or machine is None:
        raise refused or not_in_roster()
    place = machine.places.get(device)
    if place is None:
        raise not_in_roster()
    if place not in machine.awaited:
        raise dropped_out(machine.phase)
    return machine, place


def not_secure() -> CoterieError:
    """The refusal of secure aggregation for a task that has none."""
    return Conflict(
        "This task is not part of a secure aggregation.", hint="Upload its update as it is.", code="not_secure"
    )


def differs(phase: str) -> CoterieError:
    """The refusal of a second message that is not the first."""
    return Conflict(
        f"This device said something else in the phase {phase!r} before; only its first message counts.",
        hint="Send the very message again that was persisted before it was sent.",
        code="message_differs",
    )
