"""What a client's update is in the ring. What the sum over clients is again says `coterie.privacy.secagg.decoding`.

An encoding is nothing but a tuple of `SecureSection`, which the coordinator makes of public numbers
(`coterie.privacy.secagg.ring_sections`) and signs with the task, and which every device follows. The vector of a client
is, section after section:

- ``exact`` (the first, ``counts``): whole numbers, `COUNTED` says which. So neither weights nor the number of examples
  of one client are ever seen.
- ``grid``: a weighted mean over the layout. The vector is shortened to the public norm, rotated, rounded at random to
  whole numbers c from 0 to ``top`` (`coterie.protocol.codecs.grid`, one rotation for the round), and w · c is sent,
  where w is the client's whole weight.
- ``fixed``: anything else. A number v is held to ``low … low + step · top`` and becomes ⌊(v - low) / step + u⌋, u
  uniform in [0, 1), so that it is right on average; times w in a weighted mean. ``step`` is a power of two: whole
  numbers stay exact where it is at most 1.
- ``noised``: the change of the weights of clients that all weigh 1, each with its share of noise
  (`coterie.privacy.dp.distributed`). Of the counts a client then says that it is there, and weighs 1 even without
  rows: how many clients have any would be told without noise.

**Nothing can overflow.** A number of one client is at most w · top, w at most ``weight_cap``, and the ring of a section
has more than ``clients`` · ``weight_cap`` · ``top`` values; where no ring of 32 bits has, the encoding is refused. What
a client sends outside these bounds shows in the sum or not at all: secure aggregation hides it like any other input.

**Exactness.** The decoded sum of a ``grid`` section differs from the sum of the shortened vectors by rounding alone: in
the rotated space by less than w grid steps for every client, as far as its numbers lay within the grid.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from coterie import errors, randomness
from coterie.privacy.dp import distributed, spread
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.entropy import Entropy, draw
from coterie.privacy.secagg.ring import RingVector, Segment, VectorSpec
from coterie.protocol.arrays import Vector
from coterie.protocol.codecs.codec import Keys, check_vector, seed
from coterie.protocol.codecs.grid import EXTENT, Grid
from coterie.protocol.codecs.rotation import blocks
from coterie.protocol.metrics import METRICS
from coterie.protocol.noise import NoiseTerms
from coterie.protocol.sections import SectionSpec
from coterie.protocol.secure_sections import COUNTED, COUNTS, SecureSection
from coterie.protocol.spread import SECTION as CLIENTS_SECTION

SEED = 32
# A grid of so many bits has next to no number at its ends by chance; more of them than this share is a vector whose
# length lies in few blocks, which the ends cut.
_FINE_BITS, _AT_THE_ENDS = 8, 1e-3


@dataclass(frozen=True)
class Binding:
    """What all clients of a sum share, so that they rotate alike.

    plan: its id.
    base: SHA-256 of the version.
    """

    plan: str
    base: str

    def shared(self, section: str) -> bytes:
        """The seed of a section's rotation: that of the codecs (see `Keys.of`)."""
        return seed("shared", self.plan, self.base, section)


@dataclass(frozen=True)
class EncodedVector:
    """An update in the ring, to be masked.

    vector: uint32, one word for every coordinate of `vector_spec`.
    clipped: whether a vector was longer than the public norm, or lay so unevenly that the grid's ends cut it.
    clamped: whether a sum was held to the public range.
    """

    vector: RingVector = field(repr=False)
    clipped: bool
    clamped: bool


class Described(NamedTuple):
    """One section for people.

    numbers: how many are sent.
    bits: of each on the wire.
    meaning: what they are.
    """

    name: str
    encoding: str
    numbers: int
    bits: int
    bytes: int
    meaning: str


def vector_spec(sections: Sequence[SecureSection]) -> VectorSpec:
    """The masked vector of these sections."""
    return VectorSpec(tuple(Segment(section.name, section.values, section.bits) for section in sections))


def describe(sections: Sequence[SecureSection]) -> tuple[Described, ...]:
    """The sections as a device's owner may read them."""
    found: list[Described] = []
    for section, segment in zip(sections, vector_spec(sections).segments, strict=True):
        found.append(
            Described(
                section.name,
                section.encoding,
                section.values,
                section.bits,
                segment.packed_bytes,
                _MEANINGS[section.encoding](section),
            )
        )
    return tuple(found)


def rounding(section: SecureSection, specs: Sequence[SectionSpec]) -> float:
    """By how much of its norm rounding to the grid may lengthen a vector of that norm, at the most."""
    length = next(spec.length for spec in specs if spec.name == section.name)
    step = 2 * EXTENT[section.top.bit_length()] / section.top
    # Of the rotated vector each number moves by less than a step; what float32 adds stays far below a thousandth.
    return step * math.sqrt(section.values / length) + 1e-5


def encode(
    sections: Sequence[SecureSection],
    specs: Sequence[SectionSpec],
    vectors: Mapping[str, npt.NDArray[Any]],
    *,
    weight: int,
    weight_cap: int,
    binding: Binding,
    entropy: Entropy,
    noise: NoiseTerms | None = None,
) -> EncodedVector:
    """One client's update in the ring.

    noise: of the task's terms, for a section that is ``noised``.

    vectors: one flat float vector per section of the plan; what ``sections`` leave out is not looked at.
    weight: whole, 0 to ``weight_cap``.
    entropy: of the rounding; a fresh seed for each section. A ``noised`` vector that is not finite counts as zeros,
        since a refusal would tell; any other is refused. Metric sums over more than ``weight_cap`` examples are scaled
        down to the cap first, which keeps their means.
    Guarantees: every coordinate is at most ``weight`` times its section's ``top``, and below 2**bits.
    Raises errors.UpdateRefused: ``bad_weight``; ``missing_section``; ``not_finite``, ``wrong_length``, and for a value
    outside the plan's own range ``out_of_range``, naming section and element; ``wrong_sections`` where ``sections`` are
    not of these specs.
    """
    if not 0 <= weight <= weight_cap:
        raise errors.UpdateRefused(
            f"The weight is {weight}; it must be a whole number from 0 to {weight_cap}.", code="bad_weight"
        )
    _check_room(sections, specs, weight_cap)
    out = np.empty(sum(section.values for section in sections), np.uint32)
    examples, clipped, clamped, secret, at = 0, False, False, False, sections[0].values
    for section, spec in paired(sections, specs):
        vector = _vector_of(spec, vectors) if section.encoding == "noised" else _checked_vector(spec, vectors)
        if spec.name == METRICS:
            vector = _capped(vector, weight_cap)
            examples = round(float(vector[0]))
        rounding = draw(entropy, SEED)
        units = weight if spec.reduction == "weighted_mean" else 1
        # What weighs nothing measured nothing, and says so to nobody.
        if spec.name == CLIENTS_SECTION and weight and not vector.any():
            raise errors.UpdateRefused("An evaluation must be over at least one example.", code="metric_invalid")
        if section.encoding == "noised":
            # Who has no examples adds its share of the noise to zeros: the guarantee counts on it.
            units, vector = 1, vector if weight else np.zeros_like(vector)
            made = distributed.encode(
                vector, shared_noise(section, spec, noise), binding.shared(spec.name), NoiseSource.fresh(entropy)
            )
            numbers, secret = made.numbers, True
        elif section.encoding == "grid":
            numbers, cut = _on_grid(section, spec, vector, Keys(rounding, binding.shared(spec.name)))
            clipped |= cut
        else:
            numbers, cut = _fixed_point(section, vector, rounding)
            clamped |= cut
        np.multiply(numbers, np.uint32(units), out=out[at : at + section.values], casting="unsafe")
        at += section.values
    out[: sections[0].values] = (1, 1, 0, 0, 0) if secret else (1, weight, examples, clipped, clamped)
    return EncodedVector(out, bool(clipped), bool(clamped))


def paired(
    sections: Sequence[SecureSection], specs: Sequence[SectionSpec]
) -> Iterator[tuple[SecureSection, SectionSpec]]:
    """Each section of the ring but the first with the plan's section that it is of."""
    by_name = {spec.name: spec for spec in specs}
    if sections[0].name != COUNTS or sections[0].encoding != "exact" or sections[0].values != len(COUNTED):
        raise _refusal(f"the first section must be {COUNTS!r} with {len(COUNTED)} exact numbers")
    for section in sections[1:]:
        spec = by_name.get(section.name)
        if spec is None:
            raise _refusal(f"the plan has no section {section.name[:64]!r}")
        form = _FORMS.get(section.encoding)
        if form is None or section.values != form.values(spec) or getattr(section, form.parameter) is None:
            raise _refusal(f"section {section.name[:64]!r} is not what its encoding {section.encoding!r} makes of it")
        yield section, spec


def _check_room(sections: Sequence[SecureSection], specs: Sequence[SectionSpec], weight_cap: int) -> None:
    """Raise errors.UpdateRefused (``wrong_sections``) unless every ring holds whatever a client may have.

    A ring that some vectors fit and others do not would make of the refusal an answer to the coordinator's question.
    """
    if weight_cap >> sections[0].bits:
        raise _refusal(f"a ring of {sections[0].bits} bits does not hold every weight up to {weight_cap}")
    for section, spec in paired(sections, specs):
        units = weight_cap if spec.reduction == "weighted_mean" and section.encoding != "noised" else 1
        top = (1 << section.top.bit_length()) - 1 if section.encoding == "grid" else section.top
        if units * top >> section.bits:
            raise _refusal(
                f"section {section.name[:64]!r} reaches {units * top}, beyond its ring of {section.bits} bits"
            )


class _Form(NamedTuple):
    """How many numbers an encoding makes of a section, and the parameter that it must have."""

    values: Callable[[SectionSpec], int]
    parameter: Literal["norm", "step"]


def _blocks(spec: SectionSpec) -> int:
    return blocks(spec.length)[1]


def _padded_length(spec: SectionSpec) -> int:
    return spread.padded(spec.length)


def _length(spec: SectionSpec) -> int:
    return spec.length


_FORMS: Mapping[str, _Form] = {
    "grid": _Form(_blocks, "norm"),
    "noised": _Form(_padded_length, "norm"),
    "fixed": _Form(_length, "step"),
}


def shared_noise(section: SecureSection, spec: SectionSpec, noise: NoiseTerms | None) -> distributed.DistributedNoise:
    """How a ``noised`` section is noised. Raises errors.UpdateRefused (``wrong_sections``) without terms."""
    if noise is None:
        raise _refusal(f"section {section.name[:64]!r} needs noise, and the terms define none")
    return distributed.DistributedNoise.of(noise, section.bits, spec.length)


def _vector_of(spec: SectionSpec, vectors: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if spec.name not in vectors:
        raise errors.UpdateRefused(f"Section {spec.name!r} is absent.", code="missing_section")
    vector = vectors[spec.name]
    if vector.shape != (spec.length,):
        raise errors.UpdateRefused(
            f"Section {spec.name!r} has {vector.size} elements; the plan says {spec.length}.", code="wrong_length"
        )
    return vector


def _checked_vector(spec: SectionSpec, vectors: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    vector = _vector_of(spec, vectors)
    try:
        check_vector(vector, spec.shape)
    except errors.UpdateRefused as error:
        raise errors.UpdateRefused(
            f"Section {spec.name!r}: {error.message}", hint=error.hint, code=error.reason
        ) from None
    if spec.value_range is not None:
        low, high = spec.value_range
        outside = (vector < low) | (vector > high)
        if outside.any():
            where = int(np.argmax(outside))
            raise errors.UpdateRefused(
                f"Section {spec.name!r} holds {vector[where]} at element {where}, outside {[low, high]}.",
                code="out_of_range",
            )
    return vector


def _capped(vector: npt.NDArray[Any], weight_cap: int) -> Vector:
    """Metric sums over at most so many examples, which come first."""
    sums = vector.astype(np.float64)
    if sums[0] < 0:
        raise errors.UpdateRefused(f"The metric sums cover {sums[0]} examples.", code="out_of_range")
    return sums * min(1.0, weight_cap / sums[0]) if sums[0] > 0 else sums


def _on_grid(
    section: SecureSection, spec: SectionSpec, vector: npt.NDArray[Any], keys: Keys
) -> tuple[npt.NDArray[Any], bool]:
    grid = grid_of(section)
    numbers = grid.numbers(vector, keys, spec.shape)
    length = math.sqrt(float(np.einsum("i,i->", vector, vector, dtype=np.float64)))
    cut = length > (section.norm or 0.0)
    if not cut and grid.bits >= _FINE_BITS:
        ends = np.count_nonzero(numbers == 0) + np.count_nonzero(numbers == grid.top)
        cut = bool(ends > _AT_THE_ENDS * numbers.size)
    return numbers, cut


def _fixed_point(
    section: SecureSection, vector: npt.NDArray[Any], rounding: bytes
) -> tuple[npt.NDArray[np.uint32], bool]:
    low, step = line_of(section)
    places = (vector.astype(np.float64) - low) / step
    within = np.clip(places, 0, section.top)
    # Two words of the stream make the 52 bits of a number in [0, 1).
    words = randomness.words(rounding, 0, 2 * vector.size).astype(np.float64).reshape(2, -1)
    uniform = np.floor(words[0]) * 2.0**-32 + np.floor(words[1] * 2.0**-12) * 2.0**-52
    numbers = np.minimum(np.floor(within + uniform), section.top)
    whole = within == np.floor(within)
    return np.where(whole, within, numbers).astype(np.uint32), bool((places != within).any())


def grid_of(section: SecureSection) -> Grid:
    """The grid of a section that is encoded so."""
    return Grid(section.top.bit_length(), section.norm)


def line_of(section: SecureSection) -> tuple[float, float]:
    """(low, step) of a section that is ``fixed``."""
    return section.low or 0.0, section.step or 1.0


def _refusal(why: str) -> errors.UpdateRefused:
    return errors.UpdateRefused(f"These sections do not fit the plan: {why}.", code="wrong_sections")


_MEANINGS: Mapping[str, Callable[[SecureSection], str]] = {
    "exact": lambda section: ", ".join(COUNTED),
    "grid": lambda section: f"shortened to norm {section.norm:g}, rotated, rounded to 0..{section.top}, times weight",
    "fixed": lambda section: f"in steps of {section.step:g} from {section.low:g}",
    "noised": lambda section: f"shortened to norm {section.norm:g}, rotated, rounded, noised on the device",
}
