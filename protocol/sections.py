"""What a section of an update must be.

Which slices of the layout it covers, how it is reduced, what its values may be.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from coterie import errors
from coterie.protocol.codecs.codec import Shape
from coterie.protocol.layout import Layout, Slice

Reduction = Literal["weighted_mean", "sum"]
Denominator = Literal["weight"]

LONGEST_NAME = 64


@dataclass(frozen=True, kw_only=True)
class SectionSpec:
    """One named section.

    length: number of elements.
    slices: the (start, stop) of the global layout that it covers, rising and apart, summing to `length`; empty for an
        extra vector that lies outside the layout (metric sums, counters).
    segments: lengths of the runs that a codec may scale on its own (one per tensor); ``(length,)`` when not given.
    rows: the number of rows of each run, 1 when not given.
    denominator: what a weighted mean divides by, None for a sum.
    value_range: inclusive bounds that every decoded element must keep.
    """

    name: str
    length: int
    slices: tuple[Slice, ...] = ()
    segments: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    reduction: Reduction = "weighted_mean"
    denominator: Denominator | None = "weight"
    value_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not self.segments:
            object.__setattr__(self, "segments", (self.length,))
        if not self.rows:
            object.__setattr__(self, "rows", (1,) * len(self.segments))
        for good, why in self._rules():
            if not good:
                raise errors.InputError(f"Section {self.name[:LONGEST_NAME]!r}: {why}.", code="section_invalid")

    def _rules(self) -> list[tuple[bool, str]]:
        low, high = self.value_range or (0.0, 0.0)
        edges = [edge for pair in self.slices for edge in pair]
        return [
            (
                0 < len(self.name) <= LONGEST_NAME and self.name.isascii(),
                f"its name needs 1 to {LONGEST_NAME} ASCII characters",
            ),
            (self.length > 0, f"its length must be positive, not {self.length}"),
            (all(n > 0 for n in self.segments), "its segments must have positive lengths"),
            (
                sum(self.segments) == self.length,
                f"its segments sum to {sum(self.segments)}, not to its length {self.length}",
            ),
            (
                len(self.rows) == len(self.segments)
                and all(0 < r and n % r == 0 for r, n in zip(self.rows, self.segments, strict=True)),
                "it needs a number of rows for each segment that divides its length",
            ),
            (edges == sorted(edges) and all(a < b for a, b in self.slices), "its slices must rise and not overlap"),
            (not edges or edges[0] >= 0, "its slices must not be negative"),
            (
                not edges or sum(b - a for a, b in self.slices) == self.length,
                f"its slices must cover {self.length} elements",
            ),
            (self.reduction in get_args(Reduction), f"its reduction must be one of {', '.join(get_args(Reduction))}"),
            (
                self.denominator == ("weight" if self.reduction == "weighted_mean" else None),
                "a weighted_mean divides by 'weight', a sum by nothing",
            ),
            (math.isfinite(low) and math.isfinite(high) and low <= high, "its value range must be finite and rise"),
        ]

    def part(self, slices: Sequence[Slice]) -> "SectionSpec":
        """The section of these of its elements alone: (start, stop), rising and apart. Runs are cut where they begin
        and end; rows count where they stay whole.
        """
        segments: list[int] = []
        rows: list[int] = []
        covered: list[Slice] = []
        at = 0
        for length, count in zip(self.segments, self.rows, strict=True):
            width = length // count
            for start, stop in slices:
                low, high = max(start - at, 0), min(stop - at, length)
                if low < high:
                    segments.append(high - low)
                    rows.append((high - low) // width if low % width == 0 and high % width == 0 else 1)
            at += length
        at = 0
        for first, last in self.slices:
            for start, stop in slices:
                low, high = max(start, at), min(stop, at + last - first)
                if low < high:
                    covered.append((first + low - at, first + high - at))
            at += last - first
        return replace(self, length=sum(segments), slices=tuple(covered), segments=tuple(segments), rows=tuple(rows))

    @property
    def is_extra(self) -> bool:
        """Whether it lies outside the layout."""
        return not self.slices

    @property
    def shape(self) -> Shape:
        """What a codec may know of its form."""
        return Shape(self.segments, self.rows)

    @staticmethod
    def over(
        name: str,
        layout: Layout,
        slices: Sequence[Slice] | None = None,
        *,
        value_range: tuple[float, float] | None = None,
    ) -> "SectionSpec":
        """A weighted mean over slices of the layout (the whole of it when None), one segment per tensor.

        Raises errors.InputError (code ``section_invalid``) when a slice leaves the layout.
        """
        chosen = tuple(slices) if slices is not None else ((0, layout.size),)
        if any(stop > layout.size for _, stop in chosen):
            raise errors.InputError(
                f"Section {name!r} leaves the layout of {layout.size} elements.", code="section_invalid"
            )
        length = sum(stop - start for start, stop in chosen)
        return SectionSpec(
            name=name,
            length=length,
            slices=chosen,
            segments=layout.segments(chosen),
            rows=layout.rows(chosen),
            value_range=value_range,
        )

    @staticmethod
    def extra(name: str, length: int, *, value_range: tuple[float, float] | None = None) -> "SectionSpec":
        """A plain sum of an extra vector outside the layout."""
        return SectionSpec(name=name, length=length, reduction="sum", denominator=None, value_range=value_range)
