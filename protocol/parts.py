"""What a header may say of sections that are covered in part."""

from collections.abc import Sequence

from coterie import errors
from coterie.protocol.header import MOST_SLICES, SectionEntry, UpdateHeader
from coterie.protocol.refusals import refused
from coterie.protocol.sections import SectionSpec


def check_room(entries: Sequence[SectionEntry]) -> None:
    """Raise errors.UpdateRefused (``too_large``) for more slices than a header has room for."""
    count = sum(len(entry.slices) + sum(1 + len(each) for each in entry.coverage) for entry in entries)
    if count > MOST_SLICES:
        raise errors.UpdateRefused(
            f"The parts of the model that are covered are {count} slices; a header has room for {MOST_SLICES}.",
            hint="Let clients train whole tensors, or blocks of whole rows.",
            code="too_large",
        )


def check_coverage(spec: SectionSpec, entry: SectionEntry, header: UpdateHeader) -> None:
    """Only a mean over the layout can be covered in part: by slices of an update, by clients of an accumulator.

    Raises errors.UpdateRefused: ``wrong_length``, ``wrong_format``, ``bad_weight``.
    """
    if entry.length != spec.length:
        raise refused(
            "wrong_length", f"Section {spec.name!r} declares {entry.length} elements; the plan says {spec.length}"
        )
    if not (entry.slices or entry.coverage):
        return
    means = not spec.is_extra and spec.reduction == "weighted_mean"
    if not means or bool(entry.slices) is not (header.kind == "update") or bool(entry.slices) is bool(entry.coverage):
        raise refused("wrong_format", f"Section {spec.name!r} of an {header.kind} cannot be covered in part like this")
    if sum(entry.coverage.values()) > header.weight:
        raise refused("bad_weight", f"The parts of section {spec.name!r} weigh more than the {header.weight} of all")
