"""The shapes that a plan may have: which stages, in which order, in which tasks, between which places.

A shape is a row of `SHAPES`, and a stage a row of its shape; whoever checks or runs a plan reads the rows and knows no
stage by name. Stages run in the order of the rows. State and sums of a probe come from stages that run before in the
same task.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coterie.aggregation.plan.stage import SAMPLE_WEIGHT, Destination, Over, Source, TaskName

ShapeName = Literal["horizontal", "external"]


@dataclass(frozen=True, kw_only=True)
class StageRule:
    """What a stage of a shape must be.

    sources, destinations: those that it may have.
    fills: destinations that it must fill whole: every section, every tensor of the client state, every metric, the
        prediction.
    reads: (source, key) of inputs that it must have.
    sums_metrics: whether it carries a sum for each metric of the plan from step to step.
    """

    name: str
    tasks: tuple[TaskName, ...]
    over: Over
    needed: Literal["always", "where_used"] = "always"
    sources: frozenset[Source]
    destinations: frozenset[Destination]
    fills: frozenset[Destination] = frozenset()
    reads: frozenset[tuple[Source, str]] = frozenset()
    sums_metrics: bool = False


_WEIGHED: frozenset[tuple[Source, str]] = frozenset({("batch", SAMPLE_WEIGHT)})
_STEPPED: frozenset[tuple[Source, str]] = frozenset({("batch", SAMPLE_WEIGHT), ("active", "active")})

SHAPES: Mapping[ShapeName, tuple[StageRule, ...]] = {
    # Many clients, each with rows of its own, that train one model: every client runs every stage by itself.
    "horizontal": (
        StageRule(
            name="probe",
            tasks=("train", "evaluate"),
            over="pass",
            needed="where_used",
            sources=frozenset({"model", "frozen", "batch"}),
            destinations=frozenset({"probe"}),
            reads=_WEIGHED,
        ),
        StageRule(
            name="begin",
            tasks=("train",),
            over="once",
            sources=frozenset({"model", "frozen", "client_state", "probe", "hyper"}),
            destinations=frozenset({"state"}),
        ),
        StageRule(
            name="train",
            tasks=("train",),
            over="steps",
            sources=frozenset(
                {
                    "model",
                    "frozen",
                    "client_state",
                    "hyper",
                    "active",
                    "random",
                    "noise",
                    "batch",
                    "state",
                    "zeros",
                }
            ),
            destinations=frozenset({"carry"}),
            reads=_STEPPED,
            sums_metrics=True,
        ),
        StageRule(
            name="finish",
            tasks=("train",),
            over="once",
            sources=frozenset({"model", "frozen", "client_state", "probe", "hyper", "state", "counter"}),
            destinations=frozenset({"upload", "client_state"}),
            fills=frozenset({"upload", "client_state"}),
        ),
        StageRule(
            name="eval",
            tasks=("evaluate",),
            over="pass",
            sources=frozenset({"model", "frozen", "client_state", "probe", "batch"}),
            destinations=frozenset({"metric"}),
            fills=frozenset({"metric"}),
            reads=_WEIGHED,
        ),
        StageRule(
            name="infer",
            tasks=("predict",),
            over="pass",
            sources=frozenset({"model", "frozen", "client_state", "batch"}),
            destinations=frozenset({"prediction"}),
            fills=frozenset({"prediction"}),
        ),
    ),
    # The same, whose clients train with code of their own: there is nothing to run.
    "external": (),
}
