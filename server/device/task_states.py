"""What to say about a task that is not leased any more."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import Conflict, CoterieError, Gone, NotFound
from coterie.server.store import attempts, tasks
from coterie.server.store.attempts import Member
from coterie.server.store.tables import TaskRow

REFUSALS: Final[Mapping[str, tuple[type[CoterieError], str, str]]] = {
    tasks.ACCEPTED: (Conflict, "task_finished", "The update of this task was accepted before; this is another one."),
    tasks.REFUSED: (Conflict, "task_finished", "The update of this task was refused; the task is over."),
    tasks.ABORTED: (Conflict, "task_finished", "The device gave this task up."),
    tasks.EXPIRED: (Gone, "lease_expired", "The lease of this task ran out before its update was complete."),
    tasks.STALE: (Gone, "stale_update", "The model of this task is older than its experiment's staleness cap allows."),
    tasks.CLOSED: (Gone, "round_closed", "The round of this task is over."),
}


def refusal(state: str) -> CoterieError:
    """The refusal of anything more for a task in this state."""
    kind, code, message = REFUSALS[state]
    return kind(message, hint="Delete what belongs to this task and check in for another one.", code=code)


async def own(session: AsyncSession, task: str, device: str) -> TaskRow:
    """The device's own task. Raises NotFound ``task_unknown``, also for a task of another device."""
    row = await tasks.find(session, task, device)
    if row is None:
        raise _unknown()
    return row


async def member(session: AsyncSession, task: str, device: str) -> Member:
    """The device's own task and its attempt. Raises as `own`."""
    found = await attempts.member(session, task, device)
    if found is None:
        raise _unknown()
    return found


async def experiment_of(session: AsyncSession, task: str, device: str) -> str:
    """The experiment of the device's own task, to lock it before the task is read. Raises as `own`."""
    found = await tasks.experiment_of(session, task, device)
    if found is None:
        raise _unknown()
    return found


def _unknown() -> CoterieError:
    return NotFound("This device has no task of that id.", hint="Check in for one.", code="task_unknown")


def check_leased(row: TaskRow) -> None:
    """Raise the refusal that a task's state asks for, unless it is leased."""
    if row.state != tasks.LEASED:
        raise refusal(row.state)
