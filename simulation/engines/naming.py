"""Trainers by name, for processes that share nothing with the one that the user wrote in."""

import importlib
from typing import Any, cast

from coterie.client_sdk.device.trainers.base import Trainer
from coterie.errors import ConfigurationError, ExperimentError

PLAN_TRAINER = "coterie.client_sdk.device.trainers.plan:PlanTrainer"


def resolve_trainer(trainer: Trainer | str) -> Trainer:
    """A trainer, or the one that ``module:attribute`` names: a value, or a class or function that makes one.

    Raises ExperimentError (``trainer_missing``).
    """
    if not isinstance(trainer, str):
        if isinstance(trainer, type) or not (hasattr(trainer, "train") and hasattr(trainer, "evaluate")):
            raise ExperimentError(
                f"A trainer needs train(work) and evaluate(work); a {type(trainer).__name__} lacks them.",
                hint="Wrap a function: trainer=ExternalTrainer(fit). A class is given as an instance, or by its name.",
                code="trainer_missing",
            )
        return trainer
    module, colon, attribute = trainer.partition(":")
    try:
        found = cast(Any, getattr(importlib.import_module(module), attribute, None) if colon else None)
    except ModuleNotFoundError as error:
        raise _trainer_missing(trainer) from error
    if found is None:
        raise _trainer_missing(trainer)
    made = found if hasattr(found, "train") and not isinstance(found, type) else found()
    return cast(Trainer, made)


def required_name(trainer: Trainer | str, engine: str) -> str:
    """The name of a trainer for another process. Raises ConfigurationError (``trainer_not_named``) for a value."""
    if isinstance(trainer, str):
        return trainer
    raise ConfigurationError(
        f"The engine {engine!r} works in other processes, and this trainer exists only in this one.",
        hint='Put it into a module and give its name: simulate(..., trainer="my_module:trainer"); or use '
        'engine="threads".',
        code="trainer_not_named",
    )


def _trainer_missing(trainer: str) -> ExperimentError:
    return ExperimentError(
        f"There is no trainer {trainer[:100]!r}.",
        hint="Name it as module:attribute, where import finds the module.",
        code="trainer_missing",
    )
