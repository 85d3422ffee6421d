"""Whether a plan of a session can be run by its roles, each of which calls this before it touches a row.

A plan comes from a partner, sealed in the session, so its sender is known by the key that was pinned; nothing in it is
believed. Refusals have the codes of `coterie.aggregation.plan.check`, or ``plan_roles`` where the parts do not fit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coterie import errors
from coterie.aggregation.plan.check import PlanLimits, check_stage_file
from coterie.aggregation.plan.check_stages import check_stages
from coterie.aggregation.plan.scope import StageScope
from coterie.aggregation.plan.session_manifest import RolePart, SessionManifest
from coterie.aggregation.plan.stage import TASKS, Stage, TaskName
from coterie.protocol.cut import CutPolicy
from coterie.protocol.metrics import EXAMPLES
from coterie.protocol.schema import DataSchema, Label

MESSAGE_BYTES: Final = 64 << 20
"""Most bytes that a role may send for one batch."""
FileName = tuple[str, str]
"""The role and the name of a stage."""
ROWS_IN_STEP: Final = (
    "a label that drops rows would put the rows of the roles out of step; leave out the rows of other classes "
    "beforehand, in every role's data"
)
"""What is said of a label that does not `keep_rows`."""
_Link = tuple[str, str, str]
"""Who sends, who receives, and the key of a tensor."""


@dataclass(frozen=True)
class SessionPlan:
    """A plan of a session. Only `check_session_plan` says whether it may be run.

    graphs: (role, stage name) → ONNX bytes.
    """

    manifest: SessionManifest
    graphs: Mapping[FileName, bytes]

    @property
    def id(self) -> str:
        """SHA-256 (hex) of the canonical manifest."""
        return self.manifest.id


def file_names(manifest: SessionManifest) -> tuple[FileName, ...]:
    """The graphs of a plan, in the order in which they are sent."""
    return tuple((part.role, stage.name) for part in manifest.parts for stage in part.stages)


def keeps_rows(schema: DataSchema) -> bool:
    """Whether every row that a role reads is used, so that row i is about the same person in every role."""
    return schema.label.others == "refused"


def classes_of(label: Label) -> int | None:
    """How many classes a label tells apart; None for one that is no class, or an array of them."""
    if label.shape or label.dtype != "int32" or label.constant is not None:
        return None
    if label.classes is not None:
        return len(label.classes)
    return int(label.high) + 1 if label.low == 0 and label.high is not None and label.high >= 1 else None


def cut_fault(cut: CutPolicy, label: Label) -> str:
    """What of a cut's protections does not go with the label; empty where nothing is."""
    classes = classes_of(label)
    if cut.label is not None and classes is None:
        return "noise on labels needs classes, or a label of whole numbers with low=0 and high"
    if cut.gradient is not None and cut.gradient.kind == "marvell" and classes != 2:
        return "marvell needs a label of two classes"
    return ""


def check_session_plan(plan: SessionPlan, limits: PlanLimits | None = None) -> None:
    """Return only if the plan can be run: each part as its shape says, every message that is sent is read by whom it is
    for, in its type and order, and every graph is the file that the manifest names, inside the portable subset.

    Raises errors.PlanRefused.
    """
    bounds = limits or PlanLimits()
    check_session_manifest(plan.manifest, bounds)
    if set(plan.graphs) != set(file_names(plan.manifest)):
        raise errors.PlanRefused("The graphs are not those that the manifest names.", code="plan_files")
    for part in plan.manifest.parts:
        for stage in part.stages:
            check_stage_file(stage, plan.graphs[part.role, stage.name], bounds.graph)


def check_session_manifest(manifest: SessionManifest, limits: PlanLimits | None = None) -> None:
    """What the fields of a manifest mean together. Raises errors.PlanRefused."""
    _check_parts(manifest, limits or PlanLimits())
    for part in manifest.parts:
        try:
            check_stages(_scope(manifest, part))
        except errors.PlanRefused as error:
            raise errors.PlanRefused(f"Part {part.role!r}: {error.message}", code=error.reason) from error
    for task in TASKS:
        _check_messages(manifest, task)


def _scope(manifest: SessionManifest, part: RolePart) -> StageScope:
    return StageScope(
        shape=part.shape,
        stages=part.stages,
        schema=part.schema,
        client_state=part.client_state,
        hyper=manifest.hyper.keys(),
        metrics=manifest.metrics,
        batch_size=manifest.training.batch_size,
        # Roles with features speak with the one that has the labels, and not with one another.
        partners=[other.role for other in manifest.parts if other.shape != part.shape],
    )


def _check_parts(manifest: SessionManifest, limits: PlanLimits) -> None:
    labels = [part.role for part in manifest.parts if part.shape == "split_labels"]
    names = [[tensor.name for tensor in part.client_state] for part in manifest.parts]
    size = max(sum(tensor.size for tensor in part.client_state) for part in manifest.parts)
    stages = [stage for part in manifest.parts for stage in part.stages]
    fault = next((cut_fault(manifest.cut, part.schema.label) for part in manifest.parts if part.role in labels), "")
    largest = max((sum(4 * math.prod(t.shape) for t in s.to_destination("message")) for s in stages), default=0)
    rules = (
        (len(set(manifest.roles)) == len(manifest.parts), "two parts have one role"),
        (len(labels) == 1, f"one role must have the labels, not {len(labels)}"),
        (all(len(set(each)) == len(each) for each in names), "a tensor of the client state is named twice"),
        (all(keeps_rows(part.schema) for part in manifest.parts), ROWS_IN_STEP),
        (not fault, fault),
        (size <= limits.state, f"a part has {size} elements of client state; at most {limits.state} are allowed"),
        (manifest.metrics[:2] == (EXAMPLES, "loss"), f"metrics must begin with {EXAMPLES!r} and 'loss'"),
        (
            largest <= MESSAGE_BYTES,
            f"a message has {largest} bytes for one batch; at most {MESSAGE_BYTES} are allowed",
        ),
    )
    for holds, message in rules:
        if not holds:
            raise errors.PlanRefused(f"The manifest does not fit together: {message}.", code="plan_roles")


def _check_messages(manifest: SessionManifest, task: TaskName) -> None:
    """Let the stages over rows take turns for one batch, as the roles will: each runs when all that it reads is there.
    A plan in which two roles wait for each other would never end.
    """
    sent: dict[_Link, tuple[str, tuple[int, ...]]] = {}
    left = {part.role: [s for s in part.stages_of(task) if s.over != "once"] for part in manifest.parts}
    rows = {stage.batch for stages in left.values() for stage in stages}
    if len(rows) > 1:
        raise _refused(f"The roles take batches of different sizes in the task {task!r}: {sorted(rows)} rows.")
    while any(left.values()):
        ready = next((role for role, stages in left.items() if stages and _reads(stages[0], role) <= sent.keys()), None)
        if ready is None:
            role, stages = next((role, stages) for role, stages in left.items() if stages)
            sender, _, key = min(_reads(stages[0], role) - sent.keys())
            raise _refused(
                f"Stage {stages[0].name!r} of {role!r} reads {key!r} from {sender!r}, which has not sent it by then."
            )
        stage = left[ready].pop(0)
        for tensor in stage.from_source("message"):
            link = (tensor.partner or "", ready, tensor.key)
            if sent[link] != (tensor.dtype, tensor.shape):
                raise _refused(f"{ready!r} reads {tensor.key!r} from {link[0]!r} in another type than it is sent in.")
        for link in _reads(stage, ready):
            del sent[link]
        for tensor in stage.to_destination("message"):
            sent[ready, tensor.partner or "", tensor.key] = (tensor.dtype, tensor.shape)
    for sender, recipient, key in sent:
        raise _refused(f"{sender!r} sends {key!r} to {recipient!r}, which does not read it in the task {task!r}.")


def _reads(stage: Stage, role: str) -> set[_Link]:
    return {(tensor.partner or "", role, tensor.key) for tensor in stage.from_source("message")}


def _refused(message: str) -> errors.PlanRefused:
    return errors.PlanRefused(message, code="plan_wiring")
