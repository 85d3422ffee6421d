"""The sums of a survey, and what becomes of them from round to round. Needs no compiler.

One vector holds everything: the number of rows; for each number of a row, counts in bins; for each text column a
row of `COLUMNS` sums for each of ``most`` texts. What these sums are of changes with the rounds:

    numbers    first bins of every magnitude, then twice the bins of the range that was found
    texts      first three rounds: how often each value of the next digit of the hash follows each prefix found so far;
               last round: for each hash, its rows, and how many of their texts have each bit set

Prefixes that occur in at least the share ``share`` of all rows, and in at least ``fewest`` rows, are followed, the
``most`` most frequent of them. A text is at most as frequent as its prefix. Therefore, without noise and while all
clients answer every round, every text of that many rows is found if no more than ``most`` prefixes reach it in any
round, with its exact number of rows; and since all rows of one hash have one text (but with the chance that two of them
share a hash), its bits are those of the text.

Texts that are declared beforehand (the first ``declared`` columns) are counted from the first round on by their hashes,
which only the first version tells: the server changes nothing about them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.analytics.checks import number, whole
from coterie.aggregation.analytics.noise import NOISE, above_noise
from coterie.aggregation.analytics.rule import LARGEST_EXACT
from coterie.aggregation.preparation.bins import Range
from coterie.aggregation.preparation.hashing import COLUMNS, DIGIT, DIGITS
from coterie.aggregation.reducers import Vector
from coterie.protocol.arrays import FloatArrays

NAME = "survey"
BINS, NOISED_BINS = 256, 64
"""Of a number. Every bin has noise of its own, so that many of them make a mean worse."""
MOST_NUMBERS, MOST_TEXT_COLUMNS, MOST_FOUND, MOST_SUMS = 4_096, 256, 1_024, 1 << 23
STAGE, SLOTS = "stage", "slots"
"""What devices are told beside the bins of the numbers, and for the reader the deviation of the noise on every sum:
what is asked of texts, and the digits of the hashes found so far.
"""
OPEN, UNUSED = -1.0, -2.0
"""A digit that is not known yet, and one of a slot that is not in use."""
Slots = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class SurveyRule:
    """See `coterie.aggregation.analytics.rule.QuerySums`.

    numbers, bins, texts, most: how many there are of each.
    """

    parameters: dict[str, float]
    settings: FloatArrays
    advance: Callable[[Vector, FloatArrays, int], FloatArrays]
    rounds: int
    largest: int
    clipped: bool
    numbers: int
    bins: int
    texts: int
    most: int
    name: str = NAME
    whole: bool = True
    bound: None = None
    samples: bool = False

    @property
    def size(self) -> int:
        """How many sums there are."""
        return 1 + self.numbers * self.bins + self.texts * self.most * COLUMNS

    def split(self, total: Vector) -> Sheet:
        """The sums apart."""
        middle = 1 + self.numbers * self.bins
        return Sheet(
            rows=float(total[0]),
            numbers=total[1:middle].reshape(self.numbers, self.bins),
            texts=total[middle:].reshape(self.texts, self.most, COLUMNS),
        )


@dataclass(frozen=True, eq=False)
class Sheet:
    """The sums of a survey's round.

    rows: how many.
    numbers: ``[numbers, bins]``.
    texts: ``[texts, most, COLUMNS]``.
    """

    rows: float
    numbers: Vector = field(repr=False)
    texts: Vector = field(repr=False)


def survey_rule(
    numbers: float,
    texts: float,
    declared: float,
    most: float,
    share: float,
    tail: float,
    noise: float,
    fewest: float,
    largest: float,
    clipped: float,
    slots: Slots | None = None,
) -> SurveyRule:
    """The rule of a survey.

    share: of the rows, and fewest: how many rows, that a text must reach to be found.
    tail: of the counts, that lies outside a number's range at either end.
    noise: its deviation on every sum.
    largest, clipped: see `Sums`; clipped is 0 or 1.
    slots: digits of the declared texts, ``[texts, most, 3]``, which only who asks knows.

    Raises errors.ExperimentError (``query_invalid``).
    """
    groups = whole(NAME, "numbers", numbers, least=0, most=MOST_NUMBERS)
    columns = whole(NAME, "texts", texts, least=0, most=MOST_TEXT_COLUMNS)
    known = whole(NAME, "declared", declared, least=0, most=columns)
    places = whole(NAME, "most", most, least=1, most=MOST_FOUND)
    least_share = number(NAME, "share", share, least=0, most=1)
    outside = number(NAME, "tail", tail, least=0, most=0.25)
    deviation = number(NAME, "noise", noise, least=0)
    few = whole(NAME, "fewest", fewest, least=1, most=LARGEST_EXACT)
    reach = whole(NAME, "largest", largest, least=1, most=LARGEST_EXACT)
    short = whole(NAME, "clipped", clipped, least=0, most=1)
    bins = NOISED_BINS if deviation else BINS
    rounds = DIGITS + 1 if columns > known else DIGITS

    size = 1 + groups * bins + columns * places * COLUMNS
    if size > MOST_SUMS:
        raise errors.ExperimentError(
            f"A survey of {groups} numbers and {columns} columns of {places} texts makes {size} sums; {MOST_SUMS} are "
            "the most.",
            hint="Lower `most`, or ask some of the columns in a survey of their own.",
            code="query_invalid",
        )
    floor = above_noise(deviation, size)

    def advance(total: Vector, settings: FloatArrays, round: int) -> FloatArrays:
        sheet = rule.split(total)
        after = dict(settings)
        if groups and round < rounds:
            after |= Range.of_settings(settings).narrowed(sheet.numbers, sheet.rows, outside, floor).settings()
        if columns and round < rounds:
            after[STAGE] = _stage(round + 1, rounds)
            least = max(least_share * sheet.rows * (1 - 1e-12), floor, few)
            after[SLOTS] = settings[SLOTS].copy()
            for column in range(known, columns):
                after[SLOTS][column] = _next_slots(settings[SLOTS][column], sheet.texts[column], round - 1, least)
        return after

    rule = SurveyRule(
        parameters={
            "numbers": float(groups),
            "texts": float(columns),
            "declared": float(known),
            "most": float(places),
            "share": least_share,
            "tail": outside,
            "noise": deviation,
            "fewest": float(few),
            "largest": float(reach),
            "clipped": float(short),
        },
        settings=_first_settings(groups, bins, columns, known, places, deviation, rounds, slots),
        advance=advance,
        rounds=rounds,
        largest=reach,
        clipped=bool(short),
        numbers=groups,
        bins=bins,
        texts=columns,
        most=places,
    )
    return rule


def _first_settings(
    numbers: int, bins: int, texts: int, declared: int, most: int, noise: float, rounds: int, slots: Slots | None
) -> dict[str, npt.NDArray[np.float32]]:
    settings = {NOISE: np.array([noise], np.float32)}
    if numbers:
        settings |= Range.everything(numbers, bins).settings()
    if texts:
        known = np.full((texts, most, DIGITS), UNUSED, np.float32) if slots is None else slots.copy()
        known[declared:] = UNUSED
        known[declared:, 0] = OPEN
        settings |= {STAGE: _stage(1, rounds), SLOTS: known}
    return settings


def _stage(round: int, rounds: int) -> npt.NDArray[np.float32]:
    """``[4]``: one at the digit that is asked for in the round, or at the last for the bits."""
    stage = np.zeros(DIGITS + 1, np.float32)
    stage[DIGITS if round == rounds else round - 1] = 1
    return stage


def _next_slots(slots: Slots, sums: Vector, digit: int, least: float) -> Slots:
    """The slots after a round that asked for the digit: the most frequent prefixes with it, and of equals the first.

    slots: ``[most, 3]``.
    sums: ``[most, COLUMNS]``. After the last digit they stay.
    """
    if digit >= DIGITS:
        return slots
    after = np.full_like(slots, UNUSED)
    inside = sums[:, :DIGIT]
    parents, values = np.nonzero(inside >= least)
    order = np.lexsort((values, parents, -inside[parents, values]))[: len(slots)]
    after[: len(order)] = slots[parents[order]]
    after[: len(order), digit] = values[order]
    return after
