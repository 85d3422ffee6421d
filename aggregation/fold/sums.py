"""The fold of rules that need sums only: each element is a weighted sum, with the weight that stands behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.fold.coverage import Coverage
from coterie.aggregation.fold.fold import Distribute, Fold, Folded, Tally
from coterie.aggregation.fold.part import CountedUpdate
from coterie.aggregation.plan.manifest import METRICS, Manifest
from coterie.aggregation.reducers import Accumulator, Reducer, Vector
from coterie.aggregation.update_sections import length_of, means_of, split, sums_of
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.metrics import MetricSums
from coterie.protocol.sections import SectionSpec

# A group of rows of float64 of this length stays in a core's second-level cache.
BLOCK = 1 << 15


@dataclass(frozen=True)
class SumState:
    """What has been added so far.

    means: weighted sums of the sections that are means, as one vector.
    sums: those of the other sections.
    coverage: the weights behind the means.
    """

    means: Accumulator = field(repr=False)
    sums: Vector = field(repr=False)
    coverage: Coverage = field(default_factory=Coverage)
    tally: Tally = field(default_factory=Tally)


def sums_fold(manifest: Manifest, rule: Reducer) -> Fold[SumState, CountedUpdate]:
    """The fold of a rule that needs sums."""
    means, sums = means_of(manifest.sections), sums_of(manifest.sections)

    def init() -> SumState:
        return SumState(rule.init(length_of(means)), np.zeros(length_of(sums)))

    def add(state: SumState, parts: Sequence[CountedUpdate], spread: Distribute) -> SumState:
        state.tally.take(parts)
        for part in parts:
            state.coverage.take(part, means)
        add_sums(state.sums, parts, sums)
        if rule.name == "mean" and all(part.whole and not part.summed for part in parts):
            _add_blocks(state.means.total, parts, means, spread)
            return state
        total = state.means
        for part in parts:
            total = _add_part(rule, total, part, means)
        return SumState(total, state.sums, state.coverage, state.tally)

    def merge(left: SumState, right: SumState) -> SumState:
        left.tally.join(right.tally)
        left.coverage.join(right.coverage)
        np.add(left.sums, right.sums, out=left.sums)
        return SumState(rule.merge(left.means, right.means), left.sums, left.coverage, left.tally)

    def result(state: SumState, server: ArraysByName, spread: Distribute) -> Folded:
        tally = state.tally
        if means and tally.effective <= 0:
            raise no_weight(len(tally.tasks))
        untrained = _divide(state.means.total, state.coverage, spread)
        found = split(sums, state.sums)
        return Folded(
            sections=split(means, state.means.total) | found,
            clients=tally.clients,
            weight=tally.weight,
            metrics=MetricSums.from_vector(manifest.metrics, found[METRICS]).sums,
            freshness=tally.freshness,
            untrained={} if untrained is None else _split_mask(means, untrained),
            older=tally.shares(),
        )

    return Fold(init, add, merge, result)


def add_sums(total: Vector, parts: Sequence[CountedUpdate], specs: Sequence[SectionSpec]) -> None:
    """Add the sections that are sums: neither a weight nor a lag changes them."""
    for part in parts:
        for start, values in part.chunks(specs):
            total[start : start + values.size] += values


def no_weight(count: int) -> errors.UpdateRefused:
    """That updates have no mean."""
    return errors.UpdateRefused(
        f"{count} updates have a total weight of zero, so there is nothing to average.",
        hint="Every client reported zero examples; check the clients' data.",
        code="zero_weight",
    )


def _add_part(rule: Reducer, total: Accumulator, part: CountedUpdate, specs: Sequence[SectionSpec]) -> Accumulator:
    """The accumulator after one more update, which may cover a part only, or be a sum itself."""
    weight = part.weight * part.freshness
    if not part.summed:
        return rule.add(total, _padded(part, specs, total.total.size), weight)
    whole = np.zeros(total.total.size, np.float64)
    for start, values in part.chunks(specs):
        whole[start : start + values.size] = values
    if part.freshness != 1.0:
        whole *= part.freshness
    return rule.merge(total, Accumulator(whole, weight, part.clients))


def _padded(
    part: CountedUpdate, specs: Sequence[SectionSpec], length: int
) -> "list[tuple[int, npt.NDArray[np.float64]]]":
    """The update's elements, with zeros where it covers nothing: those change no sum, and no length."""
    found: list[tuple[int, npt.NDArray[np.float64]]] = []
    at = 0
    for start, values in part.chunks(specs):
        if start > at:
            found.append((at, np.zeros(start - at)))
        found.append((start, values))
        at = start + values.size
    return [*found, (at, np.zeros(length - at))] if at < length else found


def _add_blocks(
    total: Vector, parts: Sequence[CountedUpdate], specs: Sequence[SectionSpec], spread: Distribute
) -> None:
    """Add several updates at once: each is read from memory once, block by block, and a block of all of them is added
    in one product with their weights, a third of the time of adding them one by one. Every number is float64 before it
    is multiplied; how blocks are shared among threads changes no bit.
    """
    weights = np.array([part.weight * part.freshness for part in parts], np.float64)
    at = 0
    for spec in specs:
        vectors, into = [part.values(spec.name) for part in parts], total[at : at + spec.length]
        at += spec.length

        def add(starts: range, into: Vector = into, vectors: Sequence[npt.NDArray[np.float32]] = vectors) -> None:
            wide = np.empty((len(vectors), BLOCK), np.float64)
            for start in starts:
                some = into[start : start + BLOCK]
                block = wide[:, : some.size]
                for row, vector in zip(block, vectors, strict=True):
                    row[:] = vector[start : start + some.size]
                some += weights @ block

        spread(add, range(0, spec.length, BLOCK))


def _divide(total: Vector, coverage: Coverage, spread: Distribute) -> npt.NDArray[np.bool_] | None:
    """Turn weighted sums into means, in their place. The elements that nobody covers, which become zero; None where
    there are none.
    """
    weights = coverage.weights(total.size)
    if isinstance(weights, float):
        whole = weights

        def divide(starts: range) -> None:
            for start in starts:
                total[start : start + BLOCK] /= whole

        spread(divide, range(0, total.size, BLOCK))
        return None
    bare: npt.NDArray[np.bool_] = np.less_equal(weights, 0)
    total /= np.where(bare, 1.0, weights)
    total[bare] = 0.0
    return bare if bool(bare.any()) else None


def _split_mask(specs: Sequence[SectionSpec], mask: npt.NDArray[np.bool_]) -> Mapping[str, npt.NDArray[np.bool_]]:
    found: dict[str, npt.NDArray[np.bool_]] = {}
    at = 0
    for spec in specs:
        here = mask[at : at + spec.length]
        if here.any():
            found[spec.name] = here
        at += spec.length
    return found
