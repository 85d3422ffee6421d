"""What a survey found, and the schema that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.analytics.noise import NOISE, above_noise
from coterie.aggregation.preparation.bins import LOGARITHMIC, WIDTH, Range
from coterie.aggregation.preparation.draft import Category, Draft, Number
from coterie.aggregation.preparation.hashing import BITS, MARK, digits_of, text_of
from coterie.aggregation.preparation.rule import SLOTS, Sheet, SurveyRule
from coterie.aggregation.reducers import Vector
from coterie.protocol.arrays import FloatArrays
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.schema_rules import MOST_NORMALISED


@dataclass(frozen=True)
class FoundNumber:
    """One number of a row, over all rows that answered, its values cut to [low, high].

    error: by how much the mean may be wrong; the deviation likewise. Half a bin always, and where the sums were noised
        three deviations of what that makes of the mean.
    bin: the width of one.
    """

    name: str
    mean: float
    deviation: float
    median: float
    quartiles: tuple[float, float]
    low: float
    high: float
    error: float
    bin: float

    @property
    def is_constant(self) -> bool:
        """Whether no two values differ, as far as the bins can tell."""
        return self.deviation <= self.bin


@dataclass(frozen=True)
class FoundCategory:
    """A column of text.

    counts: text → rows, in the order of the schema.
    missing: rows with no text or one that is too long, where that was seen to be frequent.
    unreadable: frequent hashes of which no text was found, because two texts share them or noise hid it.
    full: whether there was no room for another text, so that some may be missed.
    """

    name: str
    counts: Mapping[str, float]
    missing: float
    unreadable: int
    full: bool


@dataclass(frozen=True)
class Prepared:
    """The answer of a survey.

    schema: a finer reading of the draft's declared columns.
    rows: how many answered, about where sums were noised.
    noise: its deviation on every sum, 0 where there is none.
    """

    schema: DataSchema
    rows: float
    noise: float
    numbers: tuple[FoundNumber, ...]
    categories: tuple[FoundCategory, ...]

    def lines(self) -> tuple[str, ...]:
        """As sentences, one a line."""
        about = "about " if self.noise else ""
        found = [f"{about}{self.rows:.0f} rows answered."]
        for number in self.numbers:
            found.append(
                f"{number.name}: mean {number.mean:.6g} ± {number.error:.2g}, deviation {number.deviation:.6g}, median "
                f"{number.median:.6g}, from {number.low:.6g} to {number.high:.6g}"
                + ("; all alike, so it is not scaled." if number.is_constant else ".")
            )
        for category in self.categories:
            shown = ", ".join(f"{text} ({count:.0f})" for text, count in list(category.counts.items())[:8])
            more = f" and {len(category.counts) - 8} more" if len(category.counts) > 8 else ""
            covered = sum(category.counts.values()) / max(self.rows, 1.0)
            notes = [f"{covered:.1%} of the rows"]
            notes += [f"{category.missing:.0f} rows without a text"] if category.missing else []
            notes += (
                [f"{category.unreadable} frequent hashes without a text that prints"] if category.unreadable else []
            )
            notes += ["no room for more texts; raise `most`"] if category.full else []
            found.append(f"{category.name}: {shown}{more}; {', '.join(notes)}.")
        return tuple(found)


def read(
    draft: Draft, rule: SurveyRule, sheet: Sheet, settings: FloatArrays, *, share: float, fewest: int, seed: int
) -> Prepared:
    """What the sums of the last round say. Raises errors.ExperimentError (``survey_unanswered``)."""
    noise = float(settings[NOISE][0])
    floor = above_noise(noise, rule.size)
    if sheet.rows < max(1.0, 3 * noise):
        raise _unanswered(f"About {sheet.rows:.0f} rows answered, too few against the noise of {noise:.3g} rows")
    numbers: list[FoundNumber] = []
    features: dict[str, Feature] = {}
    for part in draft.numbers:
        at = len(numbers)
        numbers += [
            _number(_element(part, n), sheet.numbers[at + n], settings, at + n, noise) for n in range(part.elements)
        ]
        features[part.name] = _normalised(part, numbers[at:])
    # What stands in a few rows is told only where everybody knew beforehand that it may.
    least = max(share * sheet.rows, floor, 1.0)
    found = [
        _category(
            part, sheet.texts[column], settings[SLOTS][column], max(least, fewest if part.among is None else 0), seed
        )
        for column, part in enumerate(draft.categories)
    ]
    named = {category.name: category for category in found}
    for part in draft.features:
        if isinstance(part, Category):
            columns = () if part.column is None else (part.column,)
            vocabulary = tuple(named[part.name].counts)
            features[part.name] = Feature(name=part.name, dtype="int32", columns=columns, vocabulary=vocabulary)
    schema = DataSchema(
        tuple(part if isinstance(part, Feature) else features[part.name] for part in draft.features),
        _label(draft.label, named),
    )
    return Prepared(schema, sheet.rows, noise, tuple(numbers), tuple(found))


def _element(part: Number, place: int) -> str:
    if part.columns:
        return part.columns[place]
    return part.name if part.elements == 1 else f"{part.name}[{place}]"


_QUARTILES = np.array([0.25, 0.5, 0.75])


def _number(name: str, counts: Vector, settings: FloatArrays, place: int, noise: float) -> FoundNumber:
    width = float(settings[WIDTH][place])
    whole = float(counts.sum())
    if bool(settings[LOGARITHMIC][0]) or not whole > 0:
        raise _unanswered(f"No value of {name!r} was counted")
    edges = Range.of_settings(settings).edges(counts.size)[place]
    middles = (edges[:-1] + edges[1:]) / 2
    mean = float(counts @ middles / whole)
    variance = max(float(counts @ (middles - mean) ** 2 / whole), 0.0)
    reached = np.concatenate([[0.0], np.maximum.accumulate(np.cumsum(counts)) / whole])
    lower, median, upper = (float(value) for value in np.asarray(np.interp(_QUARTILES, reached, edges), np.float64))
    held = np.flatnonzero(counts > 3 * noise)
    first, last = (int(held[0]), int(held[-1])) if held.size else (0, counts.size - 1)
    blur = 3 * noise * float(np.linalg.norm(middles - mean)) / whole
    return FoundNumber(
        name=name,
        mean=mean,
        deviation=variance**0.5,
        median=median,
        quartiles=(lower, upper),
        low=float(edges[first]),
        high=float(edges[last + 1]),
        error=width / 2 + blur,
        bin=width,
    )


def _normalised(part: Number, numbers: list[FoundNumber]) -> Feature:
    pairs = [_SCALINGS[part.scaling](number) for number in numbers]
    for number, pair in zip(numbers, pairs, strict=True):
        if max(map(abs, pair)) >= MOST_NORMALISED:
            raise _unanswered(
                f"The numbers of {number.name!r} go from {number.low:.3g} to {number.high:.3g}, too wide a range to "
                "be scaled",
                hint="Raise `tail` above the share of wrong values, or refuse these by low and high of the Number.",
            )
    offset = tuple(float(np.float32(pair[0])) for pair in pairs)
    scale = tuple(float(np.float32(1 / pair[1])) if pair[1] > 0 else 1.0 for pair in pairs)
    one = len(pairs) == 1
    return Feature(
        name=part.name,
        shape=part.shape,
        columns=part.columns,
        low=part.low,
        high=part.high,
        offset=offset[0] if one else offset,
        scale=scale[0] if one else scale,
    )


def _standard(number: FoundNumber) -> tuple[float, float]:
    return number.mean, 0.0 if number.is_constant else number.deviation


def _robust(number: FoundNumber) -> tuple[float, float]:
    lower, upper = number.quartiles
    # Where more than half of all values are alike, quartiles tell nothing.
    spread = upper - lower if upper - lower > number.bin else _standard(number)[1]
    return number.median, spread


def _range(number: FoundNumber) -> tuple[float, float]:
    return number.low, 0.0 if number.is_constant else number.high - number.low


_SCALINGS = {"standard": _standard, "robust": _robust, "range": _range}
"""Scaling → (offset, what to divide by; 0 for nothing)."""


def _category(
    category: Category, sums: Vector, slots: npt.NDArray[np.float32], least: float, seed: int
) -> FoundCategory:
    counts: dict[str, float] = {}
    missing, unreadable = 0.0, 0
    for place, count in enumerate(sums[:, MARK].tolist()):
        if count < least or slots[place, 0] < 0:
            continue
        if category.among is not None:
            counts[category.among[place]] = count
            continue
        if not slots[place].any():
            missing = count
            continue
        text = text_of(sums[place, :BITS] > count / 2)
        if text is None or not np.array_equal(digits_of([text], seed)[0], slots[place]):
            unreadable += 1
        else:
            counts[text] = count
    if not counts:
        raise _unanswered(f"No text of {category.name!r} is frequent enough (at least {least:.0f} rows)")
    used = int((slots[:, 0] >= 0).sum())
    ordered = counts if category.among is not None else dict(sorted(counts.items(), key=_by_text))
    return FoundCategory(
        category.name, ordered, missing, unreadable, full=category.among is None and used == len(slots)
    )


def _by_text(item: tuple[str, float]) -> tuple[bool, float, str]:
    """Numbers by their size and before words."""
    text = item[0]
    try:
        return (False, float(text), text)
    except ValueError:
        return (True, 0.0, text)


def _label(label: Category | Label, categories: Mapping[str, FoundCategory]) -> Label:
    if isinstance(label, Label):
        return label
    classes = tuple(categories[label.name].counts)
    if len(classes) < 2:
        raise _unanswered(f"The label {label.name!r} has only the class {''.join(classes)!r}")
    # A class that is too rare to be found is in some client's rows all the same.
    return Label(name=label.name, column=label.column, classes=classes, others="dropped")


def _unanswered(
    what: str, hint: str = "Ask more clients, lower `share` or `fewest`, or ask with less noise."
) -> errors.ExperimentError:
    return errors.ExperimentError(
        f"{what}.",
        hint=hint,
        code="survey_unanswered",
    )
