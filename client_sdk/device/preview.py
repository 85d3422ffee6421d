"""What a dry run shows: everything that would leave the device, and nothing of it sent."""

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.analytics.rule import question_of
from coterie.client_sdk.device.membership import Membership
from coterie.client_sdk.device.outcome import PreparedTask, TaskResult
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.ring import RingVector
from coterie.protocol.secure_sections import COUNTS


@dataclass(frozen=True, kw_only=True)
class SectionPreview:
    """One section of the update.

    codec: how it is encoded; under secure aggregation the kind of numbers and the bits of each before masking.
    values: how many numbers leave.
    bytes: as encoded.
    minimum, maximum, norm: of the numbers before encoding.
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

    name: of the experiment.
    asks: which question it is, as ``histogram``; empty for training.
    signer: the key that signed its plan.
    examples: rows of this device, which stay.
    weight: how many examples the update would claim.
    metrics: means that travel inside the section ``metrics``.
    total_bytes: of the whole update file.
    secure: the mode of secure aggregation, under which nobody but this device sees any of these numbers.
    min_clients: the fewest clients whose sum is opened.
    clipped: whether the update was longer than the task's norm and was shortened to it.
    saved: the files that hold the exact bytes.
    """

    population: str
    device_id: str
    examples: int
    experiment: str | None = None
    name: str = ""
    asks: str = ""
    round: int | None = None
    kind: str | None = None
    plan: str | None = None
    signer: str | None = None
    weight: int = 0
    steps: int = 0
    sections: tuple[SectionPreview, ...] = ()
    total_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    secure: str | None = None
    min_clients: int | None = None
    clipped: bool = False
    saved: tuple[str, ...] = ()
    note: str = "No row leaves this device. Nothing was sent but the check-in and the task's return."


def nothing(membership: Membership) -> DryRun:
    """The preview when there is no task."""
    return DryRun(
        population=membership.population,
        device_id=membership.device_id,
        examples=membership.examples,
        note="The coordinator has no task for this device now. Nothing was sent but the check-in.",
    )


_MASKED_NOTE: Final = (
    "No row leaves this device. The numbers above would leave it under masks that are removed only from a sum over "
    "many clients; nobody sees this device's own numbers. Nothing was sent but the check-in and the task's "
    "return."
)


def preview(membership: Membership, prepared: PreparedTask, finished: TaskResult) -> DryRun:
    """The preview of a finished task: under secure aggregation the vector's sections, as they are before masking."""
    shown = DryRun(
        population=membership.population,
        device_id=membership.device_id,
        examples=membership.examples,
        experiment=prepared.task.experiment,
        name=prepared.plan.manifest.name,
        asks=question_of(prepared.plan.manifest),
        round=prepared.task.round,
        kind=prepared.task.kind,
        plan=prepared.plan.id,
        signer=prepared.plan.signer,
        weight=finished.weight,
        steps=finished.steps,
        metrics=dict(finished.metrics),
    )
    terms = prepared.task.secure
    if terms is None or finished.vector is None:
        sections = tuple(_section(finished, spec.name, finished.sections[spec.name].size) for spec in finished.specs)
        return replace(shown, sections=sections, total_bytes=len(finished.update))
    places = vector_spec(terms.sections).places()
    sections = tuple(
        _counts(finished, finished.vector[places[COUNTS]])
        if section.name == COUNTS
        else _section(finished, section.name, section.values)
        for section in terms.sections
    )
    return replace(
        shown,
        sections=sections,
        total_bytes=sum(section.bytes for section in sections),
        secure=terms.mode,
        min_clients=terms.min_clients,
        clipped=finished.clipped,
        note=_MASKED_NOTE,
    )


def _section(finished: TaskResult, name: str, count: int) -> SectionPreview:
    values = np.asarray(finished.sections[name])
    codec = finished.codecs.get(name, "float64" if values.dtype == np.float64 else "float32")
    return _preview_of(name, codec, count, finished.sizes[name], values.astype(np.float64))


def _counts(finished: TaskResult, values: RingVector) -> SectionPreview:
    """The section that is of no plan: see `coterie.protocol.secure_sections.COUNTED`."""
    codec, size = finished.codecs[COUNTS], finished.sizes[COUNTS]
    return _preview_of(COUNTS, codec, len(values), size, values.astype(np.float64))


def _preview_of(name: str, codec: str, count: int, size: int, values: NDArray[np.float64]) -> SectionPreview:
    return SectionPreview(
        name=name,
        codec=codec,
        values=count,
        bytes=size,
        minimum=float(values.min()),
        maximum=float(values.max()),
        norm=float(np.linalg.norm(values)),
    )
