"""What a rule takes from one round into the next: the aggregate from which centred clipping goes on.

It lies in the server's state, beside what server optimizers keep: durable with the version that it made, never of a
round that was abandoned, and the same for the coordinator, which repeats a round after a restart, and a simulation.
"""

import numpy as np

from coterie.aggregation.reducers import Reducer, Vector
from coterie.aggregation.server_optimizers import State

PREVIOUS = "reducer/previous"


def going_on(rule: Reducer, state: State) -> Reducer:
    """The rule with the aggregate of the last round that became a version; as it is where there is none, or where the
    rule asks for none.
    """
    if rule.reference != "previous" or rule.beside is None or PREVIOUS not in state:
        return rule
    return rule.beside(state[PREVIOUS].astype(np.float32))


def to_go_on(rule: Reducer, aggregate: Vector) -> State:
    """What the next round needs of this one's aggregate ``[length]``, all sections that are means; often nothing."""
    return {PREVIOUS: aggregate} if rule.reference == "previous" else {}
