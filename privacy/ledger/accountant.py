"""What the ledger's costs add up to, by the accounting of `coterie.privacy.dp.accounting`."""

from collections.abc import Sequence

from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.events import event_from_json
from coterie.protocol.canonical import parse_json


def epsilon(costs: Sequence[str], delta: float) -> float:
    """The ε of all costs together at δ; 0 where there is none.

    Raises what `total_cost` raises, an absent library among it (``extra_missing``).
    """
    if not costs:
        return 0.0
    return total_cost([event_from_json(parse_json(text.encode())) for text in costs], delta).epsilon
