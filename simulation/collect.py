"""The updates of a round on their way into the next version: folded into sums as they arrive, and forgotten.

So a round needs the memory of a few models however many clients take part. Only a rule that must see every update keeps
them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie import errors
from coterie.aggregation.going_on import going_on, judging, to_go_on
from coterie.aggregation.plan.manifest import METRICS, Manifest
from coterie.aggregation.reducers import Accumulator, Reducer, reducer
from coterie.aggregation.server_optimizers import ServerOptimizer, State
from coterie.aggregation.staleness import freshness
from coterie.aggregation.update_sections import drift_of, join, length_of, means_of, nothing_usable, reads_drift, split
from coterie.aggregation.version import next_version
from coterie.protocol.metrics import MetricSums
from coterie.protocol.sections import SectionSpec
from coterie.protocol.update import read_update
from coterie.simulation.engines.engine import HELD
from coterie.simulation.shares import Begun, Shares
from coterie.simulation.versions import Versions
from coterie.simulation.work import Trained

# Updates that are folded together: those of one fold and those that come meanwhile are what an engine holds.
_GROUP = HELD // 2
# A group of rows of float64 of this length stays in a core's second-level cache.
_BLOCK = 1 << 15
# Threads whose updates one more thread can fold while they make the next ones.
_SERVED = 2
_REDUCERS = {"weighted_mean": "mean", "sum": "sum"}


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """What became of a round's updates. version: the new one, kept already; state: of the server, for the next round;
    metrics: the training sums; rejected: how many updates were unusable; clipped: how many of a secret sum were
    shortened, None in the open and where that is not released.
    """

    version: str
    state: State
    metrics: Mapping[str, float]
    rejected: int
    clipped: int | None = None


@dataclass(frozen=True)
class Lag:
    """How many versions the base of an update lags, and that base."""

    versions: int
    base: str


class Collector:
    """Takes the updates of one round, in the order in which the engine gives them, and makes a version of them.

    Updates are folded into one float64 sum per section, four at a time. A rule that must see every update keeps them.

    A fold reads each update from memory once, block by block, and adds a block of all of them in one product with their
    weights: a third of the time of adding them one by one. It is done by the run's threads, while the next updates
    come: by few of them, since each step over a block needs the interpreter, which clients need too.
    """

    def __init__(
        self,
        manifest: Manifest,
        base: str,
        weight_cap: int,
        shares: Shares,
        exponent: float = 0.5,
        rule: str = "mean",
        trusted: int | None = None,
    ) -> None:
        self._manifest = manifest
        self._shares = shares
        self._means = means_of(manifest.sections)
        # A mean is folded; any other rule takes in the means' sections as one vector.
        self._rule = reducer(rule)
        self._folds = rule == "mean" or not self._means
        self._together = self._rule.init(length_of(self._means))
        self._base = base
        self._cap = weight_cap
        self._exponent = exponent
        self._older: dict[str, float] = {}
        self._whole = 0.0
        self._rules = {spec.name: reducer(_REDUCERS[spec.reduction]) for spec in manifest.sections}
        self._sums = {spec.name: np.zeros(spec.length, np.float64) for spec in manifest.sections}
        self._trusted = trusted
        self._root: NDArray[np.float64] | None = None
        self._held: list[tuple[int, Mapping[str, NDArray[Any]], float]] = []
        self._weight = 0.0
        self._clients = 0
        self._taken = 0
        self._refused: list[str] = []
        self._folds_begun: list[Begun] = []

    def add(self, trained: Trained, lag: Lag | None = None) -> bool:
        """Check the whole update, then hold it until there are enough to fold. An unusable one is counted as rejected,
        never half added. lag: None for an update of the round's own version. Whether it is usable.
        """
        usable = self._take(trained, lag)
        self._taken += 1
        # Counted with those that are not usable: an engine counts them too, before it overwrites what it gave.
        if self._taken == _GROUP:
            self._fold(-(-self._shares.threads // (_SERVED + 1)))
        return usable

    def _take(self, trained: Trained, lag: Lag | None) -> bool:
        base = self._base if lag is None else lag.base
        try:
            sections = checked(self._manifest, trained, base)
        except errors.UpdateRefused as error:
            self._refused.append(error.message)
            return False
        whole = float(min(trained.weight, self._cap))
        weight = whole * freshness(0 if lag is None else lag.versions, self._exponent)
        if base != self._base:
            self._older[base] = self._older.get(base, 0.0) + weight
        self._whole += whole
        self._held.append((trained.number, sections, weight))
        self._weight += weight
        self._clients += 1
        return True

    def flush(self) -> None:
        """Hold none of the arrays given so far any longer: an engine may overwrite them from now on."""
        self._fold(self._shares.threads)
        self._await_folds()

    def _await_folds(self) -> None:
        for begun in self._folds_begun:
            begun.wait()
        self._folds_begun = []

    def _fold(self, threads: int) -> None:
        """Begin to fold what is held, when what was held before is folded: sums grow in the order of the updates."""
        self._await_folds()
        held, self._held, self._taken = self._held, [], 0
        if not held:
            return
        weights = np.array([weight for _, _, weight in held], np.float64)
        if not self._folds:
            for number, sections, weight in held:
                if number == self._trusted:
                    # By this the others are judged; it is none of them.
                    self._root = join(self._means, sections) if weight else None
                    continue
                self._together = self._rule.add(self._together, _joined(self._means, sections), weight)
        for spec in self._manifest.sections:
            if spec.reduction == "weighted_mean" and not self._folds:
                continue
            factors = weights if spec.reduction == "weighted_mean" else np.ones_like(weights)
            vectors = [sections[spec.name] for _, sections, _ in held]
            self._folds_begun.append(fold(self._sums[spec.name], vectors, factors, self._shares, threads))

    def result(self, versions: Versions, server: ServerOptimizer, state: State) -> Aggregate:
        """The next version. Raises errors.UpdateRefused as `aggregate_updates` does."""
        manifest = self._manifest
        if not self._clients:
            raise nothing_usable(len(self._refused), self._refused)
        self.flush()
        sections = {
            name: settled(self._rules[name], Accumulator(total, self._weight, self._clients), self._shares)
            for name, total in self._sums.items()
        }
        beside: State = {}
        if not self._folds:
            rule = going_on(self._rule, state)
            if rule.reference == "trusted":
                rule = judging(rule, self._root)
            mean = rule.result(self._together)
            sections |= split(self._means, mean)
            beside = to_go_on(self._rule, mean)
        after = next_version(
            manifest,
            base=versions.vector(self._base),
            sections=sections,
            clients=self._clients,
            weight=self._whole,
            server=server,
            state=state,
            freshness=self._weight / self._whole if self._whole else 1.0,
            drift=self._drift(versions),
        )
        return Aggregate(
            version=versions.add(after.weights),
            state={**after.state, **beside},
            metrics=MetricSums.from_vector(manifest.metrics, sections[METRICS]).sums,
            rejected=len(self._refused),
        )

    def _drift(self, versions: Versions) -> NDArray[np.float64] | None:
        """See `Aggregates.drift`."""
        if not self._older or not reads_drift(self._manifest):
            return None
        shares = ((versions.vector(base), weight / self._weight) for base, weight in sorted(self._older.items()))
        return drift_of(versions.vector(self._base), shares)


def checked(manifest: Manifest, trained: Trained, base: str) -> Mapping[str, NDArray[Any]]:
    """The sections of an update of that base, all of it checked. Raises errors.UpdateRefused."""
    if trained.refused is not None:
        raise errors.UpdateRefused(trained.refused)
    if trained.update is None:
        return trained.sections
    update = read_update(trained.update, manifest.sections, plan=manifest.id, base=base)
    update.check_finite()
    return {spec.name: update.decode(spec.name) for spec in manifest.sections}


def _joined(specs: Sequence[SectionSpec], sections: Mapping[str, NDArray[Any]]) -> Iterator[tuple[int, NDArray[Any]]]:
    at = 0
    for spec in specs:
        yield at, sections[spec.name]
        at += spec.length


def fold(
    total: NDArray[np.float64],
    vectors: Sequence[NDArray[Any]],
    weights: NDArray[np.float64],
    shares: Shares,
    threads: int,
) -> Begun:
    """Begin to add the vectors times their weights to the total. Every number is float64 before it is multiplied. How
    the blocks are shared among so many threads changes no bit.
    """

    def add(starts: range) -> None:
        wide = np.empty((len(vectors), _BLOCK), np.float64)
        for start in starts:
            into = total[start : start + _BLOCK]
            block = wide[:, : into.size]
            for row, vector in zip(block, vectors, strict=True):
                row[:] = vector[start : start + into.size]
            into += weights @ block

    return shares.begin(add, range(0, total.size, _BLOCK), threads)


def settled(rule: Reducer, sums: Accumulator, shares: Shares) -> NDArray[np.float64]:
    """The rule's result from sums, in their place, block by block: for a rule that sees each element alone."""

    def settle(starts: range) -> None:
        for start in starts:
            part = sums.total[start : start + _BLOCK]
            part[:] = rule.result(replace(sums, total=part))

    shares.begin(settle, range(0, sums.total.size, _BLOCK), shares.threads).wait()
    return sums.total
