"""The answer to a query that the devices of a population were asked."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from coterie.aggregation.analytics import Query
from coterie.client_sdk.control.control import Run
from coterie.errors import ExperimentError
from coterie.protocol.tensors import read_file

Answer = TypeVar("Answer")


def answered(query: Query[Answer], run: Run, *, timeout_s: float | None = None) -> Answer:
    """What the devices answered, once the run of ``ask(query, ...)`` has finished.

        run = control.submit(ask(query, schema, clients=100), key=key, population="clinics")
        found = answered(query, run)

    Raises Unreachable (``timeout``) when that takes longer than ``timeout_s``; ExperimentError (``query_unanswered``)
    for rounds that are missing, and where noise hides what everything else is divided by; RemoteError.
    """
    history = run.wait(timeout_s)
    done = sum(record.state == "committed" for record in history.rounds)
    if done < query.rule.rounds:
        cause = next((record.cause for record in history.rounds if record.cause), history.reason)
        raise ExperimentError(
            f"Only {done} of the {query.rule.rounds} rounds of {run.name!r} were committed ({cause}).",
            hint="Ask again, with more devices there, a longer deadline_s or a smaller min_updates.",
            code="query_unanswered",
        )
    with TemporaryDirectory() as folder:
        return query.answer(read_file(run.download(Path(folder) / "answer", version="latest", form="weights")))
