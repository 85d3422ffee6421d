"""Which fold a round has in the open. Secret sums have their own: `coterie.aggregation.fold.ring`."""

from typing import Any

from coterie.aggregation.fold.fold import Fold
from coterie.aggregation.fold.noised import noised_fold
from coterie.aggregation.fold.part import CountedUpdate
from coterie.aggregation.fold.singles import singles_fold
from coterie.aggregation.fold.sums import sums_fold
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.central import CentralNoise
from coterie.aggregation.reducers import Reducer
from coterie.protocol.arrays import ArraysByName


def open_fold(
    manifest: Manifest,
    rule: Reducer,
    *,
    trusted: str | None = None,
    central: CentralNoise | None = None,
    server: ArraysByName | None = None,
) -> Fold[Any, CountedUpdate]:
    """The fold of a round whose updates are seen one by one.

    rule: the reducer of all sections that are means, as one vector; sections that are sums are always summed.
    trusted: the task of the update that fltrust judges the others by, and which is none of them.
    central: the coordinator's noise, which replaces the rule.
    server: the server's state.
    """
    if central is not None:
        return noised_fold(manifest, central, server or {})
    if rule.needs == "updates":
        return singles_fold(manifest, rule, trusted)
    return sums_fold(manifest, rule)
