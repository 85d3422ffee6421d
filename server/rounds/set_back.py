"""A clock that was set back while a round ran: its deadline and leases begin anew, for all would end hours late."""

import structlog

from coterie.server.clock import now_ms
from coterie.server.store import experiments, tasks
from coterie.server.store.engine import Database
from coterie.server.store.experiments import OpenRound

SLACK_MS = 1000
log = structlog.get_logger("coterie.server.driver")


def whole_ms(opened: OpenRound) -> int:
    """How long the deadline of a round's phase is, in milliseconds."""
    config = opened.value.config
    return round(1000 * (config.deadline_s if opened.row.deadline_kind == "train" else config.evaluation_deadline_s))


def was_set_back(opened: OpenRound, now: int) -> bool:
    """Whether more is left until a round's deadline than there ever was.

    now: milliseconds.
    """
    return opened.row.deadline_at is not None and opened.row.deadline_at - now > whole_ms(opened) + SLACK_MS


async def begin_anew(database: Database, earlier: OpenRound) -> None:
    """Give a round its whole deadline, and its tasks whole leases, from now on."""
    async with database.write("deadline") as session:
        locked = await experiments.lock(session, earlier.row.experiment)
        experiment, opened = locked.experiment, locked.opened
        if opened is None or not was_set_back(opened, now_ms()):
            return
        deadline = {"deadline_at": now_ms() + whole_ms(opened)}
        await experiments.save_round(session, opened.row, opened.value, deadline)
        lease_ms = round(1000 * experiments.request_of(experiment).rounds.lease_s)
        await tasks.shorten_leases(session, experiment.id, now_ms() + lease_ms)
        log.warning("the clock was set back", experiment=experiment.id, round=opened.row.number)
