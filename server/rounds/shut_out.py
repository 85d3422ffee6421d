"""Shutting a device out for ever: because it was revoked, or because its owner took it out."""

import json
from typing import Final, Literal

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.server.clock import now_ms
from coterie.server.rounds.transitions import Rounds
from coterie.server.store import audit, devices, events, experiments, tasks
from coterie.server.store.tables import DeviceRow

WITHDRAWN: Final = "withdrawn"
"""The member of a device's details that says that its owner took it out."""


async def shut_out(
    rounds: Rounds, session: AsyncSession, row: DeviceRow, how: Literal["revoked", "withdrawn"], *, by: str
) -> None:
    """Let an enrolled device in no more, and take back the task that it holds.

    by: the token that revokes it, or the device that withdraws.
    """
    device, details = row.id, json.loads(row.details)
    lease = await tasks.lease_of(session, device)
    concerned = {
        *await experiments.running_ids(session, row.population),
        *([] if lease is None else [lease.experiment]),
    }
    locked = await experiments.lock_all(session, concerned)
    if how == "withdrawn":
        details[WITHDRAWN] = True
    await devices.revoke(session, device, now_ms(), json.dumps(details))
    await audit.append(session, by, f"device.{how}", device)
    events.append(session, f"device.{how}", {"device": device, "population": row.population})
    if lease is not None:
        changes = {"code": f"device_{how}", "verdict": tasks.ROLLED_BACK, "finished_at": now_ms()}
        if await tasks.leave(session, lease.id, tasks.ABORTED, changes):
            locked[lease.experiment] = await rounds.lost(session, locked[lease.experiment], lease)
    await session.refresh(row)
    for each in locked.values():
        await rounds.shut_out(session, each)
