"""An experiment as it is audited: the same path of a round, with canaries in its cohort, for a few of its rounds."""

import math
from dataclasses import dataclass, replace

import numpy as np

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal.server_part import ServerPart
from coterie.aggregation.promises.claims import claim_of
from coterie.errors import InternalError
from coterie.privacy.audit.gaussian import CanaryParameters, enough_canaries
from coterie.privacy.audit.one_run import canaries_for
from coterie.privacy.audit.whitening import expected_strengths, whitening
from coterie.privacy.secagg.parameters import share_of
from coterie.protocol.arrays import Matrix
from coterie.protocol.mechanisms import DISTRIBUTED
from coterie.protocol.privacy import ExampleLevel, LocalLevel, UserLevel
from coterie.protocol.rounds import RoundPolicy

ROUNDS = 4
"""Of an audit where an ε was asked for: noise is made for as many rounds as there are, so that a few are as good as
many.
"""
HONEST = 5
"""Honest clients of an audited run at the most: enough for it to train, too few to hide a canary."""
_DRAFT = 1000


@dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """What somebody wants of an audit.

    canaries, rounds: None for as many as the claim needs.
    claimed: the ε to be held against, None for the experiment's own.
    delta: of the claim, where the experiment has none.
    confidence: of the answer.
    """

    canaries: int | None
    rounds: int | None
    claimed: float | None
    delta: float
    confidence: float


@dataclass(frozen=True, kw_only=True)
class Audited:
    """A simulation with canaries, and how they are judged.

    experiment: as it is run, of so many canaries and honest clients.
    delta, claimed: what it is held against.
    confidence: of the answer.
    each: of one judgement.
    terms, white: what the judgement of marks needs; None where only guesses are judged, and then `because` says why, if
        noise was asked for.
    """

    experiment: Experiment
    canaries: int
    honest: int
    delta: float
    claimed: float | None
    confidence: float
    each: float
    terms: CanaryParameters | None = None
    white: Matrix | None = None
    because: str | None = None


def no_canaries(experiment: Experiment) -> str | None:
    """Why canary clients can say nothing of what the experiment promises; None where they can."""
    match experiment.privacy:
        case ExampleLevel():
            return "ExampleLevel hides rows of a device, and canaries are devices; `coterie audit members` is for rows"
        case LocalLevel():
            return "LocalLevel is a promise about each single upload, and canaries are looked for in sums of uploads"
        case UserLevel() if experiment.algorithm.server.apply is not ServerPart().apply:
            return f"the algorithm {experiment.algorithm.name!r} mixes what it remembers into the noised mean"
        case _:
            return None


def audited(experiment: Experiment, request: AuditRequest, *, length: int, room: int, clients: int) -> Audited:
    """The experiment as it is audited.

    length: weights of its model.
    room: those of them that canaries may move.
    clients: how many honest ones there are.

    Raises errors.ExperimentError as `claim_of` does, and where the experiment cannot have such a cohort.
    """
    honest = min(clients, HONEST)
    because = _no_marks(experiment)
    if because is None and isinstance(experiment.privacy, UserLevel):
        count = request.canaries or min(_enough_for_marks(experiment, request, honest, length), room - 1)
        return _by_marks(experiment, request, honest, count, length)
    delta, claimed = _claim(_fit_to_audit(experiment, _DRAFT, request.rounds), request, length)
    count = request.canaries or min(canaries_for(claimed, delta, confidence=request.confidence), room - 1)
    shaped = _fit_to_audit(experiment, honest + count, request.rounds)
    delta, claimed = _claim(shaped, request, length)
    return Audited(
        experiment=shaped,
        canaries=count,
        honest=honest,
        delta=delta,
        claimed=claimed,
        confidence=request.confidence,
        each=request.confidence,
        because=because,
    )


def _no_marks(experiment: Experiment) -> str | None:
    """Why the size of marks says nothing of the noise here; None where it does, and where no noise was asked for."""
    if not isinstance(experiment.privacy, UserLevel):
        return None
    if experiment.secure is not None and experiment.secure.groups is not None:
        return "a robust rule is applied after the noise of the groups, and no test is known for that"
    return None


def _enough_for_marks(experiment: Experiment, request: AuditRequest, honest: int, length: int) -> int:
    draft = _by_marks(experiment, request, honest, _DRAFT, length)
    if draft.terms is None or draft.white is None or draft.claimed is None:
        raise InternalError("Noise that is audited by marks has a claim.")
    squares = _strengths(draft.experiment, draft.white) ** 2
    # So that guesses, which assume nothing, may refute the claim too.
    guessed = canaries_for(draft.claimed, draft.delta, confidence=draft.each)
    told = enough_canaries(
        claimed=draft.claimed,
        delta=draft.delta,
        halved=draft.terms.halved,
        strength=float(squares.mean() / squares.max()),
        confidence=draft.each,
    )
    return max(guessed, told)


def _by_marks(experiment: Experiment, request: AuditRequest, honest: int, canaries: int, length: int) -> Audited:
    shaped = _fit_to_audit(experiment, honest + canaries, request.rounds)
    delta, claimed = _claim(shaped, request, length)
    if not isinstance(shaped.privacy, UserLevel):
        raise InternalError("Only noise on sums is audited by marks.")
    white = whitening(shaped.privacy, shaped.rounds.rounds, cohort=shaped.rounds.cohort)
    strongest = float(_strengths(shaped, white).max())
    # What hides a canary without noise: updates of the clip from all honest clients, all alike, in every round.
    hidden = float(np.linalg.norm(white.sum(axis=1))) * honest / math.sqrt(length)
    # Two judgements, each of which may be wrong with half of the chance that is left for mistakes.
    each = 1 - (1 - request.confidence) / 2
    terms = CanaryParameters(
        delta=delta,
        claimed=claimed,
        halved=2 * strongest / _noise_surplus(shaped),
        unnoised=strongest / hidden,
        confidence=each,
    )
    return Audited(
        experiment=shaped,
        canaries=canaries,
        honest=honest,
        delta=delta,
        claimed=claimed,
        confidence=request.confidence,
        each=each,
        terms=terms,
        white=white,
    )


def _claim(shaped: Experiment, request: AuditRequest, length: int) -> tuple[float, float | None]:
    """δ, and the ε that is held against it."""
    if not isinstance(shaped.privacy, UserLevel):
        return request.delta, request.claimed
    told = claim_of(shaped, length=length)
    own = None if told is None else told.claim.epsilon
    return shaped.privacy.delta, own if request.claimed is None else request.claimed


def _strengths(shaped: Experiment, white: Matrix) -> Matrix:
    privacy, policy = shaped.privacy, shaped.rounds
    most = privacy.max_participations if isinstance(privacy, UserLevel) else None
    return expected_strengths(white, apart=_rounds_apart(shaped), most=most or policy.rounds)


def _noise_surplus(shaped: Experiment) -> float:
    """How much larger the noise of a whole cohort is than what is asked for: shares are made for those alone that do
    not work together with the coordinator.
    """
    privacy, policy, secure = shaped.privacy, shaped.rounds, shaped.secure
    if secure is None or not isinstance(privacy, UserLevel) or privacy.mechanism not in DISTRIBUTED:
        return 1.0
    honest = max(policy.min_updates - share_of(secure.corrupt, policy.cohort), 1)
    return math.sqrt(policy.cohort / honest)


def _rounds_apart(experiment: Experiment) -> int:
    """Rounds from one participation of a device to its next one."""
    privacy, rest = experiment.privacy, experiment.rounds.rest_rounds + 1
    return max(rest, privacy.min_separation) if isinstance(privacy, UserLevel) else rest


def _fit_to_audit(experiment: Experiment, clients: int, rounds: int | None) -> Experiment:
    """The experiment for so many clients, all of which take part as often as they may; nobody measures, and nothing
    ends it early.
    """
    policy, privacy = experiment.rounds, experiment.privacy
    asked_epsilon = not isinstance(privacy, UserLevel) or privacy.epsilon is not None
    count = min(policy.rounds, ROUNDS if asked_epsilon else policy.rounds) if rounds is None else rounds
    cohort = clients // min(_rounds_apart(experiment), count)
    if isinstance(privacy, UserLevel):
        times = privacy.max_participations or count
        cohort = min(cohort, max(1, times * clients // count))
        if privacy.schedule is not None:
            privacy = privacy.but(schedule=privacy.schedule[:count])
    kept = policy.model_dump(exclude=_SHAPED)
    # Nobody drops out here, so shares of noise are made for all: what they are more than is asked for hides canaries.
    shared = isinstance(privacy, UserLevel) and privacy.mechanism in DISTRIBUTED
    fewest = cohort if shared else max(1, math.ceil(cohort * policy.min_updates / policy.cohort))
    return replace(
        experiment,
        privacy=privacy,
        evaluation=None,
        # As it is with the experiment's own cohort, which may be another with this one.
        secure_aggregation=experiment.secure or False,
        rounds=RoundPolicy(
            **kept,
            rounds=count,
            cohort=cohort,
            min_updates=fewest,
            evaluate_every=0,
            hyper_schedule={name: values[:count] for name, values in (policy.hyper_schedule or {}).items()} or None,
        ),
    )


_SHAPED = {
    "rounds",
    "cohort",
    "min_updates",
    "evaluate_every",
    "evaluation_cohort",
    "hyper_schedule",
    "target",
    "patience",
}
