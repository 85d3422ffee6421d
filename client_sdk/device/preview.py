"""What a dry run shows: everything that would leave the device, and nothing of it sent."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from coterie.client_sdk.device.membership import Membership
from coterie.client_sdk.device.work import Finished, Prepared


@dataclass(frozen=True, kw_only=True)
class SectionPreview:
    """One section of the update.

    values: how many numbers; bytes: as encoded. minimum, maximum, norm: of the numbers before encoding.
    """

    name: str
    codec: str
    values: int
    bytes: int
    minimum: float
    maximum: float
    norm: float


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What would leave this device for one task. experiment is None, and the rest empty, when there is no task to give.

    examples: rows of this device, which stay. weight: how many examples the update would claim. metrics: means that
    travel inside the section ``metrics``. total_bytes: of the whole update file.
    """

    population: str
    device_id: str
    examples: int
    experiment: str | None = None
    round: int | None = None
    kind: str | None = None
    plan: str | None = None
    signer: str | None = None
    weight: int = 0
    steps: int = 0
    sections: tuple[SectionPreview, ...] = ()
    total_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    note: str = "No row leaves this device. Nothing was sent but the check-in and the task's return."

    def to_json(self) -> dict[str, Any]:
        """Every field by name, as JSON values."""
        return asdict(self)


def nothing(membership: Membership) -> DryRun:
    """The preview when there is no task."""
    return DryRun(
        population=membership.population,
        device_id=membership.device_id,
        examples=membership.examples,
        note="The coordinator has no task for this device now. Nothing was sent but the check-in.",
    )


def preview(membership: Membership, prepared: Prepared, finished: Finished) -> DryRun:
    """The preview of a finished task."""
    return DryRun(
        population=membership.population,
        device_id=membership.device_id,
        examples=membership.examples,
        experiment=prepared.task.experiment,
        round=prepared.task.round,
        kind=prepared.task.kind,
        plan=prepared.plan.id,
        signer=prepared.plan.signer,
        weight=finished.weight,
        steps=finished.steps,
        sections=tuple(_section(finished, index) for index in range(len(finished.specs))),
        total_bytes=len(finished.update),
        metrics=dict(finished.metrics),
    )


def _section(finished: Finished, index: int) -> SectionPreview:
    spec = finished.specs[index]
    values = np.asarray(finished.sections[spec.name])
    codec = finished.codecs.get(spec.name, "float64" if values.dtype == np.float64 else "float32")
    return SectionPreview(
        name=spec.name,
        codec=codec,
        values=spec.length,
        bytes=finished.sizes[spec.name],
        minimum=float(values.min()),
        maximum=float(values.max()),
        norm=float(np.linalg.norm(values.astype(np.float64))),
    )
