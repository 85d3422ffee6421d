"""The job of a session in one process: the tables of all parties are read, joined and learned from as `coterie party
run` does it, without a coordinator and, if so asked, without encryption.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.experiment import VerticalExperiment
from coterie.aggregation.vertical.report import FitReport
from coterie.aggregation.vertical.tables import TableSource
from coterie.client_sdk.party.alignment import MINIMUM
from coterie.client_sdk.party.job_methods import linear_terms, tree_terms
from coterie.client_sdk.party.job_table import JobTable, TableChoice, at_step, read_job_table
from coterie.draws import held_out as drawn_rows
from coterie.errors import ConfigurationError, InputError
from coterie.protocol.session import PartyRole
from coterie.randomness import seed_of
from coterie.simulation.linear import SimulatedLinear, simulate_linear
from coterie.simulation.trees import SimulatedTrees, simulate_trees

RowsOfParties = Mapping[str, Mapping[str, NDArray[np.float64]]]


@dataclass(frozen=True, eq=False)
class SimulatedJob:
    """What the parties of an experiment would have in the end.

    rows: of each role, the numbers of its table's rows that the job was about; entry i is about the same person in all.
    held_out: which of them were held out, ``[n]``; None where none were.
    evaluation: None where the experiment has no such step.
    scores: the label owner's predictions, ``[n]``; None without that step.
    model: what was trained.
    """

    rows: Mapping[str, NDArray[np.int64]]
    held_out: NDArray[np.bool_] | None
    evaluation: FitReport | None
    scores: NDArray[np.float64] | None
    model: SimulatedTrees | SimulatedLinear


@dataclass(frozen=True)
class _Trained:
    """A method's model, how good it is, and how it predicts."""

    model: SimulatedTrees | SimulatedLinear
    evaluation: FitReport
    predict: Callable[[RowsOfParties], NDArray[np.float64]]


@dataclass(frozen=True)
class _Setting:
    """What a method is trained on."""

    experiment: VerticalExperiment
    tables: Mapping[str, JobTable]
    rows: RowsOfParties
    held_out: NDArray[np.bool_] | None
    encrypted: bool
    processes: int
    seed: int | None


def simulate_job(
    experiment: VerticalExperiment,
    tables: Mapping[str, TableSource],
    choices: Mapping[str, TableChoice],
    *,
    held_out: float | None = None,
    encrypted: bool = True,
    processes: int = 1,
    seed: int | None = None,
) -> SimulatedJob:
    """What `coterie.simulation.vertical.simulate_vertical` does for an experiment, where each of these is explained."""
    owner, job = experiment.label_owner, experiment.job
    for given in (tables, choices):
        if set(given) != set(experiment.parties):
            raise ConfigurationError(
                f"The experiment is for the roles {', '.join(experiment.parties)}, and these are {', '.join(given)}.",
                hint="Give each role its table and its choice of columns.",
                code="role_unknown",
            )
    places = {role: PartyRole(name=role, party=party) for role, party in experiment.parties.items()}
    read = {role: read_job_table(tables[role], choices[role], job, place) for role, place in places.items()}
    common = {role: np.arange(len(table)) for role, table in read.items()}
    if "align" in job.steps:
        with at_step(places[owner], "align"):
            common = _common(read, owner)
    held = None if held_out is None else drawn_rows(len(common[owner]), held_out)
    rows = {role: table.taken(common[role]) for role, table in read.items()}
    setting = _Setting(experiment, read, rows, held, encrypted, processes, seed)
    with at_step(places[owner], "train"):
        trained = _METHODS[job.method.method](setting)
    return SimulatedJob(
        common,
        held,
        trained.evaluation if "evaluate" in job.steps else None,
        trained.predict(rows) if "predict" in job.steps else None,
        trained.model,
    )


def _common(tables: Mapping[str, JobTable], owner: str) -> dict[str, NDArray[np.int64]]:
    """The rows of ids that all have, in the order of the label owner's table."""
    places = {
        role: {each: row for row, each in enumerate([] if table.ids is None else table.ids.ids)}
        for role, table in tables.items()
    }
    ids = [each for each in places[owner] if all(each in found for found in places.values())]
    if len(ids) < MINIMUM:
        raise InputError(
            f"Fewer than {MINIMUM} ids are common.",
            hint="Are the columns of ids right in all tables? In a session nobody would be told which these are.",
            code="intersection_small",
        )
    return {role: np.array([found[each] for each in ids], np.int64) for role, found in places.items()}


def _trees(setting: _Setting) -> _Trained:
    terms = tree_terms(setting.experiment.job, [*setting.experiment.parties])
    model = simulate_trees(terms, setting.rows, **_asked(setting))
    return _Trained(model, model.report, model.predict)


def _linear(setting: _Setting) -> _Trained:
    terms = linear_terms(setting.experiment.job, [*setting.experiment.parties])
    model = simulate_linear(terms, setting.rows, **_asked(setting))
    return _Trained(model, model.report, model.predict)


class _Asked(TypedDict):
    columns: Mapping[str, Sequence[str]]
    label: str
    held_out: NDArray[np.bool_] | None
    encrypted: bool
    processes: int
    seed: bytes | None


def _asked(setting: _Setting) -> _Asked:
    seed = setting.seed
    return {
        "columns": {role: table.columns for role, table in setting.tables.items()},
        "label": str(setting.tables[setting.experiment.label_owner].label),
        "held_out": setting.held_out,
        "encrypted": setting.encrypted,
        "processes": setting.processes,
        "seed": None if seed is None else seed_of("coterie-simulate-vertical-1", str(seed)),
    }


_METHODS: Final[Mapping[str, Callable[[_Setting], _Trained]]] = {"trees": _trees, "linear": _linear}
"""By the name of the method, as `coterie.client_sdk.party.job_methods.METHODS`."""
