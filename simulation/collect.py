"""The updates of a round on their way into the next version: folded as they arrive, and forgotten.

So a round needs the memory of a few models however many clients take part. Only a rule that must see every update keeps
them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie import errors
from coterie.aggregation.fold.fold import Distribute, Fold, RangeWork
from coterie.aggregation.fold.part import CountedUpdate, LocalUpdate
from coterie.aggregation.fold.ring import RingPart
from coterie.aggregation.fold.usable import CountTerms, nothing_usable, usable
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.server_optimizers import ServerOptimizer
from coterie.aggregation.version import version_of
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.update import read_update
from coterie.simulation.engines.engine import HELD
from coterie.simulation.shares import PendingWork, WorkShares
from coterie.simulation.versions import Versions
from coterie.simulation.work import Trained

# Updates that are folded together: those of one fold and those that come meanwhile are what an engine holds.
_GROUP = HELD // 2
# Threads whose updates one more thread can fold while they make the next ones.
_SERVED = 2


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """What became of a round's updates.

    version: the new one, kept already.
    state: of the server, for the next round.
    metrics: the training sums.
    rejected: how many updates were unusable.
    clipped: how many of a secret sum were shortened, None in the open and where that is not released.
    """

    version: str
    state: ArraysByName
    metrics: Mapping[str, float]
    rejected: int
    clipped: int | None = None


@dataclass(frozen=True)
class Lag:
    """How many versions the base of an update lags, and that base."""

    versions: int
    base: str


PartReader = Callable[[Trained, Lag | None], Any]
"""A client's answer as the fold takes it. Raises errors.UpdateRefused for one that does not count."""


@dataclass
class Collector:
    """Takes the updates of one round, in the order in which the engine gives them, and makes a version of them.

    A fold takes in four at a time. It is done by the run's threads, while the next updates come: by few of them, since
    each step over a block needs the interpreter, which clients need too.

    base: the version that the round began with.
    fold: of the round.
    reading: what makes its parts of answers.
    """

    manifest: Manifest
    base: str
    fold: Fold[Any, Any]
    reading: PartReader
    shares: WorkShares
    _unfolded: list[Any] = field(default_factory=list[Any])
    _since_fold: int = 0
    _refused: list[str] = field(default_factory=list[str])
    _work: list[PendingWork] = field(default_factory=list[PendingWork])
    _usable: int = 0

    def __post_init__(self) -> None:
        self._state = self.fold.init()

    def add(self, trained: Trained, lag: Lag | None = None) -> bool:
        """Look at the whole update, then hold it until there are enough to fold. An unusable one is counted as
        rejected, never half added.

        lag: None for an update of the round's own version. Whether it is usable.
        """
        try:
            self._unfolded.append(self.reading(trained, lag))
            self._usable += 1
        except errors.UpdateRefused as error:
            self._refused.append(error.message)
            return False
        finally:
            self._since_fold += 1
            # Counted with those that are not usable: an engine counts them too, before it overwrites what it gave.
            if self._since_fold == _GROUP:
                self._fold(-(-self.shares.threads // (_SERVED + 1)))
        return True

    def flush(self) -> None:
        """Hold none of the arrays given so far any longer: an engine may overwrite them from now on."""
        self._fold(self.shares.threads)
        self._await_folds()

    def result(self, versions: Versions, server: ServerOptimizer, state: ArraysByName) -> Aggregate:
        """The next version. Raises errors.UpdateRefused as `Fold` and `version_of` do."""
        if not self._usable:
            raise nothing_usable(len(self._refused), self._refused)
        self.flush()
        folded = self.fold.result(self._state, state, self._spread(self.shares.threads))
        after = version_of(self.manifest, folded, versions.vector(self.base), server, state, versions.vector)
        return Aggregate(
            version=versions.add(after.weights),
            state=after.state,
            metrics=folded.metrics,
            rejected=len(self._refused) + folded.dropped,
            clipped=folded.clipped,
        )

    def _await_folds(self) -> None:
        begun, self._work = self._work, []
        for one in begun:
            one.wait()

    def _fold(self, threads: int) -> None:
        """Begin to fold what is held, when what was held before is folded: sums grow in the order of the updates."""
        self._await_folds()
        held, self._unfolded, self._since_fold = self._unfolded, [], 0
        if held:
            begun = self._work
            self._state = self.fold.add(
                self._state, held, lambda work, places: begun.append(self.shares.begin(work, places, threads))
            )

    def _spread(self, threads: int) -> Distribute:
        def done(work: RangeWork, places: range) -> None:
            self.shares.begin(work, places, threads).wait()

        return done


def in_the_open(manifest: Manifest, terms: CountTerms, base: str) -> PartReader:
    """How the answers of clients of that base are read where they come one by one, as arrays or as bytes."""

    def read(trained: Trained, lag: Lag | None) -> CountedUpdate:
        behind, older = (0, base) if lag is None else (lag.versions, lag.base)
        other = None if older == base else older
        if trained.update is None or trained.refused is not None:
            made = LocalUpdate(
                task=trained.task,
                weight=trained.weight,
                steps=trained.steps,
                sections=trained.sections,
                slices=trained.slices,
                refused=trained.refused,
            )
            return usable(made, terms, lag=behind, base=other)
        update = read_update(trained.update, manifest.sections, plan=manifest.id, base=older)
        return usable(update, terms, lag=behind, base=other)

    return read


def in_secret(groups: Mapping[int, int]) -> PartReader:
    """How the answers are read that are only ever seen in a sum.

    groups: the place of each client's group.
    """

    def read(trained: Trained, lag: Lag | None) -> RingPart:
        if trained.update is None or trained.refused is not None:
            raise errors.UpdateRefused(trained.refused or "it sent nothing for a sum.")
        return RingPart(groups[trained.number], np.frombuffer(trained.update, np.uint32))

    return read
