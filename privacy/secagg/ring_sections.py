"""What the sections of an update are in the ring: public numbers, which the coordinator signs with the task.

What each encoding means, and that no sum overflows, says `coterie.privacy.secagg.encoding`.
"""

import math
from collections.abc import Sequence

from coterie import errors
from coterie.privacy.secagg.ring import MOST_BITS
from coterie.protocol.codecs.grid import EXTENT
from coterie.protocol.codecs.rotation import blocks
from coterie.protocol.metrics import METRICS
from coterie.protocol.sections import SectionSpec
from coterie.protocol.secure_sections import COUNTED, COUNTS, SecureSection

MOST_PER_EXAMPLE = 64.0
"""A metric's sum counts within this many times the weight cap, either way; beyond it is held there."""
FEWEST_GRID_BITS = 2
_LARGEST = (1 << MOST_BITS) - 1


def ring_sections(
    specs: Sequence[SectionSpec], *, clients: int, weight_cap: int, norm: float, bits: int | None = None
) -> tuple[SecureSection, ...]:
    """How the sections of an update go into the ring, for sums over at most ``clients`` clients.

    specs: the plan's, in order.
    norm: public bound of the Euclidean norm of each weighted mean over the layout.
    bits: of the grid, 2 to 16; the most that fits when None.
    Raises errors.ExperimentError (``secure_range``), naming the section, where 32 bits do not hold the sum, or where a
    section has no public range.
    """
    most = clients * weight_cap
    if most > _LARGEST:
        raise _no_room(f"the weights of {clients} clients of up to {weight_cap} each", most)
    counts = SecureSection(
        name=COUNTS, encoding="exact", values=len(COUNTED), bits=most.bit_length(), top=max(weight_cap, 1)
    )
    return (counts, *(_section(spec, clients, weight_cap, norm, bits) for spec in specs))


def _section(spec: SectionSpec, clients: int, weight_cap: int, norm: float, bits: int | None) -> SecureSection:
    most = clients * (weight_cap if spec.reduction == "weighted_mean" else 1)
    if spec.reduction == "weighted_mean" and not spec.is_extra:
        fits = (_LARGEST // most + 1).bit_length() - 1
        chosen = min(max(EXTENT), fits) if bits is None else bits
        if not FEWEST_GRID_BITS <= chosen <= max(EXTENT):
            raise _no_room(f"section {spec.name!r}, with {FEWEST_GRID_BITS} bits or more for each number,", most * 3)
        if chosen > fits:
            raise _no_room(f"section {spec.name!r} with {chosen} bits for each number", most * ((1 << chosen) - 1))
        top = (1 << chosen) - 1
        values = blocks(spec.length)[1]
        return SecureSection(
            name=spec.name, encoding="grid", values=values, bits=(most * top).bit_length(), top=top, norm=norm
        )
    low, high = _public_range(spec, weight_cap)
    levels = _LARGEST // most
    if levels < 1:
        raise _no_room(f"section {spec.name!r}", most)
    # The smallest power of two of which `levels` steps reach from low to high.
    step = 2.0 ** math.ceil(math.log2((high - low) / levels)) if high > low else 1.0
    while math.ceil((high - low) / step) > levels:
        step *= 2
    top = max(math.ceil((high - low) / step), 1)
    return SecureSection(
        name=spec.name,
        encoding="fixed",
        values=spec.length,
        bits=(most * top).bit_length(),
        top=top,
        low=low,
        step=step,
    )


def _public_range(spec: SectionSpec, weight_cap: int) -> tuple[float, float]:
    if spec.name == METRICS:
        return -MOST_PER_EXAMPLE * weight_cap, MOST_PER_EXAMPLE * weight_cap
    if spec.value_range is None:
        raise errors.ExperimentError(
            f"Section {spec.name!r} has no public range, so it cannot be added in the ring of secure aggregation.",
            hint="Choose another algorithm, such as FedAvg, or set secure_aggregation=False.",
            code="secure_range",
        )
    return spec.value_range


def _no_room(what: str, most: int) -> errors.ExperimentError:
    return errors.ExperimentError(
        f"The sum of {what} reaches {most}, beyond the {_LARGEST} of a ring of {MOST_BITS} bits.",
        hint="Lower weight_cap in the round policy, the cohort, or SecureAggregation(bits=...).",
        code="secure_range",
    )
