"""The job of a session: a party does its steps, one after the other, together with its partners.

A program that was killed is started again and makes the same call, on the same table: what was done returns at once
what it returned, and the rest goes on where it was.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.experiment import job_of
from coterie.aggregation.vertical.report import FitReport
from coterie.client_sdk.party.alignment import align, is_aligned
from coterie.client_sdk.party.job_methods import METHODS, JobLearner, JobSetting
from coterie.client_sdk.party.job_table import JobTable, at_step, keep_table
from coterie.client_sdk.party.party import Session
from coterie.client_sdk.party.session import Listener
from coterie.draws import held_out as drawn_rows
from coterie.errors import ConfigurationError, InternalError
from coterie.protocol.disclosures import Disclosure
from coterie.protocol.session import PartyRole
from coterie.protocol.session_job import JobStep, SessionJob


@dataclass(frozen=True, eq=False)
class JobOutcome:
    """What a job gave a party.

    rows: the numbers of the table's rows that it was about, in the order that all parties have, ``[n]``.
    held_out: which of them were held out, ``[n]``; None at feature owners.
    evaluation, scores: of the label owner, where the job has the step; ``[n]``. None for others.
    """

    rows: NDArray[np.int64]
    held_out: NDArray[np.bool_] | None
    evaluation: FitReport | None
    scores: NDArray[np.float64] | None


def session_job(session: Session) -> SessionJob:
    """What a session is for. Raises ConfigurationError (``session_job``)."""
    return job_of(session.membership.name, session.membership.terms)


def own_role(session: Session) -> PartyRole:
    """This party's place in a session."""
    membership = session.membership
    found = membership.terms.role(membership.role)
    if found is None:
        raise InternalError(f"Session {membership.session} has no role {membership.role}.")
    return found


def told_by_job(session: Session) -> list[Disclosure]:
    """What the job's steps tell at most, to and by this party, beside the alignment."""
    job = session_job(session)
    roles = [role.name for role in session.membership.terms.roles]
    told, own = METHODS[job.method.method].told, session.membership.role
    return [each for task in ("train", "predict") if task in job.steps for each in told(job, roles, own, task)]


def run_job(
    session: Session,
    table: JobTable,
    *,
    held_out: float | None = None,
    processes: int = 1,
    patience_s: float | None = None,
    on_event: Listener = lambda event: None,
) -> JobOutcome:
    """Do the steps of a session's job.

    table: see `coterie.client_sdk.party.job_table.read_job_table`.
    held_out: of the label owner alone, the share of common rows that are not trained on; which, their places say
        (`coterie.draws.held_out`), so that a program that is started again holds out the same.
    processes: that reckon. A script with more than one needs ``if __name__ == "__main__"``.
    patience_s: how long to wait for each message of a partner, and for a coordinator that is away; for as long as it
        takes when not given.
    on_event: gets a mapping with the key ``event``: ``step`` when one begins (``step``), ``aligned`` (``common``,
        ``rows``) and ``progress`` (``done``, ``of``, ``unit``).

    Raises DataError (``table_changed``), ConfigurationError (``job_columns``), and what `align` and the method's
    learner raise, with party and step.
    """
    job, own = session_job(session), own_role(session)
    if held_out is not None and (own.name != job.label_owner or not 0 < held_out < 1):
        raise ConfigurationError(
            f"{own.party} (role {own.name}), step train: the rows held out are a share between 0 and 1, for the role "
            f"{job.label_owner} to say.",
            hint="As in --held-out 0.3, at the label owner alone.",
            code="job_columns",
        )
    folder = session.folder_of_job()
    aligns = "align" in job.steps
    keep_table(table, folder, own, is_fixed=not aligns or is_aligned(session))
    rows: NDArray[np.int64] | None = None
    if aligns and table.ids is not None:
        on_event({"event": "step", "step": "align"})
        with at_step(own, "align"):
            rows = align(session, table.ids, workers=processes, patience_s=patience_s).rows
        on_event({"event": "aligned", "rows": len(table), "common": None if rows is None else len(rows)})
    handler = METHODS[job.method.method]
    with at_step(own, "train"):
        setting = JobSetting(
            session, job, folder / job.method.method, table.columns, table.label, processes, patience_s
        )
        learner = handler.learner(setting)
    common = np.arange(len(table)) if rows is None else rows
    held = None if held_out is None else drawn_rows(len(common), held_out)
    with closing(learner):
        return _learned(learner, handler.unit, job.steps, own, table, common, held, on_event)


def _learned(
    learner: JobLearner,
    unit: str,
    steps: Sequence[JobStep],
    own: PartyRole,
    table: JobTable,
    common: NDArray[np.int64],
    held: NDArray[np.bool_] | None,
    on_event: Listener,
) -> JobOutcome:
    """The steps after the alignment."""
    rows = table.taken(common)
    report: FitReport | None = None
    evaluation: FitReport | None = None
    scores: NDArray[np.float64] | None = None

    def tell(done: int, of: int) -> None:
        on_event({"event": "progress", "done": done, "of": of, "unit": unit})

    for step in steps:
        if step == "align":
            continue
        on_event({"event": "step", "step": step})
        with at_step(own, step):
            match step:
                case "train":
                    report = learner.train(rows, held, tell)
                case "evaluate":
                    evaluation = report
                case "predict":
                    scores = learner.predict(rows)
    return JobOutcome(common, held, evaluation, scores)
