"""Losses that are no numbers any more: said at the first of them, with what is to be done."""

from collections.abc import Mapping

import numpy as np

from coterie.compute.ir import NDArray
from coterie.errors import DataError, InputError


def check_losses(losses: NDArray, fed: Mapping[str, NDArray], before: int) -> None:
    """Refuse losses that are not finite.

    losses: of the steps of one call. fed: what the call was fed. before: steps taken before it.
    Raises DataError (``data_cell``) where the rows themselves are not finite; else InputError (``training_diverged``).
    """
    finite = np.isfinite(losses)
    if finite.all():
        return
    step = before + int(np.argmin(finite)) + 1
    for name, array in fed.items():
        if name.startswith("batch/") and array.dtype.kind == "f" and not np.isfinite(array).all():
            at = np.argwhere(~np.isfinite(array))[0]
            raise DataError(
                f"The loss is {losses[~finite][0]} in step {step}: {name.removeprefix('batch/')!r} holds "
                f"{array[tuple(at)]} at {[int(index) for index in at]} of its batch.",
                hint="Mend or drop such rows; for a gap, fill in the column's mean.",
                code="data_cell",
            )
    raise InputError(
        f"Training diverged: the loss is {losses[~finite][0]} in step {step}.",
        hint="Lower the learning rate, clip the gradients, or begin with other weights.",
        code="training_diverged",
    )
