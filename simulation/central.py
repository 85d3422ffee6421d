"""The coordinator's own evaluation in a simulation."""

from functools import partial

from coterie.aggregation import engine
from coterie.aggregation.evaluate import predictions, with_whole
from coterie.client_sdk.device.trainers.base import LocalWork, Trainer, require_arrays
from coterie.errors import InputError
from coterie.simulation.work import DIVERGED


def evaluated(trainer: Trainer, work: LocalWork, metrics: tuple[str, ...]) -> engine.RoundEvent:
    """What a version is worth on the rows of the work.

    metrics: those of all rows together.
    """
    manifest, rows = work.plan.manifest, require_arrays(work.rows, "An evaluation of all rows together")
    try:
        sums = trainer.evaluate(work)
        predict = partial(predictions, work.plan.graphs, manifest, work.weights, rows, frozen=work.frozen)
        return engine.Evaluated(with_whole(sums, metrics, predict, rows[manifest.schema.label.name]).sums)
    except InputError as error:
        if error.reason != DIVERGED:
            raise
        return engine.Evaluated(None, error.message)
