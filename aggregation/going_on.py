"""What a rule sees beside the updates of a round: that of a client which is trusted, by which FLTrust judges the
others, or the aggregate of the round before, from which centred clipping goes on.

The latter lies in the server's state, beside what server optimizers keep: durable with the version that it made, never
of a round that was abandoned, and the same for the coordinator, which repeats a round after a restart, and a
simulation.
"""

import numpy as np

from coterie import errors
from coterie.aggregation.reducers import Reducer, Vector
from coterie.aggregation.server_optimizers import OptimizerState

PREVIOUS = "reducer/previous"


def judging(rule: Reducer, trusted: Vector | None) -> Reducer:
    """The rule that judges by this update ``[length]``. Raises errors.UpdateRefused (``trusted_missing``) for none."""
    if trusted is None or rule.beside is None:
        raise errors.UpdateRefused(
            f"{rule.name} judges updates by that of the trusted client, which is not among the usable ones of this "
            "round.",
            hint="See why the trusted client did not report: its tasks are in the round's record.",
            code="trusted_missing",
        )
    return rule.beside(trusted.astype(np.float32))


def going_on(rule: Reducer, state: OptimizerState) -> Reducer:
    """The rule with the aggregate of the last round that became a version; as it is where there is none, or where the
    rule asks for none.
    """
    if rule.reference != "previous" or rule.beside is None or PREVIOUS not in state:
        return rule
    return rule.beside(state[PREVIOUS].astype(np.float32))


def to_go_on(rule: Reducer, aggregate: Vector) -> OptimizerState:
    """What the next round needs of this one's aggregate ``[length]``, all sections that are means; often nothing."""
    return {PREVIOUS: aggregate} if rule.reference == "previous" else {}
