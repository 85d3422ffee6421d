"""A task of the coordinator above becomes a round here: its blobs, its experiment, and the round that answers it."""

import asyncio
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.accumulator import tree_reducer
from coterie.aggregation.plan.check import check_plan
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.round import RoundConfig
from coterie.client_sdk.device.blobs import BlobCache
from coterie.errors import PlanRefused, PolicyRefused
from coterie.protocol.codecs.table import unfit
from coterie.protocol.control import ExperimentCreate, RoundPolicy, ServerRule
from coterie.protocol.device import EdgeTerms, Task
from coterie.protocol.layout import Layout
from coterie.protocol.tensors import TensorLimits, decode_tensors
from coterie.server.clock import now_ms
from coterie.server.edge.membership import EdgeMembership
from coterie.server.floor import check_floor, policy_of
from coterie.server.rounds.edge_terms import CHOICE
from coterie.server.rounds.transitions import Rounds
from coterie.server.settings import Settings
from coterie.server.storage import Storage
from coterie.server.store import blob_rows, devices, events, experiments, populations, upstream
from coterie.server.store.blobs import in_one
from coterie.server.store.tables import BlobRow, ExperimentRow, ModelRow, RoundRow, UpstreamTaskRow

MOST_ROUNDS = 1_000_000
KEPT_ROUNDS = 4
"""The versions of so many rounds stay, so that devices that have one can be sent the difference to the newest."""
SHARE_OF_TIME = 0.8
"""So much of what is left of the round above may the round here take; the rest is for adding up and sending."""


@dataclass(frozen=True)
class Mirror:
    """Makes rounds of tasks."""

    settings: Settings
    storage: Storage
    rounds: Rounds
    cache: BlobCache

    async def take(self, membership: EdgeMembership, task: Task) -> bool:
        """Check a task, fetch what it names and begin the round that answers it. False for a task known before.

        Guarantees: the coordinator pinned at enrolment signed this very task for this edge aggregator; an accepted key
        signed the plan; every byte has its digest. What the devices below check again is checked here too, so that a
        bad task costs none of them anything.
        Raises PolicyRefused, PlanRefused, ExperimentError (``reducer_in_tree``), TensorFileError, Unauthenticated;
        Forbidden (``population_policy``) for a task below the floor of the population here; RemoteError.
        """
        async with self.storage.database.read() as session:
            if await upstream.find(session, task.id) is not None:
                return False
            await _check_circle(session, task)
            signers = await populations.signers(session, membership.population)
            known = await experiments.find(session, task.experiment)
            nested = await devices.any_edge(session, membership.population)
            population = await populations.find(session, membership.population)
        terms = self._accepted(membership, task, known)
        manifest = await self._fetch(task, signers)
        config = local_config(self.settings, task, terms, nested=nested)
        if population is not None:
            fewest = needed(self.settings, terms)
            bounds = replace(config, cohort=max(config.cohort, fewest), min_updates=fewest)
            coordinator = local_request(population.name, task, manifest, bounds)
            check_floor(population.name, policy_of(population), coordinator, manifest)
        async with self.storage.database.write("mirrored") as session:
            experiment = await self._experiment(session, membership, task, manifest, config)
            number = await self.rounds.begin_for(session, experiment, config, base=task.model.sha256, upstream=task.id)
            session.add(
                UpstreamTaskRow(
                    id=task.id,
                    experiment=experiment.id,
                    number=number,
                    message=task.model_dump_json(exclude_unset=True),
                    state=upstream.LEASED,
                    min_clients=needed(self.settings, terms),
                    created_at=now_ms(),
                )
            )
            dropped = await _drop_base(session, experiment.id, number)
        if dropped is not None:
            await self.storage.blobs.delete("blobs", [dropped])
        return True

    def _accepted(self, membership: EdgeMembership, task: Task, known: ExperimentRow | None) -> EdgeTerms:
        """The task's terms, if this edge aggregator takes it."""
        task.verify(membership.coordinator_key)
        task.plan.verify()
        if task.device != membership.device:
            raise PolicyRefused("The task was signed for another edge aggregator.", code="task_of_another")
        if task.edge is None:
            raise PolicyRefused(
                "The task is a device's: it has no terms for an edge aggregator.",
                hint="Enrol with a token of the kind edge.",
                code="task_without_terms",
            )
        if known is not None and known.state == "stopped":
            raise PolicyRefused("The operator of this edge aggregator stopped the experiment.", code="stopped_here")
        if needed(self.settings, task.edge) > task.edge.max_clients:
            raise PolicyRefused(
                f"The task lets this edge aggregator speak for {task.edge.max_clients} clients; it requires "
                f"at least {needed(self.settings, task.edge)} clients.",
                hint="Lower --edge-min-clients, or enrol with a token that allows more.",
                code="too_few_clients",
            )
        unknown = unfit(task.codecs)
        if unknown:
            raise PolicyRefused(
                f"The task asks for codecs that this edge aggregator does not know: {'; '.join(unknown)}.",
                hint="Install a version of coterie that is closer to the coordinator's above.",
                code="unknown_codec",
            )
        tree_reducer(task.edge.reducer)
        return task.edge

    async def _fetch(self, task: Task, signers: tuple[str, ...]) -> Manifest:
        """Everything that the task names, durable here."""
        data = await self._blob(task.plan.id, "plan", None)
        files = Manifest.from_bytes(data).files
        graphs = {file.name: await self._blob(file.sha256, "graph", file.size) for file in files}
        plan = await asyncio.to_thread(
            check_plan,
            data,
            graphs,
            signature=task.plan.signature,
            signer=task.plan.signer,
            allowed_signers=signers,
        )
        await self._tensors(task.model.sha256, "model", task.model.size, plan.manifest.layout)
        if plan.manifest.frozen is not None:
            await self._tensors(plan.manifest.frozen.sha256, "frozen", None, plan.manifest.frozen.layout)
        return plan.manifest

    async def _blob(self, sha256: str, kind: str, size: int | None) -> bytes:
        async with self.storage.database.read() as session:
            row = await blob_rows.find(session, sha256)
        if row is None or row.kind not in blob_rows.PUBLIC_KINDS:
            data = await self.cache.fetch(sha256, limit=self.settings.blob_limit, size=size)
            await self.storage.blobs.put("blobs", sha256, in_one(data), point="mirror", size=len(data))
            async with self.storage.database.write("fetched") as session:
                await blob_rows.keep(session, sha256, len(data), kind)
            self.cache.prune(keep=frozenset(), bytes_kept=0)
            return data
        return await asyncio.to_thread(self.storage.blobs.reader.read, "blobs", sha256)

    async def _tensors(self, sha256: str, kind: str, size: int | None, layout: Layout) -> None:
        await asyncio.to_thread(_check_tensors, await self._blob(sha256, kind, size), layout, kind)

    async def _experiment(
        self, session: AsyncSession, membership: EdgeMembership, task: Task, manifest: Manifest, config: RoundConfig
    ) -> ExperimentRow:
        """The experiment of above as it is known here; what a task says of it holds from this round on."""
        request = local_request(membership.population, task, manifest, config)
        known = (await experiments.lock_all(session, (task.experiment,))).get(task.experiment)
        row = None if known is None else known.experiment
        if row is None:
            row = await experiments.create(session, task.experiment, request, manifest.id)
            events.append(session, "experiment.mirrored", {"name": row.name, "population": row.population}, row.id)
        row.request, row.plan, row.model = request.model_dump_json(), manifest.id, task.model.sha256
        row.state, row.reason, row.finished_at = experiments.RUNNING, None, None
        await session.flush()
        return row


async def _check_circle(session: AsyncSession, task: Task) -> None:
    """What was made here may not come back from above. Raises PolicyRefused (``circular_tree``)."""
    own = await experiments.find(session, task.experiment) is not None
    if own and not await upstream.mirrored(session, task.experiment):
        raise PolicyRefused(
            f"The experiment {task.experiment} was made at this coordinator, so the one above it is also below it.",
            hint="Let --upstream name a coordinator above this one, never itself or one of its edge aggregators.",
            code="circular_tree",
        )


def needed(settings: Settings, terms: EdgeTerms) -> int:
    """Of how many clients an answer must be at least: both sides have a say."""
    return max(settings.edge_min_clients, terms.min_clients)


def local_config(settings: Settings, task: Task, terms: EdgeTerms, *, nested: bool) -> RoundConfig:
    """What the round that answers a task aims for.

    nested: whether edge aggregators may be among its clients; then one update may be enough, since it is of many.
    """
    fewest = needed(settings, terms)
    cohort = min(max(settings.edge_cohort, 1 if nested else fewest), terms.max_clients)
    left = max(SHARE_OF_TIME * terms.deadline_ms / 1000, 0.1)
    seconds = min(left, settings.edge_deadline_s or left)
    least = 1 if nested else fewest
    if task.kind == "evaluate":
        return RoundConfig(
            cohort=cohort,
            min_updates=least,
            evaluate_only=True,
            federated_evaluation=True,
            evaluation_cohort=cohort,
            evaluation_deadline_s=seconds,
        )
    return RoundConfig(
        cohort=cohort, over_selection=settings.edge_over_selection, min_updates=least, deadline_s=seconds
    )


def local_request(population: str, task: Task, manifest: Manifest, config: RoundConfig) -> ExperimentCreate:
    """The experiment as this edge aggregator's devices meet it."""
    return ExperimentCreate(
        name=manifest.name,
        population=population,
        plan=task.plan,
        initial=task.model,
        rounds=RoundPolicy(
            rounds=MOST_ROUNDS,
            cohort=config.cohort,
            min_updates=config.min_updates,
            over_selection=config.over_selection,
            deadline_s=config.deadline_s,
            lease_s=max(task.lease_ms / 1000, 0.001),
            weight_cap=task.weight_cap,
            # Whom an evaluation asks is the task's to say, as it is in an experiment that only evaluates.
            purpose=task.kind,
            evaluate_every=int(task.kind == "evaluate"),
            **{name: getattr(task.edge, name) for name in CHOICE if task.edge is not None},
        ),
        server=ServerRule(name="sgd"),
        reducer=task.edge.reducer if task.edge else "mean",
        codecs=task.codecs,
        hyper=task.hyper,
        frozen=task.frozen,
        seed=task.seed,
    )


async def _drop_base(session: AsyncSession, experiment: str, number: int) -> str | None:
    """Forget the version of the round that is too old by now, unless something here still needs it. Returns its digest.

    number: of the round that has just begun.
    """
    row = await session.get(RoundRow, (experiment, number - KEPT_ROUNDS))
    if row is None:
        return None
    later = (RoundRow.experiment == experiment) & (RoundRow.number > row.number)
    in_use = select(RoundRow.base).where(RoundRow.base == row.base, later | RoundRow.phase.in_(experiments.OPEN_PHASES))
    in_a_lineage = select(ModelRow.sha256).where(ModelRow.sha256 == row.base)
    for query in (in_use, in_a_lineage):
        if (await session.execute(query.limit(1))).first() is not None:
            return None
    blob = await session.get(BlobRow, row.base)
    if blob is None:
        return None
    await session.delete(blob)
    return row.base


def _check_tensors(data: bytes, layout: Layout, kind: str) -> None:
    limits = TensorLimits(max_bytes=layout.size * 4 + (1 << 20), dtypes=frozenset({"F32"}))
    vector = layout.flatten(decode_tensors(data, limits))
    if not np.isfinite(vector).all():
        raise PlanRefused(f"The {kind} of the task holds values that are not finite.", code="model_not_finite")
