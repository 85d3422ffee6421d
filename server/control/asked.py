"""What a method requires of an experiment, asked of a request: whoever wrote it may not have gone through `Experiment`,
and a method in rounds that it was not made for gives wrong numbers without a word.
"""

from dataclasses import dataclass
from typing import Any, cast

from coterie.aggregation.methods import algorithm
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.server_optimizers import ServerOptimizer, server_optimizer
from coterie.errors import ExperimentError
from coterie.protocol.control import BlobRef, ExperimentCreate
from coterie.protocol.rounds import RoundPolicy


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Of an `Experiment`, what its request and its plan say. The clients' optimizer is in the plan's graphs, and an
    initial version always comes; neither is asked about here.
    """

    rounds: RoundPolicy
    server_optimizer: ServerOptimizer
    codecs: tuple[str, ...]
    broadcast: str
    evaluation: BlobRef | None
    epochs: int
    max_steps: int | None
    holdout: float
    optimizer: None = None
    initial: None = None


def check_combination(request: ExperimentCreate, manifest: Manifest) -> None:
    """Raises errors.ExperimentError (``experiment_combination``) saying what the method needs instead."""
    asked = Asked(
        rounds=request.rounds,
        server_optimizer=server_optimizer(request.server.name, request.server.parameters),
        codecs=request.codecs,
        broadcast=manifest.broadcast,
        evaluation=request.evaluation,
        epochs=manifest.training.epochs,
        max_steps=manifest.training.max_steps,
        holdout=manifest.training.holdout,
    )
    named = manifest.algorithm
    for holds, message in algorithm(named.name, named.parameters).needs(cast(Any, asked)):
        if not holds:
            raise ExperimentError(f"Experiment {request.name[:64]!r}: {message}.", code="experiment_combination")
