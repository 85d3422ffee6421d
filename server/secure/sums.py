"""From the attempts of a round to what the round waits for: sums opened, and made into a version or a measurement.

What takes time is done by the workers; its result is durable before the one transaction that mentions it. A crash in
between means doing it again, from the same rows and files and with the same result.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.engine import AggregateReady, EvaluationSummed
from coterie.aggregation.private.secure_aggregation import secure_of
from coterie.errors import InternalError
from coterie.server.clock import now_ms
from coterie.server.rounds.spending import privacy_of
from coterie.server.rounds.workers import JobFailed, WorkerLost
from coterie.server.secure.failing import fail, named
from coterie.server.secure.machine import Failed
from coterie.server.secure.opening import Sum
from coterie.server.secure.parts import Kind, Parts, summed_now
from coterie.server.store import attempts, blob_rows, events, experiments, mailbox, tasks
from coterie.server.store.attempts import Standing
from coterie.server.store.experiments import OpenRound
from coterie.server.store.tables import AttemptRow, ExperimentRow


async def open_sums(parts: Parts, found: OpenRound, kind: Kind) -> None:
    """Open the sums of a round's attempts, none of which waits for messages any more, and tell the round."""
    experiment, number = found.row.experiment, found.row.number
    async with parts.database.read() as session:
        row = await experiments.find(session, experiment)
        rows = await attempts.of_round(session, experiment, number, kind)
    ready = [attempt for attempt in rows if attempt.phase == attempts.UNMASKING]
    central = await _central(parts, found, row) if row is not None and ready and kind == "train" else {}
    if row is None or central is None:
        return
    folder = parts.opening.folder(found, kind)
    try:
        sums: list[tuple[AttemptRow, Sum]] = []
        for attempt in ready:
            opened = await _unmasked(parts, attempt, folder)
            if isinstance(opened, Failed):
                await fail(parts, _standing(attempt), opened)
            else:
                sums.append((attempt, opened))
        if sums and kind == "train":
            await _new_version(parts, found, row, sums, central or None, folder)
        elif sums:
            await _evaluated(parts, found, row, sums)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        await forget_over(parts, experiment, number)


async def forget_over(parts: Parts, experiment: str, number: int) -> None:
    """Delete the running sums of a round's attempts that are over. Whoever has asked a worker to write one calls this
    afterwards: the round may have ended, and its files been deleted, while the worker was still at it.
    """
    async with parts.database.read() as session:
        rows = await attempts.of_round(session, experiment, number)
    for row in rows:
        if row.phase in attempts.OVER:
            parts.opening.forget(row.id)


async def _central(parts: Parts, found: OpenRound, row: ExperimentRow) -> dict[str, Any] | None:
    """What the coordinator's own noise needs; empty where it adds none, None where the round has ended meanwhile.

    The round was paid for when the survivors of its first attempt were told; one that was not is never opened.
    """
    request, spending = experiments.request_of(row), parts.rounds.spending
    if privacy_of(request) is None:
        return {}
    async with parts.database.read() as session:
        opened = await experiments.open_round(session, row.id)
        if opened is None or opened.row.number != found.row.number or summed_now(opened) is None:
            return None
        seed = await spending.paid(session, row, found.row.number)
        await spending.foresee(session, row, found.row.number + 1)
    if seed is None:
        return {}
    secure = secure_of(request)
    return {
        "privacy": None if request.privacy is None else request.privacy.model_dump(mode="json"),
        "round": found.row.number,
        "rounds": request.rounds.rounds,
        "expected": request.rounds.cohort,
        "seed": seed.hex(),
        "groups": 1 if secure is None else secure.groups or 1,
    }


async def _unmasked(parts: Parts, attempt: AttemptRow, folder: Path) -> Sum | Failed:
    async with parts.database.read() as session:
        machine = await parts.machines.of(session, attempt)
        members = await attempts.members(session, attempt.id)
        revealed = await mailbox.bundles(session, attempt.id, "reveal")
    if machine is None:
        raise InternalError(f"The attempt {attempt.id} has no state.")
    places = {member.id: machine.places.get(member.device) for member in members}
    alive = [member for member in members if places[member.id] in machine.state.arrived]
    said = {place: revealed[task] for task, place in places.items() if task in revealed and place is not None}
    try:
        return await parts.opening.unmask(machine, alive, said, folder)
    except WorkerLost:
        raise
    except JobFailed as error:
        return Failed("unmask_failed", error.message)


async def _new_version(
    parts: Parts,
    found: OpenRound,
    row: ExperimentRow,
    sums: Sequence[tuple[AttemptRow, Sum]],
    central: dict[str, Any] | None,
    folder: Path,
) -> None:
    """Make the new version and the server's state durable, then say so."""
    try:
        result = await parts.opening.version(found, row, [opened for _, opened in sums], central, folder)
    except WorkerLost:
        raise
    except JobFailed as error:
        await _fail_all(parts, sums, Failed("aggregate_failed", error.message))
        return
    weights, state = result["weights"], result["state"]
    await parts.blobs.put("blobs", weights["sha256"], Path(weights["path"]), point="result")
    if state is not None:
        await parts.blobs.put("blobs", state["sha256"], Path(state["path"]), point="result")
    async with parts.database.write("aggregated") as session:
        round = await _summed(parts, session, found, "train", sums)
        if round is None:
            return
        await blob_rows.keep(session, weights["sha256"], weights["size"], "model")
        if state is not None:
            await blob_rows.keep(session, state["sha256"], state["size"], "state")
        dropped = round.value.accepted - sum(opened.survivors for _, opened in sums)
        event = AggregateReady(weights["sha256"], result["metrics"], dropped, result["clipped"])
        changes = {"aggregate": weights["sha256"], "server_state": state["sha256"] if state else None}
        parts.rounds.traffic.use(row.id, [weights["sha256"]])
        await parts.rounds.apply(session, round, event, changes)
    parts.metrics.attempts.labels("summed").inc(len(sums))


async def _evaluated(
    parts: Parts, found: OpenRound, row: ExperimentRow, sums: Sequence[tuple[AttemptRow, Sum]]
) -> None:
    """Tell the round what its devices measured together: an evaluation has one attempt."""
    ((attempt, opened),) = sums
    try:
        event = EvaluationSummed(await parts.opening.evaluation(found, row, opened))
    except WorkerLost:
        raise
    except JobFailed as error:
        await _fail_all(parts, sums, Failed("evaluation_failed", error.message))
        return
    async with parts.database.write("evaluated") as session:
        round = await _summed(parts, session, found, "evaluate", sums)
        if round is None:
            return
        await tasks.settle_attempt(session, attempt.id, tasks.COUNTED)
        await parts.rounds.apply(session, round, event)
    parts.metrics.attempts.labels("summed").inc()


async def _fail_all(parts: Parts, sums: Sequence[tuple[AttemptRow, Sum]], failed: Failed) -> None:
    for attempt, _ in sums:
        await fail(parts, _standing(attempt), failed)


async def _summed(
    parts: Parts, session: AsyncSession, found: OpenRound, kind: Kind, sums: Sequence[tuple[AttemptRow, Sum]]
) -> OpenRound | None:
    """End attempts with their sums: the clients that are in none drop out by name. The round as it is now; None, with
    nothing changed, where it does not wait for this any more.
    """
    round = await experiments.open_round(session, found.row.experiment)
    if round is None or round.row.number != found.row.number or summed_now(round) != kind:
        return None
    for attempt, opened in sums:
        machine = await parts.machines.of(session, attempt)
        changes = {
            "phase": attempts.SUMMED,
            "state": None,
            "deadline_at": None,
            "survivors": opened.survivors,
            "finished_at": now_ms(),
        }
        if machine is None or not await attempts.move(session, attempt.id, attempt.version, changes):
            raise InternalError(f"The attempt {attempt.id} was changed by another transaction.")
        dropped = 0
        for member in await attempts.members(session, attempt.id):
            if machine.places.get(member.device, -1) not in machine.state.arrived:
                dropped += 1
                await tasks.reject(session, member.id, tasks.ATTEMPT_DROPPED, "It was missing when the sum was made.")
        # By name, since nobody knows who stood at which place once the attempt's state is gone.
        at = {place: device for device, place in machine.places.items()}
        blamed = [[None if place is None else at[place] for place in pair] for pair in opened.blamed]
        told = {"survivors": opened.survivors, "dropped": dropped, "blamed": blamed}
        events.append(session, "attempt.summed", named(_standing(attempt)) | told, attempt.experiment)
    return round


def _standing(attempt: AttemptRow) -> Standing:
    """A row that waits for nobody, as it was seen."""
    return Standing(
        attempt.id, attempt.experiment, attempt.round, attempt.kind, attempt.phase, None, attempt.version, 0, 0
    )
