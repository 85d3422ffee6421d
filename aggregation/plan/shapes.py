"""The shapes that a plan may have: which stages, in which order, in which tasks, between which places.

A shape is a row of `SHAPES`, and a stage a row of its shape; whoever checks or runs a plan reads the rows and knows no
stage by name. Stages run in the order of the rows. State and sums of a probe come from stages that run before in the
same task.

A plan of a session has a part for each role, and each part a shape. Its stages over rows take turns at each batch,
since the messages of the roles are about the same rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coterie.aggregation.plan.stage import SAMPLE_WEIGHT, Destination, Over, Source, TaskName

ShapeName = Literal["horizontal", "external"]
PartShape = Literal["split_features", "split_labels"]
"""The shape of one role's part in a plan of a session."""


@dataclass(frozen=True, kw_only=True)
class StageRule:
    """What a stage of a shape must be.

    sources, destinations: those that it may have.
    fills: destinations that it must fill whole: every section, every tensor of the client state, every metric, the
        prediction.
    reads: (source, key) of inputs that it must have.
    sums_metrics: whether it carries a sum for each metric of the plan from step to step.
    varied: whether it may have variants for classes of providers: a device proves one on the steps of a training.
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
    varied: bool = False


_WEIGHED: frozenset[tuple[Source, str]] = frozenset({("batch", SAMPLE_WEIGHT)})
_STEPPED: frozenset[tuple[Source, str]] = frozenset({("batch", SAMPLE_WEIGHT), ("active", "active")})

# A role of a session draws the first values of its client state itself.
_DRAWN = StageRule(
    name="begin",
    tasks=("train",),
    over="once",
    sources=frozenset({"random"}),
    destinations=frozenset({"client_state"}),
    fills=frozenset({"client_state"}),
)

SHAPES: Mapping[ShapeName | PartShape, tuple[StageRule, ...]] = {
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
            varied=True,
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
    # A split network (Gupta and Raskar, arXiv:1810.06060). This role has features of the rows: it sends what its part
    # of the network makes of a batch, and moves its part by the gradient that comes back. Its part is client state.
    "split_features": (
        _DRAWN,
        StageRule(
            name="embed",
            tasks=("train",),
            over="steps",
            sources=frozenset({"client_state", "batch"}),
            destinations=frozenset({"message"}),
        ),
        StageRule(
            name="descend",
            tasks=("train",),
            over="steps",
            sources=frozenset({"client_state", "batch", "hyper", "message"}),
            destinations=frozenset({"client_state"}),
            fills=frozenset({"client_state"}),
        ),
        StageRule(
            name="represent",
            tasks=("evaluate", "predict"),
            over="pass",
            sources=frozenset({"client_state", "batch"}),
            destinations=frozenset({"message"}),
        ),
    ),
    # This role has the labels, and may have features too: it ends what the others begin, and sends gradients.
    "split_labels": (
        _DRAWN,
        StageRule(
            name="fit",
            tasks=("train",),
            over="steps",
            sources=frozenset({"client_state", "batch", "hyper", "message"}),
            destinations=frozenset({"client_state", "message", "metric"}),
            fills=frozenset({"client_state", "metric"}),
            reads=_WEIGHED,
        ),
        StageRule(
            name="eval",
            tasks=("evaluate",),
            over="pass",
            sources=frozenset({"client_state", "batch", "message"}),
            destinations=frozenset({"metric"}),
            fills=frozenset({"metric"}),
            reads=_WEIGHED,
        ),
        StageRule(
            name="infer",
            tasks=("predict",),
            over="pass",
            sources=frozenset({"client_state", "batch", "message"}),
            destinations=frozenset({"prediction"}),
            fills=frozenset({"prediction"}),
        ),
    ),
}
