"""Training that gave NaN or infinity: what a device says of it, and which failures are no fault of its own."""

from typing import Final

from coterie.aggregation.private.contribution import NOT_FINITE
from coterie.client_sdk.device.quiet import promised
from coterie.errors import CoterieError, PolicyRefused, UpdateRefused
from coterie.protocol.device import DIVERGED, Task

# What an experiment that diverges ends in, on every device alike.
_OF_EXPERIMENTS: Final = NOT_FINITE | {DIVERGED, "model_not_finite"}


def as_divergence(task: Task, error: CoterieError) -> CoterieError:
    """The error, or that training diverged where it says that numbers are not finite.

    task: what was worked on. Under a promise of privacy the error stays as it is.
    """
    if error.reason not in NOT_FINITE or promised(task):
        return error
    return UpdateRefused(
        f"Training diverged in round {task.round}; lower the learning rate. {error.message}",
        hint="Nothing was sent. Whoever runs the experiment sets the rate; this client goes on with its next task.",
        code=DIVERGED,
    )


def blameless(error: CoterieError) -> bool:
    """Whether an error of a task says nothing against the device: its policy refused, or training went wrong."""
    return isinstance(error, PolicyRefused | UpdateRefused) or error.reason in _OF_EXPERIMENTS
