"""Whether the noise that a signed task makes clients add can keep the privacy that the task promises.

A device cannot see what others add. It can compute, from the terms it is told to follow itself, what one sum under them
costs: more than the promise for all rounds, and the promise is false, whoever signed it.
"""

from coterie.errors import ArgumentValueError, PolicyRefused
from coterie.privacy.dp import distributed
from coterie.privacy.dp.accounting import spent
from coterie.privacy.secagg.parameters import share_of
from coterie.protocol.claims import PrivacyTerms
from coterie.protocol.device import Task
from coterie.protocol.secagg import SecureTerms

# A calibrated price comes out a little below what was asked for.
_ROUNDING = 1 + 1e-6
HINT = "Ask the experiment's researcher, or the coordinator's operator, what the noise is meant to be."


def check_noise(task: Task, promise: PrivacyTerms) -> None:
    """Raise PolicyRefused (``privacy_unkept``) where a promise that rests on noise of devices cannot hold.

    A promise that rests on the device alone needs noise of its own, which costs no more in one upload than is promised
    for all. The noise of a cohort counts on the shares of at most the fewest clients that a sum may have, less those
    that may side with the coordinator; and what one round costs by the closed form for concentrated noise (Rényi) stays
    below what all rounds together may cost.
    """
    if promise.trusts == "device" and promise.unit == "user" and task.kind == "train":
        _check_own(task, promise)
    if promise.trusts != "cohort":
        return
    terms = task.secure
    if terms is None or terms.noise is None:
        raise _unkept("rests on noise that clients add, and the task lets them add none")
    corrupt = share_of(terms.corrupt, terms.max_clients)
    if terms.noise.contributors > max(terms.min_clients - corrupt, 1):
        raise _unkept(
            f"counts on the noise of {terms.noise.contributors} clients, and a sum may be of {terms.min_clients}, of "
            f"whom {corrupt} may tell theirs"
        )
    cost = _cost_of_a_round(terms, promise.delta)
    if cost > promise.epsilon:
        raise _unkept(f"is epsilon {promise.epsilon:g} for all rounds, and one round alone costs {cost:.3g}")


def _check_own(task: Task, promise: PrivacyTerms) -> None:
    """The noise that this device is to add by itself."""
    if task.local is None:
        raise _unkept("rests on noise that this device adds by itself, and the task lets it add none")
    if task.local.epsilon > promise.epsilon * _ROUNDING or task.local.delta > promise.delta * _ROUNDING:
        raise _unkept(
            f"is epsilon {promise.epsilon:g} at delta {promise.delta:g} for all rounds, and one upload alone is made "
            f"for {task.local.epsilon:g} at {task.local.delta:g}"
        )


def _cost_of_a_round(terms: SecureTerms, delta: float) -> float:
    """The epsilon of one sum at this delta."""
    noised = [section for section in terms.sections if section.encoding == "noised"]
    if terms.noise is None or len(noised) != 1 or not 0 < delta < 1:
        raise _unkept("is about one noised vector and a delta above 0, and the task has something else")
    try:
        made = distributed.Terms.of(terms.noise, noised[0].bits, noised[0].values)
    except ArgumentValueError as error:
        raise _unkept(f"rests on noise that cannot be made: {error.message}") from error
    return spent([distributed.event(made)], delta, accountant="rdp").epsilon


def _unkept(why: str) -> PolicyRefused:
    return PolicyRefused(f"The task's promise of privacy cannot hold: it {why}.", hint=HINT, code="privacy_unkept")
