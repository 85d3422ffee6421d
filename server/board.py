"""The open rounds as of the last commit, in memory: a check-in to which nothing can be given is answered from here,
without a query.
"""

import asyncio
from dataclasses import dataclass

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.eligibility import measures
from coterie.aggregation.engine import open_slots
from coterie.aggregation.plan.needs import Needs
from coterie.errors import CoterieError
from coterie.protocol.control import ExperimentCreate
from coterie.protocol.device import Idle
from coterie.server.bell import Bell
from coterie.server.pace import Demand
from coterie.server.rounds.asking import KINDS, Asker, lacks, within_reach
from coterie.server.rounds.reservations import kept_for_others
from coterie.server.rounds.transitions import Rounds
from coterie.server.storage import Storage
from coterie.server.store import experiments
from coterie.server.store.experiments import OpenRound

RETRY_S = 1.0
log = structlog.get_logger("coterie.server")


@dataclass(frozen=True)
class Running:
    """An experiment that runs: what was asked for, and what its plan needs."""

    population: str
    request: ExperimentCreate
    needs: Needs


class Board:
    """The running experiments by population, as of the last commit. A hint: rows decide what is given."""

    def __init__(self, storage: Storage, rounds: Rounds) -> None:
        self._storage = storage
        self._rounds = rounds
        self._traffic = rounds.traffic
        self._running: dict[str, Running] = {}
        self._as_of = -1
        self._looking = asyncio.Lock()
        self._opened: dict[str, list[OpenRound]] = {}
        self.quarantined: dict[str, str] = {}
        """Experiments that run and cannot go on, since a file of their plan is missing or damaged, and what is said of
        it. They are looked at again after every commit.
        """

    @property
    def count(self) -> int:
        """How many experiments run."""
        return len(self._running)

    def busy(self, population: str) -> bool:
        """Whether an experiment runs over this population."""
        return any(running.population == population for running in self._running.values())

    def offers(self, asker: Asker, now: int) -> bool:
        """Whether an open round may have a task for a device that holds none.

        now: milliseconds.
        """
        for opened in self._opened.get(asker.population, []):
            running = self._running[opened.row.experiment]
            for kind in KINDS:
                within = within_reach(running.request, running.needs, kind, asker)
                if not within or not open_slots(opened.value, kind):
                    continue
                if (
                    asker.clients
                    or measures(running.request.rounds, kind)
                    or not kept_for_others(opened.row, asker.id, now)
                ):
                    return True
        return False

    def hands_out(self, version: str) -> bool:
        """Whether tasks of an open round are on this model version."""
        rounds = (found.value for opened in self._opened.values() for found in opened)
        return any(version in (value.base, value.version) for value in rounds)

    def why_idle(self, asker: Asker) -> Idle:
        """Why there is no task for a device: what it lacks to take a place that is free, or that there is none."""
        if not self.busy(asker.population):
            return "no_experiment"
        for opened in self._opened.get(asker.population, []):
            running = self._running[opened.row.experiment]
            free = any(open_slots(opened.value, kind) for kind in KINDS)
            if free and (lacking := lacks(running.request, running.needs, asker)) is not None:
                return lacking
        return "no_place"

    def demand(self, population: str, now: int) -> Demand | None:
        """What the experiments over this population want of its devices; None when none runs.

        now: milliseconds.
        """
        if not self.busy(population):
            return None
        opened = self._opened.get(population, [])
        values = [found.value for found in opened]
        slots = sum(open_slots(value, "train") + open_slots(value, "evaluate") for value in values)
        brought = sum(value.accepted + value.evaluated for value in values)
        lost = sum(value.failed + value.evaluation_failed for value in values)
        next_rounds = [self._next_round_s(found, now) for found in opened]
        return Demand(
            open_slots=slots,
            seconds=min((value.config.deadline_s / 4 for value in values), default=60.0),
            yield_=(brought + 1) / (brought + lost + 1),
            next_round_s=min(next_rounds, default=0.0),
        )

    def rests_s(self, population: str) -> list[float]:
        """How long each experiment over this population lets a device rest that has contributed."""
        return [each.request.rounds.rest_s for each in self._running.values() if each.population == population]

    def _next_round_s(self, opened: OpenRound, now: int) -> float:
        """In how many seconds the round after this one should begin, if this one takes as long as the shorter of the
        last two; 0 when that is unknown, or tasks may be handed out before.
        """
        config, usual = opened.value.config, self._rounds.durations.get(opened.row.experiment)
        if usual is None or config.federated_evaluation or config.buffered:
            return 0.0
        # Never later than a whole round from now, also where the clock was set back since this one began.
        left = (opened.row.created_at - now) / 1000 + min(usual)
        return min(max(left, 0.0), min(usual))

    async def refresh(self) -> None:
        """Look at the rows again."""
        commits = self._storage.database.commits
        async with self._storage.database.read() as session:
            identifiers = await experiments.running_ids(session)
            found = {name: self._running.get(name) or await self._looked_up(session, name) for name in identifiers}
            opened = await experiments.open_rounds(session)
        self._running = {name: running for name, running in found.items() if running is not None}
        self.quarantined = {name: why for name, why in self.quarantined.items() if found.get(name, why) is None}
        self._opened = {}
        for each in opened:
            self._traffic.use(each.row.experiment, [sha for sha in (each.value.base, each.value.version) if sha])
            if each.row.experiment in self._running:
                self._opened.setdefault(self._running[each.row.experiment].population, []).append(each)
        self._traffic.forget(self._running)
        self._as_of = commits

    async def _looked_up(self, session: AsyncSession, name: str) -> Running | None:
        row = await experiments.find(session, name)
        if row is None:
            return None
        request = experiments.request_of(row)
        frozen = [request.frozen.sha256] if request.frozen else []
        try:
            manifest = await self._storage.plans.manifest(row.plan)
            graphs = [file.sha256 for file in manifest.files]
            await asyncio.to_thread(self._storage.plans.check_files, graphs, [row.model, *frozen])
        except CoterieError as error:
            if self.quarantined.get(name) != error.message:
                log.error("experiment stands still", experiment=name, name=row.name, why=error.message, hint=error.hint)
            self.quarantined[name] = error.message
            return None
        self._traffic.use(name, [row.plan, row.model, *graphs, *frozen])
        return Running(row.population, request, Needs.of(manifest))

    async def current(self) -> None:
        """See every commit of this process that has returned; one look serves all who wait for it."""
        async with self._looking:
            if self._as_of != self._storage.database.commits:
                await self.refresh()

    async def catch_up(self) -> bool:
        """Refresh for somebody whose own work is already committed: a failure is logged, not passed on."""
        try:
            await self.current()
        except Exception as error:
            log.error("the board is out of date", exc_info=error)
            return False
        return True

    async def follow(self, bell: Bell) -> None:
        """Refresh after every change, at most ten times a second. A database that does not answer is asked again a
        little later: a board that stood still would leave devices idle while there is work.
        """
        while True:
            ring = bell.next_ring()
            if not await self.catch_up():
                await asyncio.sleep(RETRY_S)
                continue
            await ring.wait()
            await asyncio.sleep(0.1)
