"""Whether a plan's own steps can keep the example-level privacy that a signed task promises.

The device makes this privacy itself: it draws the rows and the noise. So it can work out what that costs, whoever
signed the promise.
"""

from coterie.aggregation.plan.manifest import Manifest
from coterie.client_sdk.device.promise import HINT
from coterie.errors import PolicyRefused
from coterie.privacy.dp import loss_distribution
from coterie.privacy.dp.accounting import spent
from coterie.privacy.dp.events import Approximate, SampledGaussian
from coterie.protocol.device import Task

RENYI_EXCESS = 1.5
"""Rényi's bound may be this much above the price by loss distributions, which devices need not be able to compute; it
is a fifth above it in common cases.
"""
_ROUNDING = 1 + 1e-6


def check_private_rows(task: Task, manifest: Manifest) -> None:
    """Raise PolicyRefused (``privacy_unkept``) for a training task that promises to hide rows where the plan's steps
    are without noise, or where as many rounds as there have been cost more than is promised for all.
    """
    promise, draws, private = task.privacy, manifest.training.draws(), manifest.training.private
    if promise is None or promise.unit != "example" or task.kind != "train":
        return
    if draws is None or private is None:
        raise _unkept("is about single rows, and the plan's steps neither clip nor noise them")
    events = [SampledGaussian(private.noise_multiplier, draws.rate, draws.steps * task.round)]
    fails = [Approximate(0.0, draws.failure, task.round)] if draws.failure else []
    cost = spent([*events, *fails], promise.delta).epsilon if 0 < promise.delta < 1 else float("inf")
    if cost > promise.epsilon * (_ROUNDING if loss_distribution.available() else RENYI_EXCESS):
        raise _unkept(f"is epsilon {promise.epsilon:g} for all rounds, and {task.round} cost {cost:.3g} by themselves")


def _unkept(why: str) -> PolicyRefused:
    return PolicyRefused(f"The task's promise of privacy cannot hold: it {why}.", hint=HINT, code="privacy_unkept")
