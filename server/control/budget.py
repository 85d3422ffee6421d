"""A population's privacy budget: what is lost, what is reserved, and the ledger that says so."""

import asyncio
import math
from collections.abc import Sequence

from coterie.privacy.ledger.budget import charged, clock, events_of
from coterie.privacy.ledger.chain import Entry, Head
from coterie.privacy.ledger.events import EACH, YEAR
from coterie.privacy.ledger.state import Charge, CostState, State
from coterie.protocol.budget import BudgetLimit, BudgetView, ExperimentBudget, LedgerEntry
from coterie.protocol.control import Page
from coterie.protocol.conversion import to_json
from coterie.server.auth.gate import OpenCoordinator, gated_router
from coterie.server.clock import now_ms
from coterie.server.control.populations import PopulationPath, find_population
from coterie.server.floor import policy_of
from coterie.server.paging import PageCursor, PageLimit, number_after, page
from coterie.server.store import ledger
from coterie.server.store.ledger import Ledger

router = gated_router("budgets")
DELTA = 1e-5
"""At which losses are told where nobody has set a δ."""


@router.get("/v1/populations/{name}/budget", operation_id="getBudget", summary="The privacy budget of a population")
async def show(name: PopulationPath, coordinator: OpenCoordinator) -> BudgetView:
    """Of a unit that took part in everything: what it may have lost, by experiment and over 365 days."""
    async with coordinator.storage.database.read() as session:
        row = await find_population(session, name)
        head, state = await coordinator.rounds.spending.ledger.read(session, row.name)
    delta = policy_of(row).delta or DELTA
    return await asyncio.to_thread(view, coordinator.rounds.spending.ledger, head, state, delta, now_ms())


@router.get(
    "/v1/populations/{name}/budget/entries",
    operation_id="listBudgetEntries",
    summary="The ledger of a population, the oldest entry first",
)
async def entries(
    name: PopulationPath, coordinator: OpenCoordinator, limit: PageLimit = 100, cursor: PageCursor = None
) -> Page[LedgerEntry]:
    """Append-only, each entry chained to the one before by its digest and signed by the coordinator's key."""
    async with coordinator.storage.database.read() as session:
        row = await find_population(session, name)
        found = await ledger.entries(session, row.name, number_after(cursor, 0), limit + 1)
    return page(found, limit, lambda entry: entry.sequence, [entry_view(entry) for entry in found])


def entry_view(entry: Entry) -> LedgerEntry:
    """An entry as a message."""
    return LedgerEntry.model_validate(to_json(entry))


def view(ledger: Ledger, head: Head, state: State, delta: float, now: int) -> BudgetView:
    """The budget by a ledger's state. Accounting may take a second for each cost that it has not seen before."""
    limits = tuple(
        BudgetLimit(scope=scope, epsilon=bound.epsilon, delta=bound.delta) for scope, bound in state.limits.items()
    )
    year = state.limits.get(YEAR)
    at = year.delta if year else delta
    within = charged(state, YEAR, clock(state, now), "")
    return BudgetView(
        population=head.population,
        entries=head.sequence,
        digest=head.digest,
        limits=limits,
        delta=at,
        epsilon_year_spent=_epsilon(ledger, _spent_charges(within), at),
        epsilon_year=_epsilon(ledger, within, at),
        experiments=tuple(_experiment(ledger, state, name, delta) for name in state.experiments),
    )


def _experiment(ledger: Ledger, state: State, name: str, delta: float) -> ExperimentBudget:
    charges = [charge for charge in state.charges.values() if charge.experiment == name]
    counts = {state: sum(charge.state is state for charge in charges) for state in CostState}
    own, each = state.limits.get(name), state.limits.get(EACH)
    at = own.delta if own else each.delta if each else delta
    bounds = [bound.epsilon for bound in (own, each) if bound is not None and bound.delta == at]
    return ExperimentBudget(
        experiment=name,
        rounds_spent=counts[CostState.SPENT],
        rounds_reserved=counts[CostState.RESERVED],
        rounds_refunded=counts[CostState.REFUNDED],
        epsilon_spent=_epsilon(ledger, _spent_charges(charges), at),
        epsilon=_epsilon(ledger, state.of(name), at),
        delta=at,
        limit=min(bounds, default=None),
    )


def _spent_charges(charges: Sequence[Charge]) -> tuple[Charge, ...]:
    return tuple(charge for charge in charges if charge.state is CostState.SPENT)


def _epsilon(ledger: Ledger, charges: Sequence[Charge], delta: float) -> float | None:
    found = ledger.accountant(events_of(charges), delta)
    return found if math.isfinite(found) else None
