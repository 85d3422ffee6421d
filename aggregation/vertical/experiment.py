"""What is asked of organisations that hold different columns about the same people."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.errors import ConfigurationError
from coterie.protocol.session import SessionCreate, SessionTerms, session_request
from coterie.protocol.session_job import STEPS, JobMethod, JobStep, SessionJob, TreesMethod


@dataclass(frozen=True, kw_only=True)
class VerticalExperiment:
    """A vertical experiment: `coterie.Control.make_session` makes a session of it, in which each organisation runs
    `coterie party run`, and `coterie.simulation.vertical.simulate_vertical` does the same in one process.

    name: for people.
    label_owner: the role that has the labels.
    parties: each role's organisation, by the name under which its partners pin its key.
    method: by which they train, with its options.
    steps: what they do, some of ``align``, ``train``, ``evaluate``, ``predict`` in this order.
    Raises InputError (``session_invalid``), in the words in which a coordinator refuses it.
    """

    name: str
    label_owner: str
    parties: Mapping[str, str]
    method: JobMethod = field(default_factory=TreesMethod)
    steps: tuple[JobStep, ...] = STEPS

    def __post_init__(self) -> None:
        self.request()

    @property
    def job(self) -> SessionJob:
        """What the parties of its session do."""
        return SessionJob(label_owner=self.label_owner, steps=self.steps, method=self.method)

    def request(self, **limits: Any) -> SessionCreate:
        """The session as it is asked for.

        limits: further fields of `coterie.protocol.session.SessionCreate`, such as ``expires_s``.
        """
        roles = [{"name": role, "party": party} for role, party in self.parties.items()]
        job = {"label_owner": self.label_owner, "steps": self.steps, "method": self.method.model_dump()}
        return session_request({"name": self.name, "roles": roles, "job": job, **limits})

    @staticmethod
    def of(name: str, terms: SessionTerms) -> "VerticalExperiment":
        """The experiment that a session's terms say. Raises ConfigurationError (``session_job``) where they say none.

        name: the session's.
        """
        job = job_of(name, terms)
        parties = {role.name: role.party for role in terms.roles}
        return VerticalExperiment(
            name=name, label_owner=job.label_owner, parties=parties, method=job.method, steps=job.steps
        )


def job_of(name: str, terms: SessionTerms) -> SessionJob:
    """What a session is for. Raises ConfigurationError (``session_job``) where it does not say, or says something that
    this version does not know or that cannot be.

    name: the session's.
    """
    job = terms.job
    if job is None:
        raise ConfigurationError(
            f"Session {name} does not say what it is for.",
            hint="Make one that does: `coterie sessions make` with --label-owner and --method.",
            code="session_job",
        )
    fault = job.unknown() or job.fault([role.name for role in terms.roles])
    if fault is not None:
        raise ConfigurationError(
            f"The job of session {name} cannot be done here: {fault}.",
            hint="Use the same version of coterie as the one that made the session, or make it anew.",
            code="session_job",
        )
    return job
