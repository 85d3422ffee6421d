"""How a simulated round takes its updates: in the open, with noise, or only in sums."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.fold.choose import open_fold
from coterie.aggregation.fold.ring import RingFoldTerms, ring_fold
from coterie.aggregation.fold.usable import count_terms
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.central import CentralNoise
from coterie.aggregation.reducers import reducer
from coterie.aggregation.secure import clip_in, secure_terms
from coterie.aggregation.server_optimizers import OptimizerState
from coterie.protocol import ids
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.privacy import UserLevel
from coterie.protocol.secagg import SecureTerms
from coterie.simulation.assignment import Assignment, task_id
from coterie.simulation.collect import Collector, in_secret, in_the_open
from coterie.simulation.shares import WorkShares


def with_terms(
    experiment: Experiment,
    manifest: Manifest,
    assignment: Assignment,
    kind: Literal["train", "evaluate"],
    state: OptimizerState,
) -> Assignment:
    """The assignment with the terms of the round's secret sum, where there is to be one.

    state: the server's.
    """
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


def collector(
    experiment: Experiment,
    manifest: Manifest,
    assignment: Assignment,
    order: Sequence[int],
    state: OptimizerState,
    shares: WorkShares,
    *,
    noised: bool,
) -> Collector:
    """What takes the updates of a round of these clients, in an order drawn by lot: one by one, clipped and noised, or
    in secret sums, for which the clients go into the groups in turn.

    state: the server's.
    noised: as the engine says with what is due.
    """
    policy, secure = experiment.rounds, experiment.secure
    noise = _central_noise(experiment, assignment) if noised else None
    if assignment.secure is not None and secure is not None:
        asked = SecureTerms.model_validate_json(assignment.secure)
        fold_terms = RingFoldTerms(
            terms=asked,
            base=assignment.base,
            groups=secure.groups or 1,
            expected=policy.cohort,
            rule=experiment.reducer,
            central=noise,
            fewest=asked.min_clients,
        )
        groups = {number: place % fold_terms.groups for place, number in enumerate(order)}
        return Collector(manifest, assignment.base, ring_fold(manifest, fold_terms), in_secret(groups), shares)
    rule = reducer(experiment.reducer)
    counting = count_terms(
        rule, weight_cap=policy.weight_cap, exponent=policy.staleness_exponent, hidden=noise is not None
    )
    # Updates are in memory here anyway.
    terms = replace(counting, keep=True)
    trusted = None if policy.trusted is None else task_id(assignment.round, int(policy.trusted))
    fold = open_fold(manifest, rule, trusted=trusted, central=noise, server=state)
    return Collector(manifest, assignment.base, fold, in_the_open(manifest, terms, assignment.base), shares)


def _central_noise(experiment: Experiment, assignment: Assignment) -> CentralNoise | None:
    """The coordinator's noise of this round. Its seed follows from the experiment's, so that a run can be repeated: a
    simulation shows what noise does to a model, and keeps no secret.
    """
    privacy, policy = experiment.privacy, experiment.rounds
    if not isinstance(privacy, UserLevel):
        return None
    return CentralNoise(
        privacy=privacy,
        round=assignment.round,
        rounds=policy.rounds,
        expected=policy.cohort,
        seed=bytes.fromhex(sha256_hex(f"{assignment.seed}/noise/{assignment.round}".encode())),
        groups=1 if experiment.secure is None else experiment.secure.groups or 1,
    )
