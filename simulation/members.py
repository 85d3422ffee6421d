"""Membership inference on a finished simulation: are the rows that it was trained on told from those held out?"""

from collections.abc import Sequence
from itertools import islice

from coterie.aggregation.experiment import Experiment
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork, Rows, Trainer
from coterie.client_sdk.rows.loading import DataSource
from coterie.compute.data.batches import WEIGHT
from coterie.compute.data.supply import row_count, supply_of
from coterie.errors import ExperimentError
from coterie.privacy.audit.membership import MembershipInference, membership
from coterie.simulation.engines.naming import PLAN_TRAINER, resolve_trainer
from coterie.simulation.population import Population
from coterie.simulation.simulation import Simulation

ROWS = 400


def infer_members(
    result: Simulation,
    experiment: Experiment,
    clients: Sequence[DataSource],
    *,
    rows: int = ROWS,
    delta: float = 1e-5,
    trainer: Trainer | str | None = None,
) -> MembershipInference:
    """Attack the newest version of a simulation by the loss of single rows: members are rows that its clients trained
    on, outsiders are rows that they held out.

    rows: the most of each kind, taken from all clients alike.

    Raises errors.ExperimentError (``audit_nothing``) where nobody holds out rows, or there are too few.
    """
    population = Population(experiment.schema, clients, experiment.holdout)
    each = max(1, -(-rows // len(population)))
    judge = resolve_trainer(PLAN_TRAINER if trainer is None else trainer)
    losses: tuple[list[float], list[float]] = ([], [])
    for number in range(len(population)):
        shard = population.shard(number)
        for found, held in zip(losses, (shard.train, shard.held_out), strict=True):
            found += _losses(judge, result, experiment, held, min(each, rows - len(found)))
    if min(map(len, losses)) < 4:
        raise ExperimentError(
            f"Membership inference needs rows that clients hold out, at least four; there are {len(losses[1])}.",
            hint="Give the experiment a holdout, for example holdout=0.5, and clients more rows.",
            code="audit_nothing",
        )
    members, outsiders = ([-loss for loss in kind] for kind in losses)
    return membership(members, outsiders, delta=delta)


def _losses(judge: Trainer, result: Simulation, experiment: Experiment, rows: Rows, count: int) -> list[float]:
    """The loss of each of the first rows by itself."""
    task = LocalTask(experiment=experiment.name, round=1, seed=experiment.seed)
    found: list[float] = []
    if not row_count(rows):
        return found
    for batch in islice(supply_of(rows, 1).once(), count):
        one = {name: values for name, values in batch.items() if name != WEIGHT}
        work = LocalWork(plan=result.plan, task=task, weights=result.weights, frozen=result.frozen, rows=one)
        found.append(judge.evaluate(work).means()["loss"])
    return found
