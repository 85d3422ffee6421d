"""The noise that the coordinator itself adds to the updates of a round, as a job is told of it: once, for updates that
it sees and for sums that it opens.
"""

from typing import Any

from coterie.aggregation.engine import Work
from coterie.aggregation.private.secure_aggregation import secure_of
from coterie.server.jobs.kind import round_due, still_due
from coterie.server.rounds.spending import noised_here, privacy_of
from coterie.server.secure.context import RoundContext
from coterie.server.store import experiments
from coterie.server.store.jobs import Job
from coterie.server.store.tables import ExperimentRow


async def noise_of(context: RoundContext, job: Job, row: ExperimentRow) -> dict[str, Any] | None:
    """Empty where the coordinator adds none, None where the round does not wait for its updates any more.

    Its cost is spent durably before the job that could make a noised value begins. Under secure aggregation it was when
    the survivors of the first attempt were told; a round for which it was not is never opened (errors.InternalError).
    The seed is in nobody's log, and the same however often this runs.
    """
    request, spending, number = experiments.request_of(row), context.rounds.spending, job.key.round
    secure = secure_of(request)
    if privacy_of(request) is None or (secure is None and not noised_here(request)):
        return {}
    if secure is None:
        async with context.storage.database.write("spent") as session:
            locked = await experiments.lock(session, row.id)
            if still_due(job, locked.opened, Work.AGGREGATE) is None:
                return None
            seed = await spending.pay(session, locked.experiment, number)
    else:
        async with context.storage.database.read() as session:
            if await round_due(session, job, Work.SUM) is None:
                return None
            seed = await spending.paid(session, row, number)
    async with context.storage.database.read() as session:
        await spending.foresee(session, row, number + 1)
    if seed is None:
        return {}
    return {
        "privacy": None if request.privacy is None else request.privacy.model_dump(mode="json"),
        "round": number,
        "rounds": request.rounds.rounds,
        "expected": request.rounds.cohort,
        "seed": seed.hex(),
        "groups": 1 if secure is None else secure.groups or 1,
    }
