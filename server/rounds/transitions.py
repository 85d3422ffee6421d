"""The engine's steps as rows: a round's next value and everything that must be true with it, in one transaction.

Whoever changes a task tells the engine in the same transaction, under the lock of its experiment
(`coterie.server.store.experiments`), so rows and engine never disagree: an update is accepted if and only if its round
counts it. Of what is due (`coterie.aggregation.due`), tasks are closed and deadlines set here; work that takes time is
done by jobs, which ask the round's value too, again after a restart.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.eligibility import without_trusted
from coterie.aggregation.engine import (
    Ask,
    Close,
    EvaluationFailed,
    Round,
    RoundEvent,
    RoundPhase,
    StopRequested,
    TaskFailed,
    due,
    oldest,
    start,
    step,
)
from coterie.aggregation.private.secure_aggregation import coordinator_noises
from coterie.aggregation.progress import (
    ExperimentEnd,
    ExperimentProgress,
    Reason,
    StartRound,
    after_round,
    configure,
    first_round,
    measured,
    out_of_budget,
)
from coterie.aggregation.round import Cause, RoundConfig
from coterie.errors import InternalError
from coterie.privacy.ledger.budget import refusal
from coterie.protocol.control import ExperimentCreate, RoundPolicy
from coterie.protocol.conversion import from_text, to_text
from coterie.server.clock import now_ms
from coterie.server.fleet import Fleet
from coterie.server.rounds import answer
from coterie.server.rounds.eligibility import outcomes
from coterie.server.rounds.record import participants, round_record, uploaded
from coterie.server.rounds.reservations import reserve
from coterie.server.rounds.spending import Spending, privacy_of
from coterie.server.store import attempts, blob_rows, devices, events, experiments, jobs, tasks
from coterie.server.store.experiments import Locked, OpenRound
from coterie.server.store.tables import ExperimentRow, RoundRow, TaskRow
from coterie.server.traffic import BlobTraffic

log = structlog.get_logger("coterie.server.rounds")

# What an operator should hear of without asking.
_TROUBLE = frozenset((Reason.STALLED, Reason.BUDGET_EXHAUSTED))


@dataclass(frozen=True)
class Rounds:
    """Applies events to rounds inside the caller's transaction.

    spending: what they cost.
    durations: how long the last two rounds of each experiment took, in seconds, as far as this process has seen them.
    """

    spending: Spending
    traffic: BlobTraffic = field(default_factory=BlobTraffic)
    fleet: Fleet = field(default_factory=Fleet)
    durations: dict[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])

    async def begin_first(self, session: AsyncSession, experiment: ExperimentRow) -> None:
        """Begin the first round of a new experiment.

        Raises errors.Conflict (``budget_experiment``, ``budget_each``, ``budget_year``) where its rounds together would
        cost more privacy than is allowed.
        """
        request = experiments.request_of(experiment)
        broken = await self.spending.admit(session, experiment, request)
        broken = broken or await self.spending.reserve(session, experiment, request, 1)
        if broken is not None:
            raise refusal(broken)
        progress, action = first_round(from_text(ExperimentProgress, experiment.progress), _policy(experiment))
        experiment.progress = to_text(progress)
        await self._begin(session, experiment, action)

    async def lost(self, session: AsyncSession, locked: Locked, task: TaskRow) -> Locked:
        """Tell the round that a task, which was leased until just now, comes to nothing; a round that does not wait for
        it is not told. Returns the experiment with the round that is open then.
        """
        opened = locked.opened
        if opened is None or not awaits(opened, task):
            return locked
        failed = TaskFailed(task.place) if task.kind == "train" else EvaluationFailed()
        opened = await self.apply(session, locked.experiment, opened, failed)
        return replace(locked, opened=await self._without_trusted(session, locked.experiment, opened))

    async def shut_out(self, session: AsyncSession, locked: Locked) -> None:
        """A device of an experiment's population has been shut out for ever: end its round if nobody but the device
        could complete it.
        """
        await self._without_trusted(session, locked.experiment, locked.opened)

    async def _without_trusted(
        self, session: AsyncSession, experiment: ExperimentRow, opened: OpenRound | None
    ) -> OpenRound | None:
        """End a round at once whose trusted client can bring no update to it any more. Returns the round that is open
        then.
        """
        request = experiments.request_of(experiment)
        trusted = request.rounds.trusted
        if trusted is None or opened is None or opened.value.phase is not RoundPhase.COLLECTING:
            return opened
        states = await tasks.tried(session, experiment.id, opened.value.number, "train", trusted)
        enrolled = await devices.enrolled(session, trusted, experiment.population)
        why = without_trusted(opened.value, outcomes(states), enrolled=enrolled, privacy=privacy_of(request))
        if why is None:
            return opened
        return await self.apply(session, experiment, opened, StopRequested(Cause.TRUSTED_MISSING, why))

    async def apply(
        self,
        session: AsyncSession,
        experiment: ExperimentRow,
        opened: OpenRound,
        event: RoundEvent,
        changes: Mapping[str, Any] | None = None,
    ) -> OpenRound | None:
        """Take one step of the engine.

        Returns the experiment's round that is open then: this one, the next one, or none.
        experiment, opened: as `experiments.lock` returned them in this transaction, or `apply` since then.
        changes: columns of the round that become true with this step.
        Raises errors.Conflict, having changed nothing, where the round has no rule for the event.
        """
        row, before = opened.row, opened.value
        value = step(before, event)
        # A deadline belongs to the phase that set it.
        moved = {"deadline_at": None} if value.phase is not before.phase else {}
        await experiments.save_round(session, row, value, {**(changes or {}), **moved, **_deadline(row, value)})
        if before.phase is RoundPhase.AGGREGATING and value.phase is not before.phase:
            # The noised value is durable, or will never be.
            await self.spending.ledger.forget_noise(session, row.experiment, row.number)
        if value.phase.final:
            return await self._end(session, experiment, row, value, before)
        await self._follow(session, row, value, before)
        if value.phase is not before.phase:
            events.append(session, f"round.{value.phase.value}", {"round": value.number}, row.experiment)
        return OpenRound(row, value)

    async def _follow(self, session: AsyncSession, row: RoundRow, value: Round, before: Round | None) -> None:
        """Let the rows of tasks follow a round's value, which its own row has by now.

        Slots are read from the value; what takes time is a job's.
        before: its value until now; None for a round that begins.
        """
        done = () if before is None else due(before)
        for entry in due(value):
            if isinstance(entry, Close) and entry not in done:
                await tasks.close(session, row.experiment, row.number, entry.kind, now_ms())
        if before is not None and value.passed_on and not before.passed_on:
            await tasks.pass_on(session, row.experiment, row.number)

    async def _close_stale(self, session: AsyncSession, row: RoundRow, value: Round) -> None:
        """Take back, as a buffered round begins, what lags by more than the staleness cap."""
        last = oldest(value)
        if last is None:
            return
        for task in await tasks.close_stale(session, row.experiment, last, now_ms()):
            data = {"round": row.number, "task": task.id, "device": task.device, "code": task.code}
            events.append(session, "task.stale", data, row.experiment)

    async def _begin(
        self, session: AsyncSession, experiment: ExperimentRow, action: StartRound, before: Round | None = None
    ) -> OpenRound | None:
        request = experiments.request_of(experiment)
        config = configure(
            request.rounds,
            action.number,
            central=request.evaluation is not None,
            secure=request.secure is not None,
            noised=coordinator_noises(privacy_of(request)),
        )
        opened = await self._open(session, experiment, request, config, action, before)
        return await self._without_trusted(session, experiment, opened)

    async def begin_for(
        self, session: AsyncSession, experiment: ExperimentRow, config: RoundConfig, *, base: str, upstream: str
    ) -> int:
        """Begin the round with which an edge aggregator answers a task of the coordinator above. Returns its number."""
        request = experiments.request_of(experiment)
        action = StartRound(experiment.round + 1, base)
        await self._open(session, experiment, request, config, action, None, upstream)
        return experiment.round

    async def _open(
        self,
        session: AsyncSession,
        experiment: ExperimentRow,
        request: ExperimentCreate,
        config: RoundConfig,
        action: StartRound,
        before: Round | None,
        upstream: str | None = None,
    ) -> OpenRound:
        value = start(action.number, action.base, config, place=action.place, before=before)
        row = RoundRow(
            experiment=experiment.id,
            number=value.number,
            phase=value.phase.value,
            state=to_text(value),
            base=value.base,
            bytes_down=0,
            upstream=upstream,
            version=0,
            created_at=now_ms(),
        )
        reservation = await reserve(session, self.fleet, experiment, request, value, row.created_at)
        if reservation is not None:
            row.reserved, row.reserved_until = json.dumps(reservation.devices), reservation.until
        for name, content in _deadline(row, value).items():
            setattr(row, name, content)
        session.add(row)
        experiment.round = value.number
        await session.flush()
        await self._close_stale(session, row, value)
        await self._follow(session, row, value, None)
        events.append(session, "round.started", {"round": value.number, "cohort": value.config.cohort}, experiment.id)
        return OpenRound(row, value)

    async def _end(
        self, session: AsyncSession, experiment: ExperimentRow, row: RoundRow, value: Round, before: Round
    ) -> OpenRound | None:
        """Make true what the end of a round makes true. Returns the next round, if one begins.

        before: its value until now.
        """
        committed = value.phase is RoundPhase.COMMITTED
        await jobs.drop(session, row.experiment, row.number, now_ms())
        await self.spending.settle(session, experiment, value)
        cause = value.cause.value if value.cause else "round_over"
        # Before their tasks: a masked vector that is coming in holds its attempt, and then changes its task.
        unfinished = await attempts.end_all(session, row.experiment, row.number, cause, "its round is over")
        await self._follow(session, row, value, before)
        # In buffered mode the tasks that are out go on; what was passed on is not this round's any more. Whether the
        # updates of an edge aggregator count, the coordinator above says later.
        if row.upstream is None or not committed:
            await tasks.settle(session, row.experiment, row.number, tasks.COUNTED if committed else tasks.ROLLED_BACK)
        for attempt in unfinished:
            await tasks.settle_attempt(session, attempt.id, tasks.ROLLED_BACK)
            data = {"attempt": attempt.id, "round": row.number, "kind": attempt.kind, "cause": cause}
            if attempt.clients:
                events.append(session, "attempt.failed", data, row.experiment)
        row.finished_at = ended = now_ms()
        # The clock may have been set back meanwhile.
        lasted = max(ended - row.created_at, 0) / 1000
        row.cause = value.cause.value if value.cause else None
        row.bytes_down = self.traffic.take(row.experiment)
        record = round_record(
            value,
            bytes_up=await uploaded(session, experiment, row.number),
            bytes_down=row.bytes_down,
            seconds=lasted,
            lost=await self.spending.lost(session, experiment),
            given_up=await tasks.reasons(session, row.experiment, row.number),
            took_part=await participants(session, experiment, value),
        )
        row.record = json.dumps(record)
        # Events stay small; who took part is in the list of rounds.
        record = {name: entry for name, entry in record.items() if name != "participants"}
        self.durations[row.experiment] = (lasted, *self.durations.get(row.experiment, ())[:1])
        if committed and row.upstream is None and not value.config.evaluate_only:
            await self._adopt(session, experiment, row, value)
        events.append(session, f"round.{value.phase.value}", record, row.experiment)
        if row.upstream is None:
            return await self._continue(session, experiment, value)
        await answer.give(session, row, value)
        if value.cause is Cause.STOPPED:
            self.finish_mirrored(session, experiment, Reason.STOPPED)
        return None

    def finish_mirrored(self, session: AsyncSession, experiment: ExperimentRow, reason: Reason) -> None:
        """End an edge aggregator's part in an experiment."""
        _finish(session, experiment, reason, {"rounds": experiment.round})

    async def _adopt(self, session: AsyncSession, experiment: ExperimentRow, row: RoundRow, value: Round) -> None:
        version = value.version or ""
        experiment.model, experiment.server_state = version, row.server_state
        blob = await blob_rows.find(session, version)
        if blob is None:
            raise InternalError(f"Round {value.number} of {experiment.id} commits a version that was never stored.")
        await experiments.add_model(
            session,
            experiment,
            round=value.number,
            sha256=version,
            parent=value.base,
            size=blob.size,
            metrics=measured(value),
        )

    async def _continue(self, session: AsyncSession, experiment: ExperimentRow, value: Round) -> OpenRound | None:
        progress, action = after_round(from_text(ExperimentProgress, experiment.progress), value, _policy(experiment))
        limit: dict[str, Any] = {}
        if isinstance(action, StartRound):
            request = experiments.request_of(experiment)
            broken = await self.spending.reserve(session, experiment, request, action.number)
            if broken is not None:
                progress, action = out_of_budget(progress)
                limit = {"limit": broken.reason, "why": broken.sentence}
        experiment.progress, experiment.best = to_text(progress), progress.best
        match action:
            case StartRound():
                return await self._begin(session, experiment, action, value)
            case ExperimentEnd(reason, _):
                await tasks.end_all(session, experiment.id, value.number, now_ms())
                self.durations.pop(experiment.id, None)
                kept = {"best": progress.best, "model": progress.result_version, "rounds": progress.committed}
                lost = await self.spending.lost(session, experiment)
                _finish(session, experiment, reason, {**kept, **limit, **lost})
                return None


def awaits(opened: OpenRound, task: TaskRow) -> bool:
    """Whether this open round is the one that a leased task's outcome concerns: the round that handed it out, or in
    buffered mode any later one.
    """
    return opened.row.number == task.round or (opened.value.config.buffered and task.kind == "train")


def _deadline(row: RoundRow, value: Round) -> dict[str, Any]:
    """The columns of a round that change where its value begins to ask for something within a time."""
    changes: dict[str, Any] = {}
    for entry in due(value):
        if isinstance(entry, Ask) and entry.deadline_s is not None and row.deadline_kind != entry.kind:
            changes |= {"deadline_kind": entry.kind, "deadline_at": now_ms() + round(entry.deadline_s * 1000)}
    return changes


def _finish(session: AsyncSession, experiment: ExperimentRow, reason: Reason, details: Mapping[str, Any]) -> None:
    """End an experiment for this reason, and say so with what else there is to tell."""
    experiment.state = "stopped" if reason is Reason.STOPPED else "finished"
    experiment.reason, experiment.finished_at = reason.value, now_ms()
    ended = {"state": experiment.state, "reason": reason.value, "detail": reason.sentence, **details}
    events.append(session, "experiment.finished", ended, experiment.id)
    tell = log.warning if reason in _TROUBLE else log.info
    tell("experiment ended", experiment=experiment.id, name=experiment.name, reason=reason.value, why=reason.sentence)


def _policy(experiment: ExperimentRow) -> RoundPolicy:
    return experiments.request_of(experiment).rounds
