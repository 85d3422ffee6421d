"""A coordinator's request and the plan that it names, as `Terms`, and held to the same rules as `Experiment`."""

from coterie.aggregation.fitting import check_terms
from coterie.aggregation.methods import algorithm, check_method
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.secure_aggregation import secure_of, with_room
from coterie.aggregation.server_optimizers import server_optimizer
from coterie.aggregation.terms import Terms
from coterie.errors import ExperimentError
from coterie.privacy.dp.rounds import multiplier
from coterie.protocol.control import ExperimentCreate
from coterie.protocol.privacy import ExampleLevel

_BELOW = 1 - 1e-9
"""For multipliers that two machines have calibrated."""


def settled_request(request: ExperimentCreate) -> ExperimentCreate:
    """The request with what it leaves open as `Experiment` leaves it: under secure aggregation rounds outlive the
    drop-out that is counted on.
    """
    secure = secure_of(request)
    return request if secure is None else request.model_copy(update={"rounds": with_room(request.rounds, secure)})


def terms_of(request: ExperimentCreate, manifest: Manifest) -> Terms:
    """What a request and its plan ask for. Raises errors.ExperimentError for a method or a server part that this
    coordinator does not know.
    """
    check_method(manifest)
    named = manifest.algorithm
    return Terms(
        name=request.name,
        algorithm=algorithm(named.name, named.parameters),
        trainer=manifest.trainer,
        optimizer=None if manifest.trainer == "external" else manifest.optimizer,
        server_optimizer=server_optimizer(request.server.name, request.server.parameters),
        hyper=manifest.hyper,
        overrides=request.hyper,
        reducer=request.reducer,
        rounds=request.rounds,
        training=manifest.training,
        codecs=request.codecs,
        broadcast=manifest.broadcast,
        schema=manifest.schema,
        secure=secure_of(request),
        privacy=request.privacy,
        metrics=manifest.metrics,
        central=request.evaluation is not None,
        evaluation_metrics=request.evaluation_metrics,
        several=manifest.chooses,
        personal=manifest.personal("evaluate"),
        statistics=manifest.buffers,
    )


def check_requested(request: ExperimentCreate, manifest: Manifest) -> None:
    """Raise unless what is asked for can be had together, and the plan is one that was made for it.

    Raises errors.ExperimentError: as `terms_of` and `check_terms`; ``experiment_combination`` for a plan whose steps
    make another privacy than the request; ``frozen_mismatch``.
    """
    check_terms(terms_of(request, manifest))
    _check_steps(request, manifest)
    if (request.frozen and request.frozen.sha256) != (manifest.frozen and manifest.frozen.sha256):
        raise ExperimentError("The frozen blob is not the one that the plan names.", code="frozen_mismatch")


def _check_steps(request: ExperimentCreate, manifest: Manifest) -> None:
    """Whether the plan's steps make the example-level privacy that is asked for, and none that is not."""
    training, private, privacy = manifest.training, manifest.training.private, request.privacy
    if not isinstance(privacy, ExampleLevel):
        holds = private is None
        why = "its plan noises every step, so ask for the ExampleLevel privacy that it was made with"
    else:
        holds = (
            private is not None
            and (private.clip, private.rows, private.factors) == (privacy.clip, privacy.rows, privacy.schedule)
            and private.noise_multiplier >= multiplier(privacy, request.rounds.rounds, training.draws()) * _BELOW
        )
        why = "its plan was not made with this ExampleLevel privacy and number of rounds; compile it again"
    if not holds:
        raise ExperimentError(f"Experiment {request.name[:64]!r}: {why}.", code="experiment_combination")
