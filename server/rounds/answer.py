"""What a round of an edge aggregator answers upwards, as rows: everything here is part of the caller's transaction.

A device's update counts only when the root has committed, so an edge's round, when it ends well, leaves the verdict on
its updates open; `settle` gives it when the coordinator above has given its own.
"""

import json
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.engine import Round, RoundPhase
from coterie.aggregation.plan.manifest import METRICS, Manifest
from coterie.protocol import spread
from coterie.protocol.metrics import MetricSums
from coterie.protocol.update import encode_update
from coterie.server.store import events, tasks, upstream
from coterie.server.store.tables import RoundRow, UpstreamTaskRow

TOO_FEW_CLIENTS = "too_few_clients"


async def give(session: AsyncSession, row: RoundRow, value: Round) -> None:
    """Let the task above be answered by a round that has just ended: ready to be sent, or failed by name."""
    task = await upstream.find(session, row.upstream or "")
    if task is None:
        return
    if value.phase is not RoundPhase.COMMITTED:
        cause = value.cause.value if value.cause else ""
        await upstream.move(session, task.id, upstream.FAILED, detail=f"{cause}: {value.detail or 'no more is known'}")
        return
    if not value.config.evaluate_only:
        await upstream.move(session, task.id, upstream.READY)
        return
    clients = await tasks.clients(session, row.experiment, row.number, "evaluate")
    if clients < task.min_clients:
        detail = f"{TOO_FEW_CLIENTS}: {clients} clients evaluated; the answer must be of at least {task.min_clients}"
        await upstream.move(session, task.id, upstream.FAILED, detail=detail)
        return
    answer = {"clients": clients, "sums": dict(value.federated)}
    await upstream.move(session, task.id, upstream.READY, answer=json.dumps(answer))


def evaluation(task: UpstreamTaskRow, manifest: Manifest) -> bytes:
    """The accumulator of an evaluation, the same bytes whenever it is made."""
    message = upstream.message(task)
    answer: dict[str, Any] = json.loads(task.answer or "{}")
    sums, clients = MetricSums(answer["sums"]), int(answer["clients"])
    return encode_update(
        task=task.id,
        plan=message.plan.id,
        base=message.model.sha256,
        weight=min(int(sums.examples), message.weight_cap * clients),
        steps=0,
        specs=manifest.sections_for("evaluate"),
        sections={
            METRICS: sums.to_vector(manifest.metrics),
            spread.SECTION: spread.uncounted(manifest.metrics, sums),
        },
        kind="accumulator",
        clients=clients,
    ).data


async def settle(session: AsyncSession, task: UpstreamTaskRow, verdict: str, **changes: Any) -> bool:
    """Give the devices of a round the verdict on its answer: ``counted``, ``rolled_back`` or ``refused``. False when
    that had been done before.
    """
    if not await upstream.move(session, task.id, verdict, **changes):
        return False
    counted = tasks.COUNTED if verdict == upstream.COUNTED else tasks.ROLLED_BACK
    await tasks.settle(session, task.experiment, task.number, counted)
    data = {"round": task.number, "upstream": task.id, "verdict": counted}
    events.append(session, "round.settled", data, task.experiment)
    return True
