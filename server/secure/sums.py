"""Of which tasks a round waits to see the sum of the updates."""

from collections.abc import Mapping
from typing import Final

from coterie.aggregation.engine import Kind, Work, work_due
from coterie.server.store.experiments import OpenRound

SUMMED: Final[Mapping[Work, Kind]] = {Work.SUM: "train", Work.SUM_EVALUATIONS: "evaluate"}
"""Work on sums: of which tasks."""


def summed_now(opened: OpenRound) -> Kind | None:
    """Whose updates a round waits to see the sum of; None while it collects, and where updates come in clear."""
    work = work_due(opened.value)
    return None if work is None else SUMMED.get(work)
