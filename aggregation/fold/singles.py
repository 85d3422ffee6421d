"""The fold of rules that must see every single update: it keeps them, in memory or as files that are read in blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.aggregation.fold.fold import Distribute, Fold, Folded, Tally
from coterie.aggregation.fold.part import CountedUpdate
from coterie.aggregation.fold.sums import add_sums, no_weight
from coterie.aggregation.going_on import going_on, judging, to_go_on
from coterie.aggregation.plan.manifest import METRICS, Manifest
from coterie.aggregation.reducers import Accumulator, Reducer, Vector
from coterie.aggregation.update_files import UpdateFiles
from coterie.aggregation.update_sections import length_of, means_of, split, sums_of
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.metrics import MetricSums
from coterie.protocol.update import Update


@dataclass(frozen=True)
class Singles:
    """The updates of a round, one by one.

    rows: the updates in memory.
    files: (task, update) of those that lie in files.
    root: the trusted update, which is none of the others.
    sums: of the sections that are sums.
    """

    rows: Accumulator = field(repr=False)
    sums: Vector = field(repr=False)
    files: tuple[tuple[str, Update], ...] = ()
    root: npt.NDArray[np.float32] | None = field(default=None, repr=False)
    tally: Tally = field(default_factory=Tally)


def singles_fold(manifest: Manifest, rule: Reducer, trusted: str | None = None) -> Fold[Singles, CountedUpdate]:
    """The fold of a rule that needs single updates. They count alike, whatever their weight or lag.

    trusted: the task of the update that the rule judges the others by.
    """
    means, sums = means_of(manifest.sections), sums_of(manifest.sections)

    def init() -> Singles:
        return Singles(rule.init(length_of(means)), np.zeros(length_of(sums)))

    def add(state: Singles, parts: Sequence[CountedUpdate], spread: Distribute) -> Singles:
        state.tally.take(parts)
        add_sums(state.sums, parts, sums)
        for part in parts:
            if rule.reference == "trusted" and part.task == trusted:
                state = replace(state, root=_vector(part))
            elif part.update is not None and isinstance(part.update.file.source, Path):
                state = replace(state, files=(*state.files, (part.task, part.update)))
            else:
                state = replace(state, rows=rule.add(state.rows, part.chunks(means), 1.0))
        return state

    def merge(left: Singles, right: Singles) -> Singles:
        left.tally.join(right.tally)
        np.add(left.sums, right.sums, out=left.sums)
        return Singles(
            rule.merge(left.rows, right.rows),
            left.sums,
            (*left.files, *right.files),
            right.root if left.root is None else left.root,
            left.tally,
        )

    def result(state: Singles, server: ArraysByName, spread: Distribute) -> Folded:
        if means and not state.tally.tasks:
            raise no_weight(0)
        chosen = going_on(rule, server)
        if chosen.reference == "trusted":
            chosen = judging(chosen, None if state.root is None else state.root.astype(np.float64))
        mean = _reduced(chosen, state)
        found = split(sums, state.sums)
        return Folded(
            sections=split(means, mean) | found,
            clients=state.tally.clients,
            weight=state.tally.weight,
            metrics=MetricSums.from_vector(manifest.metrics, found[METRICS]).sums,
            freshness=state.tally.freshness,
            older=state.tally.shares(),
            state=to_go_on(rule, mean),
        )

    def _reduced(chosen: Reducer, state: Singles) -> Vector:
        if not state.files or chosen.over is None:
            return chosen.result(state.rows) if means else np.zeros(0)
        if not state.rows.rows:
            ordered = tuple(update for _, update in sorted(state.files, key=lambda one: one[0]))
            return chosen.over(UpdateFiles(ordered, means))
        rows = state.rows
        for task, update in state.files:
            rows = chosen.add(rows, CountedUpdate(task=task, weight=1.0, update=update).chunks(means), 1.0)
        return chosen.result(rows)

    def _vector(part: CountedUpdate) -> npt.NDArray[np.float32]:
        vector = np.zeros(length_of(means), np.float32)
        for start, values in part.chunks(means):
            vector[start : start + values.size] = values
        return vector

    return Fold(init, add, merge, result)
