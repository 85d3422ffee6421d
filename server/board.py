"""Which populations have work at all: lets an idle check-in be answered without a query."""

import asyncio

import structlog

from coterie.aggregation.engine import open_slots
from coterie.protocol.control import RoundPolicy
from coterie.server.bell import Bell
from coterie.server.device.pace import Demand
from coterie.server.plans import Plans
from coterie.server.rounds.transitions import Rounds
from coterie.server.store import experiments
from coterie.server.store.engine import Database
from coterie.server.store.experiments import OpenRound

RETRY_S = 1.0
log = structlog.get_logger("coterie.server")


class Board:
    """The running experiments by population, as of the last commit. A hint: rows decide."""

    def __init__(self, database: Database, plans: Plans, rounds: Rounds) -> None:
        self._database = database
        self._plans = plans
        self._rounds = rounds
        self._traffic = rounds.traffic
        self._running: dict[str, str] = {}
        self._policies: dict[str, RoundPolicy] = {}
        self._opened: dict[str, list[OpenRound]] = {}

    @property
    def count(self) -> int:
        """How many experiments run."""
        return len(self._running)

    def busy(self, population: str) -> bool:
        """Whether an experiment runs over this population."""
        return population in self._running.values()

    def demand(self, population: str, now: int) -> Demand | None:
        """What the experiments over this population want of its devices; None when none runs. now: milliseconds."""
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
        return [self._policies[name].rest_s for name, where in self._running.items() if where == population]

    def _next_round_s(self, found: OpenRound, now: int) -> float:
        """In how many seconds the round after this one should begin, if this one takes as long as the shorter of the
        last two; 0 when that is unknown, or tasks may be handed out before.
        """
        config, usual = found.value.config, self._rounds.durations.get(found.row.experiment)
        if usual is None or config.federated_evaluation or config.buffered:
            return 0.0
        # Never later than a whole round from now, also where the clock was set back since this one began.
        left = (found.row.created_at - now) / 1000 + min(usual)
        return min(max(left, 0.0), min(usual))

    async def refresh(self) -> None:
        """Look at the rows again."""
        async with self._database.read() as session:
            rows = await experiments.running(session)
            opened = await experiments.open_rounds(session)
        for row in rows:
            if row.id not in self._running:
                request = experiments.request_of(row)
                self._policies[row.id] = request.rounds
                frozen = [request.frozen.sha256] if request.frozen else []
                graphs = [graph.sha256 for graph in (await self._plans.manifest(row.plan)).graphs.values()]
                self._traffic.use(row.id, [row.plan, row.model, *graphs, *frozen])
        for found in opened:
            self._traffic.use(
                found.row.experiment, [sha256 for sha256 in (found.value.base, found.value.version) if sha256]
            )
        self._running = {row.id: row.population for row in rows}
        self._policies = {name: policy for name, policy in self._policies.items() if name in self._running}
        self._opened = {}
        for found in opened:
            self._opened.setdefault(self._running.get(found.row.experiment, ""), []).append(found)
        self._traffic.forget(self._running)

    async def catch_up(self) -> bool:
        """Refresh for somebody whose own work is already committed: a failure is logged, not passed on."""
        try:
            await self.refresh()
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
