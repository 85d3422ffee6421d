"""What a simulated round does where updates must not be seen one by one, or not without noise."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.central import CentralNoise
from coterie.aggregation.secure import clip_in, secure_terms
from coterie.aggregation.server_optimizers import State
from coterie.protocol import ids
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.privacy import DISTRIBUTED, UserLevel
from coterie.protocol.secagg import SecureTerms
from coterie.simulation.noised import NoisedCollector
from coterie.simulation.ring import Opening, RingCollector
from coterie.simulation.work import Assignment


def with_terms(
    experiment: Experiment, manifest: Manifest, assignment: Assignment, kind: Literal["train", "evaluate"], state: State
) -> Assignment:
    """The assignment with the terms of the round's secret sum, where there is to be one. state: the server's."""
    if experiment.secure is None:
        return assignment
    digest = sha256_hex(f"{assignment.seed}/attempt/{kind}/{assignment.round}".encode())
    terms = secure_terms(
        manifest,
        kind,
        attempt=f"{ids.ATTEMPT}_{digest[:32]}",
        secure=experiment.secure,
        privacy=experiment.privacy,
        rounds=experiment.rounds,
        round=assignment.round,
        clip=clip_in(state),
    )
    return replace(assignment, secure=terms.model_dump_json())


def private_collector(
    experiment: Experiment, manifest: Manifest, assignment: Assignment, order: Sequence[int], state: State
) -> RingCollector | NoisedCollector | None:
    """What takes the updates of a round of these clients, in an order drawn by lot; None where they come in the open.
    state: the server's.
    """
    noise = _central_noise(experiment, assignment)
    if assignment.secure is not None and experiment.secure is not None:
        opening = Opening(
            terms=SecureTerms.model_validate_json(assignment.secure),
            base=assignment.base,
            groups=experiment.secure.groups or 1,
            expected=experiment.rounds.cohort,
            rule=experiment.reducer,
            central=noise,
        )
        return RingCollector(manifest, opening, order)
    return None if noise is None else NoisedCollector(manifest, assignment.base, noise, state)


def _central_noise(experiment: Experiment, assignment: Assignment) -> CentralNoise | None:
    """The coordinator's noise of this round. Its seed follows from the experiment's, so that a run can be repeated: a
    simulation shows what noise does to a model, and keeps no secret.
    """
    privacy, policy = experiment.privacy, experiment.rounds
    if not isinstance(privacy, UserLevel) or privacy.mechanism in DISTRIBUTED:
        return None
    return CentralNoise(
        privacy=privacy,
        round=assignment.round,
        rounds=policy.rounds,
        expected=policy.cohort,
        seed=bytes.fromhex(sha256_hex(f"{assignment.seed}/noise/{assignment.round}".encode())),
        groups=1 if experiment.secure is None else experiment.secure.groups or 1,
    )
