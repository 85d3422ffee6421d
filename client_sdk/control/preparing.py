"""Preparing a schema with the devices of a population."""

from coterie.aggregation.preparation import Prepared, Survey
from coterie.client_sdk.control.committed import committed_answer
from coterie.client_sdk.control.control import Run


def prepared(survey: Survey, run: Run, *, timeout_s: float | None = None) -> Prepared:
    """What the devices answered, once the run of ``survey.ask(...)`` has finished; experiments with the schema that
    follows run in the same population, whose devices need not join again.

        run = control.submit(survey.ask(clients=100), key=key, population="clinics")
        schema = prepared(survey, run).schema

    Raises Unreachable (``timeout``) when that takes longer than ``timeout_s``; ExperimentError (``survey_unanswered``),
    for rounds that are missing too; RemoteError.
    """
    hint = "Ask again, with more clients there or a longer deadline_s."
    rounds = survey.rounds
    return survey.answer(committed_answer(run, rounds, code="survey_unanswered", hint=hint, timeout_s=timeout_s))
