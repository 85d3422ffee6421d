"""An accumulator as a file: what an edge aggregator sends in place of the updates that it has added up.

Sums are associative, so updates that are only summed need not travel one by one. The file is of the same form as an
update, all in float64: weighted sums where the plan says weighted mean, plain sums elsewhere; its header says of how
many clients it is and what they weigh together.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy.typing as npt

from coterie import errors
from coterie.aggregation.reducers import Accumulator, Reducer, reducer
from coterie.protocol.header import UpdateHeader
from coterie.protocol.sections import SectionSpec
from coterie.protocol.update import Update, UpdateLimits

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


def counted_weight(header: UpdateHeader, cap: int | None) -> float:
    """What a file weighs where one client weighs at most ``cap``: a larger claim of a client counts as the cap.

    Raises errors.UpdateRefused (``bad_weight``) for an accumulator beyond the cap of its clients together: its sums
    hold their weights already, so they cannot be lowered.
    """
    if cap is None or header.weight <= cap * header.clients:
        return float(header.weight)
    if header.kind == "accumulator":
        raise errors.UpdateRefused(
            f"The accumulator of {header.clients} clients weighs {header.weight}; each may weigh {cap} at most.",
            code="bad_weight",
        )
    return float(cap)


def take(
    rule: Reducer,
    total: Accumulator,
    update: Update,
    specs: Sequence[SectionSpec],
    weight: float,
    freshness: float = 1.0,
) -> Accumulator:
    """The accumulator after one more file: an update is added, an accumulator merged. Consumes ``total``.

    specs: the sections that the rule reduces, as one vector in their order. weight: see `counted_weight`; freshness:
    what it is multiplied by (see `coterie.aggregation.staleness`).
    """
    if update.header.kind == "update":
        return rule.add(total, joined(update, specs), weight * freshness)
    return rule.merge(total, read_accumulator(update, specs, freshness=freshness))


def read_accumulator(update: Update, specs: Sequence[SectionSpec], *, freshness: float = 1.0) -> Accumulator:
    """What a file of the kind ``accumulator`` holds of these sections, as one vector in their order: sums and weight,
    both times ``freshness``.
    """
    total = reducer("sum").init(sum(spec.length for spec in specs)).total
    for start, values in joined(update, specs):
        total[start : start + values.size] = values
    if freshness != 1.0:
        total *= freshness
    return Accumulator(total, update.header.weight * freshness, update.header.clients)


def joined(update: Update, specs: Sequence[SectionSpec]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """The elements of these sections as those of one vector: ``(start, elements)``, covering it once."""
    at = 0
    for spec in specs:
        for start, values in update.chunks(spec.name):
            yield at + start, values
        at += spec.length
