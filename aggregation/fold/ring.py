"""The fold of secret sums: vectors of a ring are added modulo powers of two, by groups, and opened at the end.

Under secure aggregation devices mask what they add, and the masks cancel; without masks, as in a simulation, the same
sum is the same to the bit. What a sum says of its clients is decoded from it and from nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coterie import errors
from coterie.aggregation.fold.fold import Distribute, Fold, Folded
from coterie.aggregation.going_on import going_on, to_go_on
from coterie.aggregation.plan.manifest import METRICS, Manifest
from coterie.aggregation.private.central import CentralNoise, noised_groups, noised_sum
from coterie.aggregation.reducers import Vector, reducer
from coterie.aggregation.update_sections import join, length_of, means_of, split, sums_of
from coterie.privacy.secagg.decoding import Decoded, decode
from coterie.privacy.secagg.encoding import Binding, vector_spec
from coterie.privacy.secagg.ring import RingVector, reduced
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.metrics import EXAMPLES, MetricSums
from coterie.protocol.secagg import SecureTerms
from coterie.protocol.sections import SectionSpec


@dataclass(frozen=True)
class RingPart:
    """One client's vector in the ring.

    group: the place of the group that it is in.
    """

    group: int
    words: RingVector = field(repr=False)


@dataclass(frozen=True)
class Summed:
    """The sum of one group, modulo each section's ring, and of how many clients it is."""

    total: RingVector = field(repr=False)
    survivors: int


@dataclass(frozen=True, kw_only=True)
class RingFoldTerms:
    """How the sums of a round become a version.

    base: the version's digest.
    groups: how many sums there are.
    expected: the public number of clients that noised sums are divided by.
    rule: the text of the reducer of the groups' means, which count alike.
    central: the coordinator's own noise.
    fewest: a group of fewer clients is left out, where no attempt has seen to that.
    """

    terms: SecureTerms
    base: str
    groups: int
    expected: int
    rule: str
    central: CentralNoise | None
    fewest: int = 1


def ring_fold(manifest: Manifest, fold_terms: RingFoldTerms) -> Fold[tuple[Summed, ...], RingPart]:
    """The fold of one round: a sum for each group.

    result leaves groups of too few clients out, and raises errors.UpdateRefused: ``nothing_usable`` where there is no
    other, ``zero_weight``, what the rule raises, and what `decode` raises for a sum that honest clients cannot have.
    """
    spec = vector_spec(fold_terms.terms.sections)

    def init() -> tuple[Summed, ...]:
        return tuple(Summed(np.zeros(spec.length, np.uint32), 0) for _ in range(fold_terms.groups))

    def add(state: tuple[Summed, ...], parts: Sequence[RingPart], spread: Distribute) -> tuple[Summed, ...]:
        sums = list(state)
        for part in parts:
            total = np.add(sums[part.group].total, part.words, out=sums[part.group].total)
            sums[part.group] = Summed(total, sums[part.group].survivors + 1)
        return tuple(sums)

    def merge(left: tuple[Summed, ...], right: tuple[Summed, ...]) -> tuple[Summed, ...]:
        return tuple(
            Summed(np.add(a.total, b.total, out=a.total), a.survivors + b.survivors)
            for a, b in zip(left, right, strict=True)
        )

    def result(state: tuple[Summed, ...], server: ArraysByName, spread: Distribute) -> Folded:
        enough = [
            Summed(reduced(group.total, spec), group.survivors)
            for group in state
            if group.survivors >= fold_terms.fewest
        ]
        if not enough:
            raise errors.UpdateRefused("No group of this round has a sum.", code="nothing_usable")
        dropped = sum(group.survivors for group in state) - sum(group.survivors for group in enough)
        return _decode_groups(manifest, fold_terms, enough, server, dropped)

    return Fold(init, add, merge, result)


def _decode_groups(
    manifest: Manifest, fold_terms: RingFoldTerms, sums: Sequence[Summed], server: ArraysByName, dropped: int
) -> Folded:
    """What the sums of a round's groups say together; of one group without groups."""
    terms, central, specs = fold_terms.terms, fold_terms.central, manifest.sections
    decoded = [
        decode(
            terms.sections,
            specs,
            group.total,
            survivors=group.survivors,
            weight_cap=terms.weight_cap,
            binding=Binding(manifest.id, fold_terms.base),
            noise=terms.noise,
        )
        for group in sums
    ]
    means, added = means_of(specs), sums_of(specs)
    clients = sum(group.clients for group in decoded)
    totals = {spec.name: np.sum([group.sections[spec.name] for group in decoded], axis=0) for spec in added}
    if central is not None or terms.noise is not None:
        whole = np.sum([join(means, group.sections) for group in decoded], axis=0)
        bits = clients / 2 - sum(group.clipped for group in decoded)
        kept: ArraysByName = {}
        if central is None:
            whole /= fold_terms.expected
        elif central.groups > 1:
            each = noised_groups([join(means, group.sections) for group in decoded], central, server)
            whole, kept = _ruled(fold_terms.rule, length_of(means), each, server)
        else:
            noised = noised_sum(whole, bits, central, server)
            whole, kept = noised.mean, noised.state
        return Folded(
            sections=split(means, whole) | totals,
            clients=fold_terms.expected,
            weight=float(fold_terms.expected),
            metrics={},
            state=kept,
            dropped=dropped,
        )
    mean, kept = _mean(decoded, means, fold_terms.rule, server)
    return Folded(
        sections=split(means, mean) | totals,
        clients=clients,
        weight=float(sum(group.weight for group in decoded)),
        metrics=measured(manifest, totals[METRICS], sum(group.examples for group in decoded)).sums,
        clipped=sum(group.clipped for group in decoded),
        clamped=sum(group.clamped for group in decoded),
        state=kept,
        dropped=dropped,
    )


def measured(manifest: Manifest, vector: Vector, examples: int) -> MetricSums:
    """The metric sums of a decoded vector."""
    return MetricSums({**MetricSums.from_vector(manifest.metrics, vector).sums, EXAMPLES: float(examples)})


def _mean(
    groups: Sequence[Decoded], means: Sequence[SectionSpec], rule: str, server: ArraysByName
) -> tuple[Vector, ArraysByName]:
    """One group's mean, or the rule over the means of several; what the next round's rule needs of it."""
    weighing = [group for group in groups if group.weight]
    if not weighing:
        raise errors.UpdateRefused(
            "The total weight of the updates is zero, so they have no mean.",
            hint="No client's training produced usable numbers. If it diverged, lower the learning rate.",
            code="zero_weight",
        )
    vectors = [join(means, group.sections) / group.weight for group in weighing]
    if len(vectors) == 1 and rule == "mean":
        return vectors[0], {}
    return _ruled(rule, length_of(means), vectors, server)


def _ruled(rule: str, length: int, vectors: Sequence[Vector], server: ArraysByName) -> tuple[Vector, ArraysByName]:
    """The rule over vectors that count alike; what the next round's rule needs of it."""
    chosen = going_on(reducer(rule), server)
    together = chosen.init(length)
    for vector in vectors:
        together = chosen.add(together, [(0, vector)], 1.0)
    whole = chosen.result(together)
    return whole, to_go_on(chosen, whole)
