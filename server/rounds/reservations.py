"""Selection on a coordinator to which devices come when they please: when a round begins, its tasks are reserved, for a
short while, for those that the experiment's selection chooses among the devices seen lately.

A reservation is a preference that expires: whoever was chosen and does not come back in time leaves its place to
whoever comes, so a round never waits for a device that is gone. With no more devices around than tasks, or after a
restart, which forgets who was seen, nothing is reserved.
"""

import json
from dataclasses import dataclass
from functools import lru_cache, partial

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.eligibility import candidate, choose, eligible
from coterie.aggregation.engine import Round
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.control import ExperimentCreate
from coterie.server.fleet import Fleet
from coterie.server.rounds.eligibility import contribution, holdings
from coterie.server.rounds.spending import privacy_of
from coterie.server.store import participations
from coterie.server.store.tables import ExperimentRow, RoundRow

MOST_CANDIDATES = 5000
WINDOWS = 2.0
"""A device is around while it was seen within so many of its retry windows, and is waited for as long."""
MOST_OF_DEADLINE = 0.25
"""A round gives at most this share of its time to waiting for the chosen."""


@dataclass(frozen=True)
class Reservation:
    """Tasks of a round that are kept for some devices.

    devices: whom the tasks are kept for.
    until: milliseconds of the coordinator's clock.
    """

    devices: tuple[str, ...]
    until: int


async def reserve(
    session: AsyncSession, fleet: Fleet, experiment: ExperimentRow, request: ExperimentCreate, value: Round, now: int
) -> Reservation | None:
    """For whom the tasks of a round that begins now are kept; None when anybody eligible may take them."""
    policy, slots = request.rounds, value.config.slots
    if value.config.buffered or value.config.evaluate_only:
        return None
    pause = fleet.longest_pause_ms(experiment.population)
    around = fleet.around(experiment.population, now - round(WINDOWS * pause) - 1000)
    if len(around) <= slots:
        return None
    # A huge fleet is thinned by lot first, since a transaction waits for what follows.
    kept = sorted(around, key=lambda device: sha256_hex(f"{experiment.id}/{value.number}/{device}".encode()))
    kept = kept[: max(MOST_CANDIDATES, 2 * slots)]
    privacy = privacy_of(request)
    known = await participations.of(session, experiment.id, kept)
    reports = {device: (holdings(fleet.report(device)), contribution(known.get(device), now)) for device in kept}
    candidates = [
        candidate(policy, device, *about)
        for device, about in reports.items()
        if eligible(policy, partial(holdings, fleet.report(device)), about[1], round=value.number, privacy=privacy)
    ]
    if len(candidates) <= slots:
        return None
    chosen = choose(policy, candidates, slots, round=value.number, seed=request.seed, trusted=policy.trusted)
    grace = min(WINDOWS * pause, MOST_OF_DEADLINE * policy.deadline_s * 1000)
    return Reservation(chosen, now + round(grace))


def kept_for_others(row: RoundRow, device: str, now: int) -> bool:
    """Whether a round's tasks are still kept, and not for this device."""
    if row.reserved is None or row.reserved_until is None or now >= row.reserved_until:
        return False
    return device not in _reserved(row.reserved)


@lru_cache(maxsize=64)
def _reserved(text: str) -> frozenset[str]:
    return frozenset(json.loads(text))
