"""Which populations have work at all: lets an idle check-in be answered without a query."""

import asyncio

import structlog

from coterie.protocol.control import ExperimentCreate
from coterie.server.bell import Bell
from coterie.server.plans import Plans
from coterie.server.store import experiments
from coterie.server.store.engine import Database
from coterie.server.traffic import Traffic

RETRY_S = 1.0
log = structlog.get_logger("coterie.server")


class Board:
    """The running experiments by population, as of the last commit. A hint: rows decide."""

    def __init__(self, database: Database, plans: Plans, traffic: Traffic) -> None:
        self._database = database
        self._plans = plans
        self._traffic = traffic
        self._running: dict[str, str] = {}

    @property
    def count(self) -> int:
        """How many experiments run."""
        return len(self._running)

    def busy(self, population: str) -> bool:
        """Whether an experiment runs over this population."""
        return population in self._running.values()

    async def refresh(self) -> None:
        """Look at the rows again."""
        async with self._database.read() as session:
            rows = await experiments.running(session)
            opened = await experiments.open_rounds(session)
        for row in rows:
            if row.id not in self._running:
                request = ExperimentCreate.model_validate_json(row.request)
                frozen = [request.frozen.sha256] if request.frozen else []
                graphs = [graph.sha256 for graph in (await self._plans.manifest(row.plan)).graphs.values()]
                self._traffic.use(row.id, [row.plan, row.model, *graphs, *frozen])
        for found in opened:
            self._traffic.use(
                found.row.experiment, [sha256 for sha256 in (found.value.base, found.value.version) if sha256]
            )
        self._running = {row.id: row.population for row in rows}
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
