"""Preparing a schema with the devices of a population."""

from pathlib import Path
from tempfile import TemporaryDirectory

from coterie.aggregation.preparation import Prepared, Survey
from coterie.client_sdk.control.control import Run
from coterie.errors import ExperimentError
from coterie.protocol.tensors import read_file


def prepared(survey: Survey, run: Run, *, timeout_s: float | None = None) -> Prepared:
    """What the devices answered, once the run of ``survey.ask(...)`` has finished; experiments with the schema that
    follows run in the same population, whose devices need not join again.

        run = control.submit(survey.ask(clients=100), key=key, population="clinics")
        schema = prepared(survey, run).schema

    Raises Unreachable (``timeout``) when that takes longer than ``timeout_s``; ExperimentError (``survey_unanswered``),
    for rounds that are missing too; RemoteError.
    """
    history = run.wait(timeout_s)
    done = sum(record.state == "committed" for record in history.rounds)
    if done < survey.rounds:
        cause = next((record.cause for record in history.rounds if record.cause), history.reason)
        raise ExperimentError(
            f"Only {done} of the {survey.rounds} rounds of {run.name!r} were committed ({cause}).",
            hint="Ask again, with more clients there or a longer deadline_s.",
            code="survey_unanswered",
        )
    with TemporaryDirectory() as folder:
        return survey.answer(read_file(run.download(Path(folder) / "answer", version="latest", form="weights")))
