"""An accumulator as a file: what an edge aggregator sends in place of the updates that it has added up.

Sums are associative, so updates that are only summed need not travel one by one. The file is of the same form as an
update, all in float64: weighted sums where the plan says weighted mean, plain sums elsewhere; its header says of how
many clients it is, what they weigh together, and the weights of those that cover a section in part.
"""

from typing import Final

from coterie import errors
from coterie.aggregation.reducers import Reducer, reducer
from coterie.protocol.update import UpdateLimits

EITHER: Final = UpdateLimits(kinds=frozenset({"update", "accumulator"}))
"""An update of one client, or an accumulator of any number."""


def tree_reducer(text: str) -> Reducer:
    """The reducer of that text, for a tree.

    Raises errors.ExperimentError: ``reducer_in_tree`` for one that needs single updates, or what `reducer` raises.
    """
    rule = reducer(text)
    if rule.needs != "sums":
        raise errors.ExperimentError(
            f"The reducer {text[:64]!r} needs every single update, and an edge aggregator sends sums.",
            hint="Choose one that needs sums only, such as mean, or let the devices join the coordinator itself.",
            code="reducer_in_tree",
        )
    return rule
