"""Whether the noise of an experiment's differential privacy leaves anything of what clients learn."""

import math

from coterie.aggregation.compiling.training import training_of
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.compute.nn.module import Module
from coterie.privacy.dp import local
from coterie.privacy.dp.rounds import multiplier
from coterie.protocol.privacy import ExampleLevel, LocalLevel, UserLevel

HOPELESS = 10.0
"""Noise that is so many times as long as all that clients may add to a model leaves next to nothing of it."""


def noise_over_updates(experiment: Experiment) -> float | None:
    """How long the noise in the last version is, over the longest change that all updates, or all steps, can make
    together: √n σ / (√r m) for n weights, multiplier σ, r rounds or steps, and m clients or rows in each.

    A lower bound: updates seldom all point the same way at their full length. None where nothing is noised, or by a
    mechanism that sends signs. Raises errors.ExperimentError (``privacy_invalid``).
    """
    privacy, rounds = experiment.privacy, experiment.rounds
    length = _length(experiment)
    match privacy:
        case UserLevel():
            sigma, times, added = multiplier(privacy, rounds.rounds), rounds.rounds, rounds.cohort
        case LocalLevel(mechanism="gaussian"):
            sigma = local.deviation(privacy, length) / privacy.clip * math.sqrt(rounds.cohort)
            times, added = rounds.rounds, rounds.cohort
        case ExampleLevel():
            training = training_of(experiment)
            if training.private is None or training.max_steps is None:
                return None
            private = training.private
            sigma, added = private.noise_multiplier * min(private.factors or (1.0,)), private.expected
            times = training.max_steps * rounds.rounds * rounds.cohort
        case _:
            return None
    return sigma * math.sqrt(length / times) / added


def drowned(experiment: Experiment) -> str | None:
    """A sentence for whoever asks for so much privacy that nothing can be learnt; else None."""
    share = noise_over_updates(experiment)
    if share is None or share < HOPELESS:
        return None
    return (
        f"The noise is at least {share:,.0f} times as long as all that clients can add to the model, so training "
        "would follow the noise: ask for a larger epsilon, more clients or rounds, or a smaller model."
    )


def _length(experiment: Experiment) -> int:
    """How many numbers clients send, at most."""
    model = experiment.model
    if isinstance(model, Module):
        return sum(math.prod(spec.shape) for spec in model.specs().values() if spec.role != "frozen")
    return sum(math.prod(shape) for shape in model.parameters.values()) if isinstance(model, ExternalModel) else 0
