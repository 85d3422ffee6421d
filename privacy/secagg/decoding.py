"""What a sum over clients says, once all masks are gone: the other half of `coterie.privacy.secagg.encoding`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie import errors
from coterie.privacy.dp import distributed
from coterie.privacy.secagg.encoding import Binding, grid_of, line_of, paired, shared_noise, vector_spec
from coterie.privacy.secagg.ring import RingVector
from coterie.protocol.arrays import Vector
from coterie.protocol.codecs.codec import Keys
from coterie.protocol.noise import NoiseTerms
from coterie.protocol.sections import SectionSpec
from coterie.protocol.secure_sections import COUNTED, SecureSection

_LARGEST = (1 << 32) - 1


@dataclass(frozen=True)
class Decoded:
    """The sum over ``clients`` clients.

    sections: name → float64; sums over clients, of a weighted mean those of weight times vector.
    weight, examples: sums.
    clipped, clamped: how many clients these were (see `EncodedVector`).
    """

    clients: int
    weight: int
    examples: int
    clipped: int
    clamped: int
    sections: Mapping[str, Vector]


def decode(
    sections: Sequence[SecureSection],
    specs: Sequence[SectionSpec],
    total: RingVector,
    *,
    survivors: int,
    weight_cap: int,
    binding: Binding,
    noise: NoiseTerms | None = None,
) -> Decoded:
    """What the sum of the survivors' vectors says.

    noise: as in `encode`.

    total: uint32 modulo 2**bits of each section. A section of the plan that ``sections`` leave out is zeros.
    Raises errors.UpdateRefused for a sum that no honest clients have: ``bad_clients`` (it does not count
    ``survivors``), ``bad_weight``, ``out_of_range`` (naming section and element), ``wrong_length``.
    """
    spec_of_all = vector_spec(sections)
    if total.shape != (spec_of_all.length,):
        raise errors.UpdateRefused(
            f"The sum has {total.size} numbers; its sections have {spec_of_all.length}.", code="wrong_length"
        )
    clients, weight, examples, clipped, clamped = (int(number) for number in total[: len(COUNTED)])
    most = max(clipped, clamped)
    for holds, code, message in (
        (clients == survivors, "bad_clients", f"it counts {clients} clients, and it is of {survivors}"),
        (weight <= survivors * weight_cap, "bad_weight", f"its weight is {weight}; each client may weigh {weight_cap}"),
        (most <= survivors, "bad_clients", f"it counts {most} of {survivors} clients"),
    ):
        if not holds:
            raise errors.UpdateRefused(
                f"The sum cannot be used: {message}.",
                hint="At least one client of this attempt does not follow the protocol.",
                code=code,
            )
    found = {spec.name: np.zeros(spec.length, np.float64) for spec in specs}
    at = sections[0].values
    for section, spec in paired(sections, specs):
        units = weight if spec.reduction == "weighted_mean" else survivors
        part = total[at : at + section.values]
        if section.encoding == "noised":
            terms = shared_noise(section, spec, noise)
            found[spec.name] = distributed.decode(part, terms, binding.shared(spec.name))
            at += section.values
            continue
        _check_reach(section, part, units)
        if section.encoding == "grid":
            keys = Keys(b"", binding.shared(spec.name))
            found[spec.name] = grid_of(section).of_sum(part, units, keys, spec.shape)
        else:
            low, step = line_of(section)
            found[spec.name] = part.astype(np.float64) * step + units * low
        at += section.values
    return Decoded(clients, weight, examples, clipped, clamped, found)


def _check_reach(section: SecureSection, part: RingVector, units: int) -> None:
    most = units * section.top
    if most < _LARGEST and (part > most).any():
        where = int(np.argmax(part > most))
        raise errors.UpdateRefused(
            f"The sum of section {section.name!r} holds {part[where]} at number {where}; its clients reach {most}.",
            hint="At least one client of this attempt does not follow the protocol.",
            code="out_of_range",
        )
