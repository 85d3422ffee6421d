"""One task on one device as values: what it was given, and what it came to, encoded as it leaves."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from coterie.aggregation.fold.part import Slices
from coterie.aggregation.fold.usable import require_weight
from coterie.aggregation.plan.bundle import Plan
from coterie.client_sdk.device.quiet import promised, under_masks
from coterie.client_sdk.device.spending import Release
from coterie.errors import CoterieError
from coterie.privacy.secagg.encoding import Binding, describe, encode
from coterie.privacy.secagg.ring import RingVector
from coterie.protocol.arrays import FloatArrays
from coterie.protocol.codecs.table import choose
from coterie.protocol.device import Task
from coterie.protocol.secagg import SecureTerms
from coterie.protocol.sections import SectionSpec
from coterie.protocol.update import encode_update, read_update


@dataclass(frozen=True, kw_only=True)
class PreparedTask:
    """A task whose plan and tensors are here and checked.

    release: what doing it costs; None without a promise.
    """

    task: Task
    plan: Plan
    weights: FloatArrays
    frozen: FloatArrays
    release: Release | None = None


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What a task came to.

    update: the encoded bytes; empty under secure aggregation, where ``vector`` is the same in the ring, to be masked.
    sections: the same in clear. codecs, sizes (bytes of the payload): by section.
    client_state: what the plan and the codecs keep.
    seconds: of training.
    clipped: whether the update was longer than the task's norm and was shortened.
    slices: of sections that it covers in part, what it holds of them.
    unusable: why zeros stand in for the work of a task under a promise of privacy, or under masks; for the owner alone.
    """

    update: bytes = field(default=b"", repr=False)
    vector: RingVector | None = field(default=None, repr=False)
    specs: tuple[SectionSpec, ...]
    sections: Mapping[str, NDArray[Any]] = field(repr=False)
    codecs: Mapping[str, str] = field(default_factory=dict[str, str])
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    weight: int
    steps: int
    client_state: FloatArrays = field(repr=False)
    metrics: Mapping[str, float]
    seconds: float
    clipped: bool = False
    slices: Mapping[str, Slices] = field(default_factory=dict[str, Slices])
    unusable: CoterieError | None = None


def encoded(prepared: PreparedTask, finished: TaskResult, client_state: FloatArrays) -> TaskResult:
    """The same with the bytes, or the ring's numbers, of its sections.

    client_state: as it was, codecs' part and all.
    Raises UpdateRefused for values that an encoder does not take.
    """
    task, specs = prepared.task, finished.specs
    if task.kind == "train" and not promised(task) and not under_masks(task):
        # Under masks zeros that weigh nothing go into the sum, so that nobody is told apart.
        require_weight(finished.weight)
    if task.secure is not None:
        return _in_the_ring(prepared, task.secure, finished)
    codecs = {spec.name: choose(task.codecs) for spec in specs if not spec.is_extra}
    update, codec_state = encode_update(
        task=task.id,
        plan=prepared.plan.id,
        base=task.model.sha256,
        weight=finished.weight,
        steps=finished.steps,
        specs=specs,
        sections=finished.sections,
        codecs=codecs,
        state=client_state,
        round=task.round,
        slices=finished.slices,
    )
    read = read_update(update, specs)
    return replace(
        finished,
        update=update,
        codecs={entry.name: entry.codec for entry in read.header.sections if entry.name in codecs},
        sizes={name: info.stop - info.start for name, info in read.file.tensors.items()},
        client_state={**finished.client_state, **codec_state},
    )


def _in_the_ring(prepared: PreparedTask, terms: SecureTerms, finished: TaskResult) -> TaskResult:
    """The same, as the numbers that secure aggregation masks and adds; nothing of it is masked yet.

    Raises UpdateRefused for values that the ring cannot carry (not finite, out of the plan's range).
    """
    described = describe(terms.sections)
    ring = encode(
        terms.sections,
        finished.specs,
        finished.sections,
        weight=finished.weight,
        weight_cap=terms.weight_cap,
        binding=Binding(plan=prepared.plan.id, base=prepared.task.model.sha256),
        noise=terms.noise,
        entropy=os.urandom,
    )
    return replace(
        finished,
        vector=ring.vector,
        codecs={each.name: f"{each.encoding}, {each.bits} bits" for each in described},
        sizes={each.name: each.bytes for each in described},
        clipped=ring.clipped,
    )
