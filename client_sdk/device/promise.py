"""Whether what a signed task asks for can keep the privacy that it promises, and what it costs by this device's own
account.

Nothing here counts on the coordinator's word. The noise of the device itself and of a cohort follows from the terms
that the task makes clients follow, the noise of private steps from the plan that the device runs. Only a promise that
trusts the coordinator is taken as it stands: its noise is added where no device can look.
"""

from coterie.aggregation.plan.manifest import DELTA, Manifest
from coterie.aggregation.private.local_noise import check_sections, level_of
from coterie.errors import ArgumentValueError, ExperimentError, PolicyRefused
from coterie.privacy.dp import distributed, local
from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.events import Approximate, PrivacyEvent, SampledGaussian
from coterie.privacy.dp.rounds import whole_cost
from coterie.privacy.secagg.parameters import share_of
from coterie.protocol.claims import LocalTerms, PrivacyTerms
from coterie.protocol.device import Task
from coterie.protocol.secagg import SecureTerms
from coterie.protocol.secure_sections import COUNTS

# A calibrated price comes out a little below what was asked for.
_ROUNDING = 1 + 1e-6
HINT = "Ask the experiment's researcher, or the coordinator's operator, what the noise is meant to be."
_NO_PROMISE = "is missing, and the plan's steps add noise to single rows"
_NOISED_VECTOR = ((COUNTS, "exact"), (DELTA, "noised"))
"""All that leaves a device whose noise hides in a cohort's: names and encodings of the masked vector's sections."""


def check_promise(task: Task, promise: PrivacyTerms, *, endorsed: int | None = None) -> None:
    """Hold a task to its promise, as far as its own terms tell; what its plan tells comes with `events_of`.

    - Nothing noises what an evaluation measures, so no promise covers one.
    - A promise that rests on the device alone needs noise of its own, which costs no more in one upload than is
      promised for all.
    - The noise of a cohort is on the change of the weights, and beside that only the fixed counts leave the device. It
      counts on the shares of at most the fewest clients that a sum may have, less those that may side with the
      coordinator, and on the mode in which no coordinator can split the cohort. One round costs no more than all may.

    endorsed: the fewest clients of a sum of whom somebody else than the coordinator says that they are real, where the
        policy asks for that: the coordinator may know the shares of all others.
    Raises errors.PolicyRefused (``privacy_unkept``).
    """
    if task.kind != "train":
        raise _refusal("covers training, and no noise is added to what an evaluation measures")
    if not 0 < promise.delta < 1:
        raise _refusal(f"has the delta {promise.delta:g}, and no account of noise is made at that")
    if promise.trusts == "device" and promise.unit == "user":
        _check_own(_local_terms(task), promise)
    elif task.local is not None:
        raise _refusal("does not rest on noise of this device's own, and the task asks for some")
    if promise.trusts == "cohort":
        _check_shared(_secure_terms(task), promise, endorsed)


def events_of(task: Task, promise: PrivacyTerms, manifest: Manifest) -> tuple[PrivacyEvent, ...]:
    """What the task's own noise costs, in a task that `check_promise` has passed; the whole claim where that trusts
    the coordinator.

    manifest: of the task's plan.
    Raises errors.PolicyRefused (``privacy_unkept``) for a promise to hide rows that rests on a plan without noise in
    its steps.
    """
    if promise.unit == "example":
        return _of_rows(manifest, task.round)
    match promise.trusts:
        case "device":
            return _of_upload(_local_terms(task))
        case "cohort":
            return (_of_a_sum(_secure_terms(task)),)
        case "coordinator":
            return (Approximate(promise.epsilon, promise.delta),)


def check_steps(task: Task, manifest: Manifest) -> None:
    """Steps that noise single rows are taken only under a promise about single rows, which is what they cost. What they
    leave on this device, its state for the method, is free of other noise: a training at another price would gather
    there what a later upload tells.

    Raises errors.PolicyRefused (``privacy_unkept``).
    """
    promise = task.privacy
    if task.kind == "train" and manifest.training.private and (promise is None or promise.unit != "example"):
        raise _refusal("is not about single rows, and the plan's steps noise those" if promise else _NO_PROMISE)


def check_own_noise(task: Task, manifest: Manifest) -> None:
    """Hold the noise that a task makes this device add against the plan, before anything is trained: noise that turns
    out to be impossible only then would end one task after another without a word.

    Raises errors.PolicyRefused (``privacy_unkept``), PlanRefused (``local_noise_sections``).
    """
    if task.local is None:
        return
    check_sections(manifest)
    length = next(spec.length for spec in manifest.sections if spec.name == DELTA)
    try:
        local.reach(level_of(task.local), length)
    except (ArgumentValueError, ExperimentError, ArithmeticError) as error:
        raise _refusal(f"rests on noise that cannot be made: {str(error).rstrip('.')}") from error


def _check_own(terms: LocalTerms, promise: PrivacyTerms) -> None:
    if terms.epsilon > promise.epsilon * _ROUNDING or terms.delta > promise.delta * _ROUNDING:
        raise _refusal(
            f"is epsilon {promise.epsilon:g} at delta {promise.delta:g} for all rounds, and one upload alone is made "
            f"for {terms.epsilon:g} at {terms.delta:g}"
        )
    _of_upload(terms)


def _check_shared(terms: SecureTerms, promise: PrivacyTerms, endorsed: int | None) -> None:
    if terms.mode != "consistent":
        raise _refusal(
            f"rests on a cohort that a coordinator cannot split, and the task is in the mode {terms.mode!r}, in which "
            "it can"
        )
    found = tuple((section.name, section.encoding) for section in terms.sections)
    if terms.noise is None or found != _NOISED_VECTOR:
        named = ", ".join(f"{name} {encoding}" for name, encoding in found[:4])
        raise _refusal(
            "rests on noise that clients add to the change of the weights, with nothing besides it but the counts, and "
            f"the task lets them send: {named}" + ("" if terms.noise else ", without noise")
        )
    corrupt = share_of(terms.corrupt, terms.max_clients)
    real = terms.min_clients if endorsed is None else min(terms.min_clients, endorsed)
    if terms.noise.contributors > max(real - corrupt, 1):
        known = "" if endorsed is None else " endorsed ones"
        raise _refusal(
            f"counts on the noise of {terms.noise.contributors} clients, and a sum may be of {real}{known}, of whom "
            f"{corrupt} may reveal theirs"
        )
    cost = total_cost([_of_a_sum(terms)], promise.delta, accountant="rdp").epsilon
    if cost > promise.epsilon:
        raise _refusal(f"is epsilon {promise.epsilon:g} for all rounds, and one round alone costs {cost:.3g}")


def _local_terms(task: Task) -> LocalTerms:
    if task.local is None:
        raise _refusal("rests on noise that this device adds by itself, and the task lets it add none")
    return task.local


def _secure_terms(task: Task) -> SecureTerms:
    if task.secure is None:
        raise _refusal("rests on noise that clients add together, and the task is without secure aggregation")
    return task.secure


def _of_rows(manifest: Manifest, round: int) -> tuple[PrivacyEvent, ...]:
    """One training by steps that the plan noises, in a round of its schedule."""
    draws, private = manifest.training.draws(), manifest.training.private
    if draws is None or private is None:
        raise _refusal("is about single rows, and the plan's steps neither clip nor noise them")
    if manifest.training.holdout and manifest.schema.label.others == "dropped":
        raise _refusal("is about single rows, and one that the label's classes drop moves others in or out of training")
    fails = (Approximate(0.0, draws.failure),) if draws.failure else ()
    try:
        multiplier = private.multiplier(round)
    except ArgumentValueError as error:
        raise _refusal(f"is about single rows, and there is no noise for them: {error.message.rstrip('.')}") from error
    return (SampledGaussian(multiplier, draws.rate, draws.steps), *fails)


def _of_upload(terms: LocalTerms) -> tuple[PrivacyEvent, ...]:
    """One upload that the device noises by itself."""
    try:
        return whole_cost(level_of(terms), 1, cohort=1)
    except (ArgumentValueError, ExperimentError) as error:
        raise _refusal(f"rests on noise that cannot be made: {error.message}") from error


def _of_a_sum(terms: SecureTerms) -> PrivacyEvent:
    """One sum that a cohort noises together."""
    section = terms.sections[-1]
    if terms.noise is None:
        raise _refusal("rests on noise that clients add together, and the task lets them add none")
    try:
        return distributed.event(distributed.DistributedNoise.of(terms.noise, section.bits, section.values))
    except ArgumentValueError as error:
        raise _refusal(f"rests on noise that cannot be made: {error.message}") from error


def _refusal(why: str) -> PolicyRefused:
    return PolicyRefused(f"The task's privacy guarantee is inconsistent: it {why}.", hint=HINT, code="privacy_unkept")
