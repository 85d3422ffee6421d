"""The noise that the coordinator itself adds to the updates of a round, as a job is told of it: once, for updates that
it sees and for sums that it opens.
"""

from typing import Any

from coterie.aggregation.engine import Work, do_due
from coterie.aggregation.private.secure_aggregation import coordinator_noises, secure_of
from coterie.errors import InternalError
from coterie.server.jobs.kind import round_due, still_due
from coterie.server.rounds.spending import privacy_of
from coterie.server.secure.context import RoundContext
from coterie.server.store import experiments
from coterie.server.store.jobs import Job
from coterie.server.store.tables import ExperimentRow


async def noise_of(context: RoundContext, job: Job, row: ExperimentRow) -> dict[str, Any] | None:
    """Empty where nothing that is due is noised (`Do.noised`), None where the round does not wait for its updates any
    more.

    Its cost is spent durably before the job that could make a noised value begins. Under secure aggregation it was when
    the survivors of the first attempt were told; a round for which it was not is never opened (errors.InternalError).
    The seed is in nobody's log, and the same however often this runs.
    """
    request, spending, number = experiments.request_of(row), context.rounds.spending, job.key.round
    privacy = privacy_of(request)
    if privacy is None:
        return {}
    seed, secure = None, secure_of(request)
    async with context.storage.database.read() as session:
        found = await round_due(session, job, Work.AGGREGATE, Work.SUM)
        work = None if found is None else do_due(found.value)
        if work is None:
            return None
        # Updates that are to be noised become no version without noise, whatever the row of the round has become.
        if work.noised is not coordinator_noises(privacy):
            raise InternalError(
                f"Round {number} of {row.id} was begun {'with' if work.noised else 'without'} the coordinator's noise, "
                f"and its experiment asks for {'none' if work.noised else 'it'}."
            )
        if work.work is Work.SUM:
            seed = await spending.noise_seed(session, row, number)
        elif not work.noised:
            return {}
    if work.work is Work.AGGREGATE:
        async with context.storage.database.write("spent") as session:
            locked = await experiments.lock(session, row.id)
            if still_due(job, locked.opened, Work.AGGREGATE) is None:
                return None
            seed = await spending.pay(session, locked.experiment, number)
    async with context.storage.database.read() as session:
        await spending.foresee(session, row, number + 1)
    if work.noised is not (seed is not None):
        raise InternalError(f"Round {number} of {row.id} was paid for with another noise than is due.")
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
