"""Whether an update counts, as how many clients and by what weight, and why not: one answer for every host."""

from collections.abc import Sequence
from dataclasses import dataclass

from coterie import errors
from coterie.aggregation.events import NOTHING_USABLE
from coterie.aggregation.fold.part import CountedUpdate, LocalUpdate
from coterie.aggregation.private.central import COUNT_AS_ZEROS
from coterie.aggregation.reducers import Reducer
from coterie.aggregation.staleness import freshness
from coterie.protocol.header import UpdateHeader
from coterie.protocol.update import Update

_NO_WEIGHT = "The weight of the update is zero: it was made from no examples."


@dataclass(frozen=True, kw_only=True)
class CountTerms:
    """What a round asks of an update.

    weight_cap: the most that one client may weigh; a larger claim counts as the cap.
    exponent: how fast an update loses weight that lags (see `coterie.aggregation.staleness`).
    hidden: whether the coordinator noises the sum, whatever an update holds.
    single: what needs every single update, None where sums do.
    measured: the rule that reads lengths of whole updates, of which sums over parts tell nothing; None for another.
    in_tree: whether the sums that are made go on to another node, which cannot see what single updates held.
    keep: whether the values stay in memory once they have been looked at; else they are read again when they are added.
    """

    weight_cap: int | None = None
    exponent: float = 0.5
    hidden: bool = False
    single: str | None = None
    measured: str | None = None
    in_tree: bool = False
    keep: bool = True


def count_terms(
    rule: Reducer,
    *,
    weight_cap: int | None,
    exponent: float = 0.5,
    hidden: bool = False,
    in_tree: bool = False,
) -> CountTerms:
    """The terms of a round under that rule.

    hidden: whether the coordinator noises the sum.
    in_tree: whether it goes on to another node.
    """
    by_rule = rule.name if rule.needs == "updates" else None
    return CountTerms(
        weight_cap=weight_cap,
        exponent=exponent,
        hidden=hidden,
        single="Differential privacy" if hidden else by_rule,
        measured=rule.name if rule.measures else None,
        in_tree=in_tree,
        # A rule that sees every update reads them in blocks, or there would be no end to the memory.
        keep=by_rule is None or hidden,
    )


def usable(update: Update | LocalUpdate, terms: CountTerms, *, lag: int = 0, base: str | None = None) -> CountedUpdate:
    """The update as it counts. Each of its numbers is decoded and looked at, once.

    lag: how many versions its base lags.
    base: that base, None for the round's own.
    Raises errors.UpdateRefused: ``bad_weight`` for an update of weight zero, which counts nowhere, and for an
    accumulator beyond the cap of its clients; ``wrong_kind`` for an accumulator, and ``partial_update`` for an update
    of a part, where single whole updates are needed; ``not_finite`` or ``out_of_range``, unless the coordinator's noise
    hides them: to leave a device out for its values would tell of its rows.
    """
    return (
        _result_part(update, terms, lag, base)
        if isinstance(update, LocalUpdate)
        else _file_part(update, terms, lag, base)
    )


def counted_weight(header: UpdateHeader, cap: int | None) -> float:
    """What a file weighs where one client weighs at most ``cap``: a larger claim of a client counts as the cap.

    Raises errors.UpdateRefused (``bad_weight``) for an accumulator beyond the cap of its clients together: its sums
    hold their weights already, so they cannot be lowered.
    """
    if cap is None or header.weight <= cap * header.clients:
        return float(header.weight)
    if header.kind == "accumulator":
        raise errors.UpdateRefused(
            f"The accumulator of {header.clients} clients has a weight of {header.weight}; at most {cap} per client "
            "is allowed.",
            code="bad_weight",
        )
    return float(cap)


def require_weight(weight: float) -> None:
    """Raise errors.UpdateRefused (``bad_weight``) for an update that was made from no examples."""
    if not weight:
        raise errors.UpdateRefused(_NO_WEIGHT, hint="Abort a task that has no data.", code="bad_weight")


def nothing_usable(count: int, reasons: Sequence[str]) -> errors.UpdateRefused:
    """That none of so many updates can be used, with the first reason why: ``zero_weight`` where they only lack weight,
    else ``nothing_usable``.
    """
    why = f"; the first: {reasons[0]}" if reasons else "."
    bare = bool(reasons) and all(reason == _NO_WEIGHT for reason in reasons)
    return errors.UpdateRefused(
        f"None of the {count} updates can be used{why}", code="zero_weight" if bare else NOTHING_USABLE
    )


def _result_part(made: LocalUpdate, terms: CountTerms, lag: int, base: str | None) -> CountedUpdate:
    silent = made.refused is not None
    if made.refused is not None and not terms.hidden:
        raise errors.UpdateRefused(made.refused)
    weight = float(made.weight if terms.weight_cap is None else min(made.weight, terms.weight_cap))
    if not terms.hidden:
        require_weight(weight)
    _require_whole(terms, whole=not made.slices)
    return CountedUpdate(
        task=made.task,
        weight=weight,
        freshness=freshness(lag, terms.exponent),
        base=base,
        steps=made.steps,
        silent=silent,
        sections=made.sections,
        slices=made.slices,
    )


def _file_part(update: Update, terms: CountTerms, lag: int, base: str | None) -> CountedUpdate:
    header = update.header
    if terms.single is not None and header.kind == "accumulator":
        raise errors.UpdateRefused(
            f"{terms.single} needs every single update, and this is a sum of them.", code="wrong_kind"
        )
    _require_whole(terms, whole=update.whole)
    if terms.measured is not None and (update.coverage or (terms.in_tree and not update.whole)):
        raise _part_in_tree(terms.measured)
    sections, silent = {}, False
    try:
        if terms.keep:
            sections = {name: update.read(name) for name in update.sections}
        else:
            update.check_finite()
    except errors.UpdateRefused as error:
        if not (terms.hidden and error.reason in COUNT_AS_ZEROS):
            raise
        sections, silent = {}, True
    weight = counted_weight(header, terms.weight_cap)
    if not terms.hidden:
        require_weight(weight)
    return CountedUpdate(
        task=header.task,
        weight=weight,
        freshness=freshness(lag, terms.exponent),
        base=base,
        clients=header.clients,
        steps=header.steps,
        summed=header.kind == "accumulator",
        silent=silent,
        sections=sections,
        slices=update.slices,
        coverage=update.coverage,
        update=update,
    )


def _part_in_tree(rule: str) -> errors.UpdateRefused:
    """That a rule which reads lengths has no use for a sum of updates of parts: nothing would bound what an edge
    aggregator says of a part.
    """
    return errors.UpdateRefused(
        f"{rule} behind an edge aggregator needs updates of the whole model.",
        hint="Use the reducer mean, or let clients that train parts join the coordinator itself.",
        code="partial_update",
    )


def _require_whole(terms: CountTerms, *, whole: bool) -> None:
    if terms.single is not None and not whole:
        raise errors.UpdateRefused(
            f"{terms.single} needs whole updates, and this one covers a part of the model.",
            hint="Let every client train all tensors, or use the reducer mean or norm_bound.",
            code="partial_update",
        )
