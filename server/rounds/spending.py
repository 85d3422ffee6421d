"""What rounds do to their population's privacy budget: reserved when a round begins, spent before its first noised or
unmasked value can exist, given back if none ever did. Each in the transaction that makes it true of the round.

Where devices add their noise before anything leaves them (`LocalLevel`, `ExampleLevel`), a noised value may exist as
soon as a task is out: their rounds spend as they begin.
"""

import asyncio
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.engine import Round, RoundPhase
from coterie.aggregation.private import costs
from coterie.aggregation.private.secure_aggregation import coordinator_noises, secure_of
from coterie.aggregation.round import Cause as RoundCause
from coterie.errors import ExperimentError, StorageError
from coterie.privacy.dp.events import PrivacyEvent
from coterie.privacy.dp.rounds import Draws, whole_cost
from coterie.privacy.dp.statement import Trust, trusted
from coterie.privacy.ledger.budget import Excess, charged, events_of, excess
from coterie.privacy.ledger.events import Bound, RefundCause
from coterie.privacy.ledger.state import CostState, State
from coterie.protocol.canonical import canonical_json
from coterie.protocol.claims import PrivacyTerms
from coterie.protocol.control import ExperimentCreate
from coterie.protocol.conversion import to_json
from coterie.protocol.privacy import ExampleLevel, Privacy, UserLevel
from coterie.server.clock import now_ms
from coterie.server.plans import Plans
from coterie.server.store import experiments
from coterie.server.store.ledger import Ledger
from coterie.server.store.tables import ExperimentRow

log = structlog.get_logger("coterie.server.spending")
MOST_CLAIMS = 1000


def privacy_of(request: ExperimentCreate) -> Privacy | None:
    """The differential privacy that an experiment asks for; None also where its rounds train nothing."""
    if request.privacy is None or request.rounds.purpose == "evaluate":
        return None
    return request.privacy


@dataclass(frozen=True)
class Noised:
    """Of a plan, what its price depends on: how many weights are noised, and how devices draw rows (`ExampleLevel`)."""

    length: int
    draws: Draws | None


@dataclass(frozen=True)
class Spending:
    """The budget's side of rounds.

    claimed: what experiments promise, as far as this process has worked it out.
    """

    ledger: Ledger
    plans: Plans
    claimed: dict[str, PrivacyTerms] = field(default_factory=dict[str, PrivacyTerms])

    async def admit(self, session: AsyncSession, experiment: ExperimentRow, request: ExperimentCreate) -> Excess | None:
        """Write down what a new experiment may lose by all of its rounds, unless a limit does not allow that."""
        privacy = privacy_of(request)
        if privacy is None:
            return None
        noised = await self._noised(experiment)
        _, state = await self.ledger.read(session, experiment.population)
        bound, broken = await asyncio.to_thread(self._forecast, state, experiment.id, request, privacy, noised)
        if broken is None:
            await self.ledger.limit(session, experiment.population, experiment.id, bound)
        return broken

    async def reserve(
        self, session: AsyncSession, experiment: ExperimentRow, request: ExperimentCreate, number: int
    ) -> Excess | None:
        """Keep the cost of a round that is about to begin; the limit that does not allow it, if any."""
        privacy = privacy_of(request)
        if privacy is None:
            return None
        population, noised = experiment.population, await self._noised(experiment)
        _, state = await self.ledger.read(session, population)
        cost = await asyncio.to_thread(_cost, state, experiment.id, request, privacy, number, noised)
        found = await self.ledger.reserve(session, population, experiment.id, number, cost)
        if found is None and not isinstance(privacy, UserLevel):
            await self.ledger.spend(session, population, experiment.id, number)
        return found

    async def settle(self, session: AsyncSession, experiment: ExperimentRow, value: Round) -> None:
        """Give back what a round that has been abandoned did not spend. A broken ledger keeps it reserved, and holds
        up nothing: an experiment can be stopped whatever became of its books.
        """
        if value.phase is not RoundPhase.ABANDONED or privacy_of(experiments.request_of(experiment)) is None:
            return
        cause = RefundCause.STOPPED if value.cause is RoundCause.STOPPED else RefundCause.ABANDONED
        try:
            await self.ledger.refund(session, experiment.population, experiment.id, value.number, cause)
        except StorageError as error:
            log.error("reservation stays", experiment=experiment.id, round=value.number, why=error.message)

    async def pay(self, session: AsyncSession, experiment: ExperimentRow, number: int) -> bytes:
        """Spend what a round that the coordinator noises has reserved; the seed of its noise, the same every time."""
        return await self.ledger.spend_with_noise(session, experiment.population, experiment.id, number)

    async def pay_for_sums(self, session: AsyncSession, experiment: ExperimentRow, number: int) -> None:
        """Spend what a round under secure aggregation has reserved, if it costs anything; once, however often.

        Due in the transaction that lets the list of survivors out: from then on devices answer with what opens the sum,
        and whatever becomes of the attempt, somebody may have heard enough. The seed of the noise that the coordinator
        adds itself is drawn with it.
        """
        privacy = privacy_of(experiments.request_of(experiment))
        if privacy is None:
            return
        if coordinator_noises(privacy):
            await self.pay(session, experiment, number)
        else:
            await self.ledger.spend(session, experiment.population, experiment.id, number)

    async def noise_seed(self, session: AsyncSession, experiment: ExperimentRow, number: int) -> bytes | None:
        """The seed of the coordinator's noise in a round that was paid for; None where it adds none.

        Raises errors.InternalError for a round that was not paid for: its sum is never opened.
        """
        return await self.ledger.noise_seed(session, experiment.population, experiment.id, number)

    async def foresee(self, session: AsyncSession, experiment: ExperimentRow, number: int) -> None:
        """Do the accounting of a round that may follow, so that the transaction that begins it finds it done."""
        request = experiments.request_of(experiment)
        privacy = privacy_of(request)
        if privacy is None or number > request.rounds.rounds:
            return
        noised = await self._noised(experiment)
        _, state = await self.ledger.read(session, experiment.population)
        cost = await asyncio.to_thread(_cost, state, experiment.id, request, privacy, number, noised)
        await self.ledger.would_exceed(session, experiment.population, experiment.id, cost)

    async def lost(self, session: AsyncSession, experiment: ExperimentRow) -> Mapping[str, Any]:
        """What an experiment has lost when it ends: ``epsilon``, ``delta``; nothing for one without privacy, and where
        the ledger is broken.
        """
        if privacy_of(experiments.request_of(experiment)) is None:
            return {}
        try:
            _, state = await self.ledger.read(session, experiment.population)
        except StorageError as error:
            log.error("loss cannot be told", experiment=experiment.id, why=error.message)
            return {}
        bound = state.limits.get(experiment.id)
        if bound is None:
            return {}
        spent = [charge for charge in state.of(experiment.id) if charge.state is CostState.SPENT]
        epsilon = await asyncio.to_thread(self.ledger.accountant, events_of(spent), bound.delta)
        return {"epsilon": epsilon if math.isfinite(epsilon) else None, "delta": bound.delta}

    async def claim(self, experiment: ExperimentRow, request: ExperimentCreate) -> PrivacyTerms | None:
        """What an experiment promises by all of its rounds, for its signed tasks; None without privacy."""
        privacy = privacy_of(request)
        if privacy is None:
            return None
        if experiment.id not in self.claimed:
            noised = await self._noised(experiment)
            bound = await asyncio.to_thread(self._whole, request, privacy, noised)
            if len(self.claimed) >= MOST_CLAIMS:
                self.claimed.clear()
            self.claimed[experiment.id] = PrivacyTerms(
                unit="example" if isinstance(privacy, ExampleLevel) else "user",
                epsilon=bound.epsilon,
                delta=bound.delta,
                mechanism="dp_sgd" if isinstance(privacy, ExampleLevel) else privacy.mechanism,
                trusts=_trusts(request, privacy),
            )
        return self.claimed[experiment.id]

    async def _noised(self, experiment: ExperimentRow) -> Noised:
        """What its plan says about its noise."""
        manifest = await self.plans.manifest(experiment.plan)
        return Noised(manifest.layout.size, manifest.training.draws())

    def _forecast(
        self, state: State, experiment: str, request: ExperimentCreate, privacy: Privacy, noised: Noised
    ) -> tuple[Bound, Excess | None]:
        """What all rounds come to, and the limit that does not allow it."""
        bound = self._whole(request, privacy, noised)
        whole = _all_rounds(request, privacy, noised)
        return bound, excess(state, now_ms(), experiment, whole, self.ledger.accountant)

    def _whole(self, request: ExperimentCreate, privacy: Privacy, noised: Noised) -> Bound:
        """What all rounds come to at the experiment's own δ. Raises errors.ExperimentError where that is no ε."""
        delta = privacy.delta or costs.SMALLEST_DELTA
        epsilon = self.ledger.accountant(_all_rounds(request, privacy, noised), delta)
        if not 0 < epsilon < math.inf:
            raise ExperimentError(
                f"This gives no privacy: at δ {delta:g} all rounds together come to ε {epsilon:g}.",
                hint="Ask for more noise, or a larger delta.",
                code="privacy_invalid",
            )
        return Bound(epsilon, delta)


def _cost(
    state: State, experiment: str, request: ExperimentCreate, privacy: Privacy, number: int, noised: Noised
) -> tuple[str, ...]:
    released = tuple(charge.round for charge in charged(state, experiment, 0, experiment))
    return cost_of(request, privacy, number, released, noised)


def _all_rounds(request: ExperimentCreate, privacy: Privacy, noised: Noised) -> tuple[str, ...]:
    policy = request.rounds
    real = costs.really_measured(privacy, secure_of(request), policy, length=noised.length)
    return _written(whole_cost(privacy, policy.rounds, cohort=policy.cohort, draws=noised.draws, measured=real))


def _trusts(request: ExperimentCreate, privacy: Privacy) -> Trust:
    """Who must do as the protocol says for the promise to hold."""
    secure = secure_of(request)
    return trusted(privacy, None if secure is None else secure.mode)


def cost_of(
    request: ExperimentCreate, privacy: Privacy, number: int, released: Collection[int], noised: Noised
) -> tuple[str, ...]:
    """What a round adds to what the rounds before have cost, as the ledger writes it."""
    policy = request.rounds
    return _written(
        costs.cost_of(
            privacy, secure_of(request), policy, number, released=released, length=noised.length, draws=noised.draws
        )
    )


def _written(events: Iterable[PrivacyEvent]) -> tuple[str, ...]:
    return tuple(canonical_json(to_json(event)).decode() for event in events)
