"""What a method requires of an experiment, asked of a request: whoever wrote it may not have gone through `Experiment`,
and a method in rounds that it was not made for gives wrong numbers without a word.
"""

from dataclasses import dataclass
from typing import Any, cast

from coterie.aggregation.horizontal import Algorithm
from coterie.aggregation.methods import algorithm
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.combinations import privacy_clashes, secure_clashes
from coterie.aggregation.private.secure_aggregation import secure_of
from coterie.aggregation.server_optimizers import ServerOptimizer, server_optimizer
from coterie.errors import ExperimentError
from coterie.privacy.dp.participation import check_policy
from coterie.privacy.dp.rounds import multiplier
from coterie.protocol.control import BlobRef, ExperimentCreate
from coterie.protocol.privacy import ExampleLevel, Privacy, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema
from coterie.protocol.secure_aggregation import SecureAggregation

_BELOW = 1 - 1e-9
"""For multipliers that two machines have calibrated."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Of an `Experiment`, what its request and its plan say. The clients' optimizer is in the plan's graphs, and an
    initial version always comes; neither is asked about here.
    """

    algorithm: Algorithm
    reducer: str
    secure: SecureAggregation | None
    privacy: Privacy | None
    rounds: RoundPolicy
    server_optimizer: ServerOptimizer
    codecs: tuple[str, ...]
    broadcast: str
    evaluation: BlobRef | None
    epochs: int
    max_steps: int | None
    holdout: float
    schema: DataSchema
    optimizer: None = None
    initial: None = None
    secure_aggregation: bool = True


def check_combination(request: ExperimentCreate, manifest: Manifest) -> None:
    """Raises errors.ExperimentError (``experiment_combination``) saying what the method, or the secrecy and privacy
    asked for, need instead; ``secure_aggregation_invalid``, ``privacy_invalid`` for values that cannot be.
    """
    named = manifest.algorithm
    asked = Asked(
        algorithm=algorithm(named.name, named.parameters),
        reducer=request.reducer,
        secure=secure_of(request),
        privacy=request.privacy,
        rounds=request.rounds,
        server_optimizer=server_optimizer(request.server.name, request.server.parameters),
        codecs=request.codecs,
        broadcast=manifest.broadcast,
        evaluation=request.evaluation,
        epochs=manifest.training.epochs,
        max_steps=manifest.training.max_steps,
        holdout=manifest.training.holdout,
        schema=manifest.schema,
    )
    check_policy(asked.privacy, rounds=request.rounds.rounds, rest_rounds=request.rounds.rest_rounds)
    experiment = cast(Any, asked)
    rules = (
        *asked.algorithm.needs(experiment),
        *secure_clashes(experiment),
        *privacy_clashes(experiment),
        (
            not (manifest.buffers and isinstance(asked.privacy, UserLevel)),
            "running statistics (BatchNorm) are not bounded by a clip, so UserLevel privacy cannot cover them; use "
            "another normalisation",
        ),
        _steps_as_asked(asked.privacy, manifest, request.rounds.rounds),
    )
    for holds, message in rules:
        if not holds:
            raise ExperimentError(f"Experiment {request.name[:64]!r}: {message}.", code="experiment_combination")


def _steps_as_asked(privacy: Privacy | None, manifest: Manifest, rounds: int) -> tuple[bool, str]:
    """Whether the plan's steps make the example-level privacy that is asked for, and none that is not."""
    training, private = manifest.training, manifest.training.private
    if not isinstance(privacy, ExampleLevel):
        return private is None, "its plan noises every step, so ask for the ExampleLevel privacy that it was made with"
    made = (
        private is not None
        and (private.clip, private.rows) == (privacy.clip, privacy.rows)
        and private.noise_multiplier >= multiplier(privacy, rounds, training.draws()) * _BELOW
    )
    return made, "its plan was not made with this ExampleLevel privacy and number of rounds; compile it again"
