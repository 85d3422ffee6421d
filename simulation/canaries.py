"""An audit by canary clients: their updates go through the whole path of a round (encoding, clipping, secret sum,
noise), as those of any client do, and are then looked for in what each round released.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from pydantic import Field, SkipValidation

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.history import History
from coterie.aggregation.plan.manifest import DELTA, Manifest
from coterie.aggregation.server_optimizers import OptimizerState, ServerOptimizer
from coterie.client_sdk.device.trainers.base import Trainer
from coterie.client_sdk.rows.loading import DataSource, load_data
from coterie.errors import ExperimentError
from coterie.privacy.audit.canaries import Canaries
from coterie.privacy.audit.gaussian import POWER, Marks, judge_marks
from coterie.privacy.audit.one_run import CONFIDENCE, Audit, audit_scores
from coterie.privacy.audit.verdict import Verdict, verdict_of
from coterie.privacy.audit.whitening import even_scales, matched
from coterie.privacy.entropy import Entropy
from coterie.protocol.arrays import Vector
from coterie.protocol.privacy import UserLevel
from coterie.simulation.audited import Audited, AuditRequest, audited, no_canaries
from coterie.simulation.canary_trainer import CanaryTrainer, Positions
from coterie.simulation.engines.naming import PLAN_TRAINER, resolve_trainer
from coterie.simulation.population import VirtualClients
from coterie.simulation.simulation import SimulationListener, simulate_full

BEYOND = 10.0
"""A canary's update is so many times longer than the clip: where nobody shortens it, it is seen from afar."""


@dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """What was proven, and the run that it was proven from.

    verdict: of the claim, None where nothing was claimed.
    epsilon: the lower bound, at `delta` with `confidence`.
    cap: the highest that could have been found.
    marks: the judgement that takes the noise for Gaussian, None where there is none to judge.
    guesses: the one that assumes nothing, None where there was no run.
    because: what stands in the way of a better answer.
    """

    verdict: Verdict | None
    claimed: float | None
    delta: float
    confidence: float
    epsilon: float
    cap: float
    canaries: int
    rounds: int
    marks: Marks | None
    guesses: Audit | None
    because: str | None
    history: Annotated[History, SkipValidation, Field(exclude=True)] = field(repr=False)


def audit_by_canaries(
    experiment: Experiment,
    clients: Sequence[DataSource],
    *,
    canaries: int | None = None,
    rounds: int | None = None,
    norm: float | None = None,
    delta: float = 1e-5,
    claimed: float | None = None,
    confidence: float = CONFIDENCE,
    trainer: Trainer | str | None = None,
    workers: int = 1,
    on_event: SimulationListener = lambda event: None,
    entropy: Entropy = os.urandom,
) -> CanaryAudit:
    """Run an experiment with canary clients among a few of its clients, and bound its ε from below.

    All canaries are clients and are chosen as any are; a coin of each decides whether it sends its direction or zeros.
    Whoever judges sees the mean of every round with its noise, before the server's optimizer, and knows when each
    canary was chosen.

    canaries: None for as many as it takes to tell noise of half the size from the claim, as far as the model has room
        for them.
    rounds: None for at most four where an ε was asked for, else for all.
    norm: of a canary's update; ten times the clip where the experiment has one, else 1.
    claimed: the ε to be held against; what the experiment's `UserLevel` claims for these rounds when None, and nothing
        without one.
    delta: of the claim, where the experiment has none. The run is by threads, since a canary is known by its task.
    Raises errors.ExperimentError (``audit_nothing``) for an experiment that trains nothing and when nothing was
    released, errors.ArgumentValueError for canaries that are too few, or as many as the model has weights, and what
    `simulate_full` raises.
    """
    if experiment.rounds.purpose != "train":
        raise ExperimentError(
            f"Experiment {experiment.name!r} trains nothing, so there is nothing to audit.", code="audit_nothing"
        )
    request = AuditRequest(canaries=canaries, rounds=rounds, claimed=claimed, delta=delta, confidence=confidence)
    impossible = no_canaries(experiment)
    if impossible is not None:
        return _cannot_tell(impossible, request)
    manifest = compile_plan(experiment).plan.manifest
    held, moved = _places(manifest)
    terms = audited(experiment, request, length=manifest.layout.size, room=len(held), clients=len(clients))
    marked = Canaries.toss(terms.canaries, entropy=entropy)
    marked.check(len(held))
    privacy = experiment.privacy
    if norm is None:
        norm = BEYOND * privacy.clip if isinstance(privacy, UserLevel) else 1.0
    rows = [_read(experiment, clients[number], number) for number in range(terms.honest)]
    everyone = VirtualClients(terms.honest + terms.canaries, lambda number: rows[number % terms.honest])
    inner = resolve_trainer(PLAN_TRAINER if trainer is None else trainer)
    watching = CanaryTrainer(inner, marked, terms.honest, norm, experiment.seed, moved)
    released: list[Vector] = []
    server = _watched(experiment.server_optimizer, held, marked, released)
    seen = replace(terms.experiment, server_optimizer=server)
    result = simulate_full(seen, everyone, trainer=watching, workers=workers, on_event=on_event)
    if not released:
        raise ExperimentError(
            "No round of the audited run released anything, so there is nothing to audit.", code="audit_nothing"
        )
    return _judge(terms, marked, np.stack(released, axis=1), watching.chosen, result.history)


def _cannot_tell(because: str, request: AuditRequest) -> CanaryAudit:
    """The answer without a run."""
    return CanaryAudit(
        verdict="cannot tell",
        claimed=request.claimed,
        delta=request.delta,
        confidence=request.confidence,
        epsilon=0.0,
        cap=0.0,
        canaries=0,
        rounds=0,
        marks=None,
        guesses=None,
        because=because,
        history=History(()),
    )


def _places(manifest: Manifest) -> tuple[Positions, Positions]:
    """Where canaries point: places in the layout, and the same in the section of the change. Running statistics, which
    no server optimizer sees, are left out.
    """
    layout, spec = manifest.layout, next(spec for spec in manifest.sections if spec.name == DELTA)
    covered = np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in spec.slices])
    weights = np.ones(layout.size, np.bool_)
    for name in manifest.buffers:
        weights[slice(*layout.slices[name])] = False
    moved = np.flatnonzero(weights[covered])
    return covered[moved], moved


def _watched(server: ServerOptimizer, places: Positions, marked: Canaries, released: list[Vector]) -> ServerOptimizer:
    """The optimizer, whose every update is looked at for canaries first: what it is given is what a round releases, and
    what it makes of that tells no more.
    """

    def update(delta: Vector, state: OptimizerState) -> tuple[Vector, OptimizerState]:
        released.append(marked.scores(delta[places]))
        return server.update(delta, state)

    return replace(server, update=update)


def _read(experiment: Experiment, source: DataSource, number: int) -> DataSource:
    """A client's rows, read once for all canaries that pose as it. Errors name the client."""
    try:
        return load_data(source, experiment.schema)
    except Exception as error:
        error.add_note(f"Raised while the rows of client {number} were read.")
        raise


def _judge(
    terms: Audited, marked: Canaries, scores: Vector, chosen: Mapping[int, set[int]], history: History
) -> CanaryAudit:
    """Judge each canary by its scores.

    scores: ``[canaries, releases]``.
    """
    included = np.array(marked.included)
    committed = [record.round for record in history.committed]
    numbers = range(len(included))
    there = np.array([[number in chosen.get(round, ()) for round in committed] for number in numbers], np.bool_)
    whole = len(committed) == terms.experiment.rounds.rounds == scores.shape[1]
    marks, values, because = None, scores.sum(axis=1), terms.because
    if terms.white is not None and terms.terms is not None and whole:
        privacy = terms.experiment.privacy
        adaptive = isinstance(privacy, UserLevel) and privacy.adaptive is not None
        even = even_scales(scores, included, terms.white) if adaptive else scores
        seen = matched(even, there, terms.white)
        marks, values = judge_marks(seen, included, terms.terms), seen.values
    elif terms.white is not None:
        because = "not every round of the run was committed"
    took = there.any(axis=1) if there.size else np.ones(len(included), np.bool_)
    guesses = audit_scores(
        values[took].tolist(),
        included[took].tolist(),
        terms.delta,
        claimed=terms.claimed,
        confidence=terms.each,
    )
    epsilon = max(guesses.epsilon, 0.0 if marks is None else marks.epsilon)
    cap = max(guesses.cap, 0.0 if marks is None else marks.cap)
    verdict = verdict_of(epsilon, cap, terms.claimed)
    if marks is not None and marks.power is not None and marks.power < POWER:
        because = f"noise of half the size would have been caught with a chance of {marks.power:.0%} only"
    if verdict == "not refuted" and because is not None:
        verdict = "cannot tell"
    return CanaryAudit(
        verdict=verdict,
        claimed=terms.claimed,
        delta=terms.delta,
        confidence=terms.confidence,
        epsilon=epsilon,
        cap=cap,
        canaries=terms.canaries,
        rounds=len(committed),
        marks=marks,
        guesses=guesses,
        because=because,
        history=history,
    )
