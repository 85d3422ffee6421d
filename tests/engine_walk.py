"""Every value that a round can take, for whoever holds something of them all."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from coterie import errors
from coterie.aggregation import engine as e
from coterie.protocol.conversion import to_text

CONFIG = e.RoundConfig(cohort=2, over_selection=1.5, min_updates=1, federated_evaluation=True, evaluation_cohort=2)
V = "v" * 64
EVERY_EVENT: list[e.RoundEvent] = [
    e.TaskLeased(), e.UpdateAccepted(), e.TaskFailed(), e.DeadlinePassed("train"), e.DeadlinePassed("evaluate"),
    e.AggregateReady(V, {"loss": 1.0, "examples": 2.0}), e.AggregateReady(V, rejected=2), e.AggregateFailed("x"),
    e.Evaluated({"loss": 1.0, "examples": 1.0}), e.Evaluated(None, "y"), e.EvaluationLeased(),
    e.EvaluationAccepted({"loss": 0.5, "examples": 1.0}), e.EvaluationFailed(), e.Committed(), e.Cleaned(),
    e.EvaluationSummed({"loss": 0.5, "examples": 3.0}), e.EvaluationSummed(None, "z"), e.StopRequested(),
]  # fmt: skip
WALKS: Final[Mapping[str, e.RoundConfig]] = {
    "in clear": replace(CONFIG, central_evaluation=True),
    "secure": replace(CONFIG, secure=True, min_updates=2),
    "evaluation only": replace(CONFIG, evaluate_only=True, secure=True),
    "buffered": replace(CONFIG, buffered=True, offered=2, staleness_cap=1, over_selection=1.0),
    "last buffered": replace(CONFIG, buffered=True, offered=2, last=True, over_selection=1.0),
}


def reachable(config: e.RoundConfig) -> list[e.Round]:
    """Every value that a round can take by any events, with at most one task lost of each kind, but for the sums."""
    begin = e.start(1, "b" * 64, config)
    found, todo = {to_text(begin): begin}, [begin]
    while todo:
        round = todo.pop()
        for event in EVERY_EVENT:
            try:
                after = e.step(round, event)
            except errors.Conflict:
                continue
            if max(after.failed, after.evaluation_failed, sum(after.waiting.values()) - 1) > 1:
                continue
            after = replace(after, training={}, federated={}, central=None)
            if to_text(after) not in found:
                found[to_text(after)] = after
                todo.append(after)
    return list(found.values())
