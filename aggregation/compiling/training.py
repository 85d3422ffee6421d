"""From experiment to what a plan says about a device's way through its rows."""

from coterie import errors
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.losses import parts_of, takes_weights
from coterie.aggregation.plan.manifest import Training
from coterie.aggregation.plan.private_steps import PrivateSteps
from coterie.privacy.dp import poisson
from coterie.privacy.dp.rounds import factors_of, multiplier
from coterie.protocol.privacy import ExampleLevel

OVERFLOW_SHARE = 1e-4
"""Of δ: what batches that overflow may cost in all rounds together, where the experiment does not say."""


def training_of(experiment: Experiment) -> Training:
    """Under `ExampleLevel`, batches have the shape of the most rows that one may hold, and the number of steps is the
    same for all devices, since it is public. Raises errors.ExperimentError (``privacy_invalid``).
    """
    level = experiment.privacy
    if isinstance(level, ExampleLevel):
        return _private(experiment, level)
    return Training(
        batch_size=experiment.batch_size,
        epochs=experiment.epochs,
        max_steps=experiment.max_steps,
        holdout=float(experiment.holdout),
        precision=None if experiment.precision == "float32" else experiment.precision,
        steps_per_call=_steps_per_call(experiment),
    )


def _steps_per_call(experiment: Experiment) -> int | None:
    return None if experiment.steps_per_call == 1 else experiment.steps_per_call


def _private(experiment: Experiment, level: ExampleLevel) -> Training:
    if level.rows is None:
        raise errors.InternalError("ExampleLevel without rows is refused before.")
    loss = experiment.loss
    if callable(loss) and any(map(takes_weights, parts_of(loss))):
        raise errors.ExperimentError(
            f"Experiment {experiment.name!r}: its loss compares the rows of a batch, since it asks for sample_weight; "
            "under ExampleLevel privacy the gradient of each row is taken alone.",
            hint="Choose a loss of single rows, or UserLevel privacy.",
            code="experiment_combination",
        )
    rounds, expected, rows = experiment.rounds.rounds, experiment.batch_size, level.rows
    steps = experiment.epochs * -(-rows // expected)
    steps = steps if experiment.max_steps is None else min(steps, experiment.max_steps)
    share = OVERFLOW_SHARE * level.delta
    most = level.max_batch or poisson.most_of(expected, rows=rows, steps=steps * rounds, failure=share)
    try:
        draws = poisson.draws(expected, most, rows=rows, steps=steps)
    except errors.ArgumentValueError as error:
        raise errors.ExperimentError(
            f"ExampleLevel: {error.message}", hint=error.hint, code="privacy_invalid"
        ) from error
    private = PrivateSteps(
        clip=level.clip,
        noise_multiplier=multiplier(level, rounds, draws),
        expected=expected,
        rows=rows,
        factors=None if level.schedule is None else factors_of(level, rounds),
    )
    return Training(
        batch_size=most,
        epochs=1,
        max_steps=steps,
        holdout=float(experiment.holdout),
        private=private,
        steps_per_call=_steps_per_call(experiment),
    )
