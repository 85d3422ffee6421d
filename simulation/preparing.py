"""Preparing a schema with virtual clients."""

from collections.abc import Sequence
from typing import Any

from coterie.aggregation.preparation import Prepared, Survey
from coterie.client_sdk.rows.loading import DataSource
from coterie.errors import ExperimentError
from coterie.simulation.simulation import simulate_full


def prepare(
    survey: Survey, clients: Sequence[DataSource], *, engine: str = "threads", workers: int = 1, **options: Any
) -> Prepared:
    """What all of these clients answer, and the schema that follows.

    clients, engine, workers: see `simulate_full`.
    options: see `Survey.ask`.
    Raises ExperimentError (``survey_unanswered``, for a round that was abandoned too), and as both of these do.
    """
    experiment = survey.ask(clients=len(clients), **options)
    run = simulate_full(experiment, clients, engine=engine, workers=workers)
    lost = next((record for record in run.history.rounds if record.state != "committed"), None)
    if lost is not None:
        raise ExperimentError(
            f"Round {lost.round} of the survey was abandoned: {lost.cause}.",
            hint="Ask again; each round needs its fewest updates.",
            code="survey_unanswered",
        )
    return survey.answer(run.weights)
