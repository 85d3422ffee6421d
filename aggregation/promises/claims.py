"""What an experiment's differential privacy claims: the statement of all of its rounds, with what its noise really
costs.
"""

from coterie.aggregation.compiling.training import training_of
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.private.costs import really_measured
from coterie.privacy.dp.rounds import Draws
from coterie.privacy.dp.statement import Statement, statement


def claim_of(experiment: Experiment, *, length: int, draws: Draws | None = None) -> Statement | None:
    """The statement, None for an experiment that asks for no differential privacy.

    length: weights of the model, which noise that devices share depends on.
    draws: of `ExampleLevel`, as the plan has them (``manifest.training.draws()``); None for those that the experiment's
        plan will have.
    Raises errors.ExperimentError (``privacy_invalid``, ``noise_range``).
    """
    privacy, policy, secure = experiment.privacy, experiment.rounds, experiment.secure
    if privacy is None:
        return None
    if draws is None:
        draws = training_of(experiment).draws()
    real = really_measured(privacy, secure, policy, length=length)
    return statement(
        privacy,
        policy.rounds,
        cohort=policy.cohort,
        mode=None if secure is None else secure.mode,
        groups=1 if secure is None else secure.groups or 1,
        draws=draws,
        measured=real,
    )
