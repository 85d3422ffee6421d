"""Whether a plan can give the example-level privacy that it states."""

import math

from coterie.aggregation.plan.manifest import Manifest
from coterie.errors import ArgumentValueError, PlanRefused
from coterie.protocol.privacy import wrong_schedule


def check_private(manifest: Manifest) -> None:
    """What `Training.private` states, against what the graphs take.

    What a graph computes cannot be read off: that it clips is what the researcher signs. Raises errors.PlanRefused
    (``plan_private``).
    """
    training, train = manifest.training, manifest.stepped
    noised = {tensor.key for tensor in train.from_source("noise")} if train else set[str]()
    private = training.private
    if private is None:
        if noised:
            raise _refused(f"train takes noise for {min(noised)!r}, and the manifest states none")
        return
    moved = {tensor.key for tensor in train.inputs if tensor.role == "shared"} if train else set[str]()
    rules = (
        (bool(noised), "no weight takes noise"),
        (noised <= moved, "noise is added to a tensor that is not a weight"),
        (training.epochs == 1 and training.max_steps is not None, "the number of steps must be max_steps alone"),
        (private.expected < training.batch_size, "a batch must have room for more rows than are expected"),
        (
            all(stage.over != "pass" for stage in manifest.stages_of("train")),
            "a probe sums over rows without noise",
        ),
        (
            not any(stage.variants for stage in manifest.stages),
            "a variant may let a gradient that is not finite spread to other rows",
        ),
        (not any(stage.lengths for stage in manifest.stages), "the length of a step would show that of a row"),
        (not manifest.buffers, "running statistics are of whole batches, and nothing clips them"),
    )
    for holds, message in rules:
        if not holds:
            raise _refused(message)
    if private.factors is not None and (wrong := wrong_schedule(private.factors)) is not None:
        raise _refused(f"its schedule of noise {wrong}")
    length = sum(math.prod(tensor.shape) for tensor in train.from_source("noise")) if train else 0
    try:
        private.noise(batch=training.batch_size, length=length)
    except ArgumentValueError as error:
        raise _refused(error.message.rstrip(".")) from error


def _refused(message: str) -> PlanRefused:
    return PlanRefused(f"The plan's example-level privacy cannot hold: {message}.", code="plan_private")
