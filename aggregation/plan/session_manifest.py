"""The manifest of a plan of a session: what each role runs, on which rows, and which messages pass between them.

Every role gets all of it: so each can check that its partners read what it sends, and see what they are told.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Final, Literal

from pydantic import Field

from coterie import errors
from coterie.aggregation.plan.manifest import MANIFEST_BYTES, MOST_EPOCHS
from coterie.aggregation.plan.reading import Listed, Numbers, Text, Texts, read_canonical
from coterie.aggregation.plan.shapes import PartShape
from coterie.aggregation.plan.stage import MOST_ROWS, Stage, TaskName
from coterie.protocol.canonical import LARGEST_INTEGER, canonical_json, sha256_hex
from coterie.protocol.conversion import to_json
from coterie.protocol.cut import CutPolicy
from coterie.protocol.cut_tensors import bytes_of
from coterie.protocol.disclosures import Disclosure, DisclosureKind, shown_key
from coterie.protocol.layout import Tensor
from coterie.protocol.schema import DataSchema
from coterie.protocol.wire import SessionWord

UNCHANGED: Final = CutPolicy()
FORMAT: Final = "coterie-session-plan-1"
MOST_ROLES = 16
KIND_BY_KEY: Final[Mapping[str, DisclosureKind]] = {"embedding": "embeddings", "gradient": "gradients"}
"""What the numbers of a message are, by the key under which `coterie.aggregation.vertical` sends them."""


@dataclass(frozen=True, kw_only=True)
class SessionTraining:
    """How all roles go through the rows that they have in common: batches of ``batch_size`` (the last one padded),
    ``epochs`` times, in an order that is new for each epoch and depends on ``seed`` and the number of rows alone.
    """

    batch_size: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    epochs: Annotated[int, Field(ge=1, le=MOST_EPOCHS)] = 1
    seed: Annotated[int, Field(ge=0, le=LARGEST_INTEGER)] = 0


@dataclass(frozen=True, kw_only=True)
class RolePart:
    """What one role does.

    schema: of its own columns; one without labels has a constant one.
    client_state: its part of the model and of the optimizer's state, which never leaves it.
    stages: in the order in which they run.
    """

    role: SessionWord
    shape: PartShape
    schema: DataSchema
    client_state: Listed[Tensor]
    stages: Listed[Stage]

    def stages_of(self, task: TaskName) -> tuple[Stage, ...]:
        """The stages of a task, in the order in which they run."""
        return tuple(stage for stage in self.stages if task in stage.tasks)


@dataclass(frozen=True, kw_only=True)
class SessionManifest:
    """What a plan of a session is. ``from_bytes`` accepts canonical bytes only, so a plan has one id.

    parts: one for each role.
    metrics: names of the sums, ``examples`` first.
    hyper: the hyper-parameters of the steps.
    cut: what each role does to embeddings, gradients and labels before they are used or sent.
    """

    format: Literal["coterie-session-plan-1"] = field(default=FORMAT, repr=False)
    name: Text
    parts: Annotated[tuple[RolePart, ...], Field(min_length=2, max_length=MOST_ROLES)]
    metrics: Texts
    hyper: Numbers
    training: SessionTraining
    cut: Annotated[CutPolicy, Field(exclude_if=lambda cut: cut.does_nothing)] = UNCHANGED

    @cached_property
    def data(self) -> bytes:
        """The canonical bytes."""
        return canonical_json(to_json(self))

    @cached_property
    def id(self) -> str:
        """The plan's id: SHA-256 (hex) of the canonical bytes."""
        return sha256_hex(self.data)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles, in the order of the parts."""
        return tuple(part.role for part in self.parts)

    def part(self, role: str) -> RolePart:
        """The part of a role. Raises errors.PlanRefused (``role_unknown``)."""
        found = next((part for part in self.parts if part.role == role), None)
        if found is None:
            raise errors.PlanRefused(
                f"Plan {self.name!r} has no part for the role {role!r}; it has {', '.join(self.roles)}.",
                hint="Make the session with the roles of the plan, or the plan with those of the session.",
                code="role_unknown",
            )
        return found

    def disclosures(self) -> Iterator[Disclosure]:
        """All that roles tell one another of their rows, beside how many there are; the step is the task. A kind is the
        plan's word: numbers are called what their key says.
        """
        for part in self.parts:
            for stage in part.stages:
                for tensor in stage.to_destination("message"):
                    for task in stage.tasks:
                        yield Disclosure(
                            step=task,
                            sender=part.role,
                            recipient=tensor.partner or "",
                            kind=KIND_BY_KEY.get(tensor.key, "values"),
                            key=shown_key(tensor.key),
                            numbers=math.prod(tensor.shape[1:]),
                            form=self.cut.compression,
                            size=bytes_of(self.cut.compression, tensor.shape),
                            protection=_PROTECTIONS.get(part.shape, _nothing)(self.cut),
                            plan=self.id,
                        )

    @staticmethod
    def from_bytes(data: bytes) -> "SessionManifest":
        """Read canonical bytes. Raises errors.PlanRefused (``plan_manifest``), also for JSON that is not canonical."""
        return read_canonical(SessionManifest, data, limit=MANIFEST_BYTES)


def _nothing(cut: CutPolicy) -> str:
    return ""


def _of_embeddings(cut: CutPolicy) -> str:
    noise = cut.embedding
    return "" if noise is None else f"norm at most {noise.clip:g}, noise {noise.deviation:g}"


def _of_gradients(cut: CutPolicy) -> str:
    parts: list[str] = []
    if cut.label is not None:
        parts.append(f"labels by randomised response, epsilon {cut.label.epsilon:g}")
    if cut.gradient is not None:
        parts.append(f"{cut.gradient.kind} noise, scale {cut.gradient.scale:g}")
    return "; ".join(parts)


_PROTECTIONS: Mapping[PartShape, Callable[[CutPolicy], str]] = {
    "split_features": _of_embeddings,
    "split_labels": _of_gradients,
}
