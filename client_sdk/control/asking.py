"""The answer to a query that the devices of a population were asked."""

from typing import TypeVar

from coterie.aggregation.analytics import Query
from coterie.client_sdk.control.committed import committed_answer
from coterie.client_sdk.control.control import Run

Answer = TypeVar("Answer")


def answered(query: Query[Answer], run: Run, *, clients: int | None = None, timeout_s: float | None = None) -> Answer:
    """What the devices answered, once the run of ``ask(query, ...)`` has finished.

        run = control.submit(ask(query, schema, clients=100), key=key, population="clinics")
        found = answered(query, run)

    clients: as for `Query.answer`.
    Raises Unreachable (``timeout``) when that takes longer than ``timeout_s``; ExperimentError (``query_unanswered``)
    for rounds that are missing, and where noise hides what everything else is divided by; RemoteError.
    """
    # The command line asks by this too, and has other names for them.
    hint = (
        "Ask again, with more devices there, a longer deadline (deadline_s; --deadline) or fewer answers that a round "
        "needs (min_updates; --min-updates)."
    )
    rounds = query.rule.rounds
    version = committed_answer(run, rounds, code="query_unanswered", hint=hint, timeout_s=timeout_s)
    return query.answer(version, clients=clients)
