"""The table of kinds of jobs."""

from collections.abc import Mapping
from typing import Final

from coterie.server.jobs import measuring, sums, versions, wanted
from coterie.server.jobs.kind import JobKind

KINDS: Final[Mapping[str, JobKind]] = {
    wanted.AGGREGATE: versions.AGGREGATION,
    wanted.ACCUMULATE: versions.ACCUMULATION,
    wanted.EVALUATE: measuring.EVALUATION,
    wanted.SECURE_SUM: sums.RUNNING_SUM,
    wanted.UNMASK: sums.UNMASKING,
    wanted.SECURE_AGGREGATE: sums.SECURE_VERSION,
    wanted.SECURE_EVALUATION: sums.SECURE_MEASUREMENT,
}
