"""Work whose outcome only sums or noise may show: what a device puts in, and what it keeps to itself."""

from dataclasses import dataclass

from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.private.contribution import NOT_FINITE, Contribution, contribution, zeros
from coterie.client_sdk.device.trainers.base import LocalResult, LocalWork, Stopped, Trainer
from coterie.errors import (
    CoterieError,
    DataError,
    InputError,
    UpdateRefused,
)
from coterie.protocol.device import WITH_ROWS, Task


@dataclass(frozen=True, kw_only=True)
class Quiet:
    """A training under a promise of privacy, which never fails visibly.

    put_in: what goes on to noise and encoding.
    metrics: means of the training, for the owner.
    unusable: why zeros stand in for it, for the owner alone.
    """

    put_in: Contribution
    metrics: dict[str, float]
    unusable: CoterieError | None


def promised(task: Task) -> bool:
    """Whether the task says that what comes of it is differentially private."""
    return task.privacy is not None or task.local is not None


def under_masks(task: Task) -> bool:
    """Whether only a sum over clients shows what comes of the task, and no noise does."""
    return task.secure is not None and not promised(task)


def hides(task: Task, error: Exception) -> bool:
    """Whether zeros of weight 0 go under the masks where this error ended the work on rows: a device that said so, or
    fell silent, would answer for itself what only the sum may tell. What a plan or a trainer cannot do whatever the
    rows, `Trainer.check` has said before.
    """
    return under_masks(task) and not isinstance(error, Stopped)


def speakable(task: Task, phase: str, error: CoterieError) -> bool:
    """Whether others may hear that this error ended the task: not of what may depend on rows. To them the device is
    merely gone.
    """
    return not isinstance(error, DataError) and not (promised(task) and phase in WITH_ROWS)


def train_quietly(trainer: Trainer, work: LocalWork, task: Task, *, unread: CoterieError | None = None) -> Quiet:
    """Train for a task under a promise. Numbers that cannot be used are zeros from here on; so is a training in which
    the trainer fails, where noise will hide the one as the other.

    unread: why the rows are blank ones, if they are.

    Example-level noise is in the training itself, which therefore cannot be replaced when it fails: then what the
    trainer raises is raised. Otherwise only Stopped.
    """
    specs, before = work.plan.manifest.sections, work.client_state
    in_training = task.privacy is not None and task.privacy.unit == "example"
    try:
        result = trainer.train(work)
        made = contribution(specs, result.sections, before=before, after=result.client_state)
        metrics = _means(result, work.plan)
    except Stopped:
        raise
    except Exception as error:  # a trainer of the owner's may raise anything, and give anything
        if in_training:
            raise
        return Quiet(put_in=zeros(specs, before), metrics={}, unusable=unread or as_coterie_error(error))
    if unread is not None and not in_training:
        return Quiet(put_in=zeros(specs, before), metrics={}, unusable=unread)
    return Quiet(put_in=made, metrics=metrics, unusable=unread if made.usable else _not_usable())


def _means(result: LocalResult, plan: Plan) -> dict[str, float]:
    """Means of a training, for the owner; none of numbers that are not finite."""
    try:
        return dict(result.metrics(plan).means())
    except InputError as error:
        if error.reason not in NOT_FINITE:
            raise
        return {}


def as_coterie_error(error: Exception) -> CoterieError:
    """The error, or that the trainer failed with it."""
    if isinstance(error, CoterieError):
        return error
    return InputError(f"The trainer failed: {type(error).__name__}: {error}", code="trainer_failed")


def _not_usable() -> CoterieError:
    return UpdateRefused(
        "The training produced numbers that are not finite, or outside the plan's range: zeros are sent in their "
        "place.",
        hint="The experiment may have diverged; a lower learning rate fixes that. If it continues, look at the rows.",
        code="not_finite",
    )
