"""How each method does the steps of a session's job.

To add a method: its options in `coterie.protocol.session_job`, a row of `METHODS`, and one in
`coterie.simulation.jobs`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.linear.links import LINKS
from coterie.aggregation.vertical.linear.terms import LinearTerms
from coterie.aggregation.vertical.report import FitReport
from coterie.aggregation.vertical.tables import TableLabelKind
from coterie.aggregation.vertical.trees.losses import LOSSES
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.client_sdk.party.linear_learner import LinearLearner
from coterie.client_sdk.party.linear_terms import told_by_linear
from coterie.client_sdk.party.party import Session
from coterie.client_sdk.party.tree_learner import TreeLearner
from coterie.client_sdk.party.tree_terms import told_by_trees
from coterie.errors import InternalError
from coterie.protocol.disclosures import Disclosure
from coterie.protocol.session_job import LinearMethod, SessionJob, TreesMethod

PartyRows = Mapping[str, NDArray[np.float64]]
JobProgress = Callable[[int, int], None]
"""Gets how much of a training is done, and of how much."""


class JobLearner(Protocol):
    """A method at work in one party. Calls are made in the same order at all parties."""

    def train(self, rows: PartyRows, held_out: NDArray[np.bool_] | None, on_progress: JobProgress) -> FitReport | None:
        """Train on rows. What it came to, for the label owner; None for the others.

        held_out: of the label owner alone.
        """
        ...

    def predict(self, rows: PartyRows) -> NDArray[np.float64] | None:
        """Of the label owner, a number a row; None for the others."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


@dataclass(frozen=True)
class JobSetting:
    """Where a learner works: see `coterie.client_sdk.party.tree_learner.TreeLearner` for what each is."""

    session: Session
    job: SessionJob
    folder: Path
    columns: tuple[str, ...]
    label: str | None
    processes: int
    patience_s: float | None


@dataclass(frozen=True)
class MethodHandler:
    """A method.

    labels: what labels must be. complete: whether no number may be missing.
    told: what a call tells at most, to and by a role: the job, the session's roles, the role, ``train`` or ``predict``.
    unit: what a training has several of.
    learner: the method at work.
    """

    labels: Callable[[SessionJob], TableLabelKind]
    complete: bool
    told: Callable[[SessionJob, list[str], str, str], list[Disclosure]]
    unit: str
    learner: Callable[[JobSetting], JobLearner]


class _Trees:
    """Boosted trees as a `JobLearner`."""

    def __init__(self, setting: JobSetting) -> None:
        self._terms = tree_terms(setting.job, _roles(setting.session))
        self._learner = TreeLearner(setting.session, self._terms, setting.folder, **_told_learners(setting))

    def train(self, rows: PartyRows, held_out: NDArray[np.bool_] | None, on_progress: JobProgress) -> FitReport | None:
        total = self._terms.trees
        return self._learner.train(rows, held_out=held_out, on_tree=lambda tree: on_progress(tree, total))

    def predict(self, rows: PartyRows) -> NDArray[np.float64] | None:
        return self._learner.predict(rows)

    def close(self) -> None:
        self._learner.close()


class _Linear:
    """A linear model as a `JobLearner`."""

    def __init__(self, setting: JobSetting) -> None:
        terms = linear_terms(setting.job, _roles(setting.session))
        self._learner = LinearLearner(setting.session, terms, setting.folder, **_told_learners(setting))

    def train(self, rows: PartyRows, held_out: NDArray[np.bool_] | None, on_progress: JobProgress) -> FitReport | None:
        return self._learner.train(rows, held_out=held_out, on_step=on_progress)

    def predict(self, rows: PartyRows) -> NDArray[np.float64] | None:
        return self._learner.predict(rows)

    def close(self) -> None:
        self._learner.close()


class _LearnerOptions(TypedDict):
    columns: tuple[str, ...]
    label: str | None
    processes: int
    patience_s: float | None


def _told_learners(setting: JobSetting) -> _LearnerOptions:
    return {
        "columns": setting.columns,
        "label": setting.label,
        "processes": setting.processes,
        "patience_s": setting.patience_s,
    }


def tree_terms(job: SessionJob, roles: list[str]) -> TreeTerms:
    """The terms of a job of trees. roles: of the session."""
    if not isinstance(job.method, TreesMethod):
        raise InternalError(f"A job of {job.method.method} has no terms of trees.")
    return TreeTerms.of(job.method, job.label_owner, roles)


def linear_terms(job: SessionJob, roles: list[str]) -> LinearTerms:
    """The terms of a job of a linear model. roles: of the session."""
    if not isinstance(job.method, LinearMethod):
        raise InternalError(f"A job of {job.method.method} has no terms of linear models.")
    return LinearTerms.of(job.method, job.label_owner, roles)


def _roles(session: Session) -> list[str]:
    return [role.name for role in session.membership.terms.roles]


METHODS: Final[Mapping[str, MethodHandler]] = {
    "trees": MethodHandler(
        labels=lambda job: LOSSES[tree_terms(job, ["", job.label_owner]).loss].labels,
        complete=False,
        told=lambda job, roles, role, task: told_by_trees(tree_terms(job, roles), role, task, task, None),
        unit="trees",
        learner=_Trees,
    ),
    "linear": MethodHandler(
        labels=lambda job: LINKS[linear_terms(job, ["", job.label_owner]).link].labels,
        complete=True,
        told=lambda job, roles, role, task: told_by_linear(linear_terms(job, roles), role, task, task, None),
        unit="steps",
        learner=_Linear,
    ),
}
"""By the name of the method."""
