"""How each method does the steps of a session's job.

To add a method: its options in `coterie.protocol.session_job`, and a row of `METHODS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.trees.report import TreeReport
from coterie.aggregation.vertical.trees.tables import check_labels
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.client_sdk.party.party import Session
from coterie.client_sdk.party.tree_learner import TreeLearner
from coterie.client_sdk.party.tree_terms import told_by_trees
from coterie.protocol.disclosures import Disclosure
from coterie.protocol.session import SessionTerms
from coterie.protocol.session_job import SessionJob

PartyRows = Mapping[str, NDArray[np.float64]]
JobProgress = Callable[[int, int], None]
"""Gets how much of a training is done, and of how much."""


@dataclass(frozen=True)
class JobEvaluation:
    """How good a model is, as the label owner knows it: on rows that it was trained on, and on those held out (None
    without any). auc: None where labels are not 0 and 1.
    """

    loss: float
    auc: float | None
    held_out_loss: float | None = None
    held_out_auc: float | None = None


class JobLearner(Protocol):
    """A method at work in one party. Calls are made in the same order at all parties."""

    def train(self, rows: PartyRows, held_out: NDArray[np.bool_] | None, on_progress: JobProgress) -> None:
        """Train on rows. held_out: of the label owner alone."""
        ...

    def evaluate(self) -> JobEvaluation | None:
        """Of the label owner; None for the others."""
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

    told: what the steps of a job tell, to and by a role, beside alignment. unit: what a training has several of.
    check: refuses labels that it cannot learn, before anything leaves; gets the job, the labels, the column's name, and
        what messages call the table. learner: the method at work.
    """

    check: Callable[[SessionJob, NDArray[np.float64], str, str], None]
    told: Callable[[SessionJob, SessionTerms, str], list[Disclosure]]
    unit: str
    learner: Callable[[JobSetting], JobLearner]


class _Trees:
    """Boosted trees as a `JobLearner`."""

    def __init__(self, setting: JobSetting) -> None:
        self._terms = _tree_terms(setting.job, setting.session.membership.terms)
        self._report: TreeReport | None = None
        self._learner = TreeLearner(
            setting.session,
            self._terms,
            setting.folder,
            columns=setting.columns,
            label=setting.label,
            processes=setting.processes,
            patience_s=setting.patience_s,
        )

    def train(self, rows: PartyRows, held_out: NDArray[np.bool_] | None, on_progress: JobProgress) -> None:
        total = self._terms.trees
        self._report = self._learner.train(rows, held_out=held_out, on_tree=lambda tree: on_progress(tree, total))

    def evaluate(self) -> JobEvaluation | None:
        return None if self._report is None else evaluation_of_trees(self._report)

    def predict(self, rows: PartyRows) -> NDArray[np.float64] | None:
        return self._learner.predict(rows)

    def close(self) -> None:
        self._learner.close()


def evaluation_of_trees(report: TreeReport) -> JobEvaluation:
    """A report of trees as that of any method."""
    held = report.held_out_losses
    return JobEvaluation(report.losses[-1], report.auc, held[-1] if held else None, report.held_out_auc)


def _tree_terms(job: SessionJob, terms: SessionTerms) -> TreeTerms:
    return TreeTerms.of(job.method, job.label_owner, [role.name for role in terms.roles])


def _told_by_trees(job: SessionJob, terms: SessionTerms, role: str) -> list[Disclosure]:
    asked = _tree_terms(job, terms)
    tasks = [step for step in job.steps if step in ("train", "predict")]
    return [told for task in tasks for told in told_by_trees(asked, role, task, task, None)]


def _check_tree_labels(job: SessionJob, labels: NDArray[np.float64], name: str, told: str) -> None:
    check_labels(labels, np.zeros(len(labels), np.bool_), name, job.method.loss, told)


METHODS: Final[Mapping[str, MethodHandler]] = {
    "trees": MethodHandler(_check_tree_labels, _told_by_trees, "trees", _Trees),
}
"""By the name of the method."""
