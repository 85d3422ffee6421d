"""Who gets the tasks of a round: pure rules over candidates, rebuilt from their text. Simulation and coordinator use
the same ones.

    select("power_of_choice(20)", candidates, 10, round=3, seed=0) -> ids

Laws, each held by a test for every rule: min(count, candidates) distinct ids come back; the same arguments give the
same ids; the order in which candidates are given does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from coterie import errors
from coterie.calls import Parameter, read_call
from coterie.protocol.canonical import sha256_hex


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A client that could get a task, with what is known of it; None where nothing is.

    examples: rows that it says it holds.
    loss: the mean loss that its last accepted update reported.
    seconds: how long its last task took.
    last_round: in which it last contributed.
    times: how often it has.
    """

    id: str
    examples: int | None = None
    loss: float | None = None
    seconds: float | None = None
    last_round: int | None = None
    times: int = 0


SelectionRule = Callable[[Sequence[Candidate], int, int, np.random.Generator], list[Candidate]]
"""(candidates sorted by id, how many, round, randomness of this round) → those chosen."""


@dataclass(frozen=True)
class Selector:
    """A rule with its numbers.

    needs_loss: whether it reads single clients' losses, which secure aggregation and differential privacy forbid.
    """

    text: str
    needs_loss: bool
    choose: SelectionRule = field(compare=False, repr=False)


def select(
    selector: Selector | str, candidates: Sequence[Candidate], count: int, *, round: int, seed: int
) -> tuple[str, ...]:
    """The ids of ``min(count, len(candidates))`` distinct candidates, the first choice first.

    round: counted from 1.
    seed: the experiment's.
    Raises errors.ExperimentError (``selection_invalid``).
    """
    rule = selector_of(selector) if isinstance(selector, str) else selector
    ordered = sorted(candidates, key=lambda candidate: candidate.id)
    digest = sha256_hex(f"{seed}/select/{round}".encode())
    generator = np.random.Generator(np.random.PCG64(int(digest, 16)))
    return tuple(chosen.id for chosen in rule.choose(ordered, min(count, len(ordered)), round, generator))


# The rules.


def _uniform() -> SelectionRule:
    def choose(candidates: Sequence[Candidate], count: int, round: int, random: np.random.Generator) -> list[Candidate]:
        return [candidates[place] for place in _random_order(random, len(candidates))[:count]]

    return choose


def _weighted() -> SelectionRule:
    """In proportion to rows, without replacement (Efraimidis and Spirakis, 2006: the smallest of the exponential times
    with these rates). A client that does not say how many rows it holds counts as an average one.
    """

    def choose(candidates: Sequence[Candidate], count: int, round: int, random: np.random.Generator) -> list[Candidate]:
        known = [candidate.examples for candidate in candidates if candidate.examples]
        usual = sum(known) / len(known) if known else 1.0
        weights = np.array([usual if c.examples is None else c.examples for c in candidates], np.float64)
        with np.errstate(divide="ignore"):
            times = random.standard_exponential(len(candidates)) / weights
        return [candidates[place] for place in np.argsort(times, kind="stable")[:count].tolist()]

    return choose


def _power_of_choice(among: float) -> SelectionRule:
    """Cho, Wang and Joshi (2020): of ``among`` clients drawn in proportion to their rows, those with the highest loss.
    A client whose loss is unknown comes first: somebody has to ask it.
    """
    draw = _weighted()

    def choose(candidates: Sequence[Candidate], count: int, round: int, random: np.random.Generator) -> list[Candidate]:
        drawn = draw(candidates, min(max(int(among), count), len(candidates)), round, random)
        return sorted(drawn, key=lambda c: math.inf if c.loss is None else c.loss, reverse=True)[:count]

    return choose


def _oort(exploration: float, decay: float, floor: float, seconds: float, penalty: float) -> SelectionRule:
    """Oort (Lai et al., OSDI 2021, algorithm 1).

    A share of the round explores clients never tried; the others are drawn in proportion to their utility among the
    best. Utility is rows × mean loss: the paper's rows × root mean square of the losses needs one more sum of every
    client, and equals it where a client's losses are alike. It is cut at the 95th percentile of those tried, so that
    nobody gains by reporting more than the others (section 4.4), and scaled to at most 1 before the paper's bonus for
    long absence, √(0.1 ln round / last round), is added.

    exploration, decay, floor: that share begins at ``exploration`` and is multiplied by ``decay`` every round, down to
        ``floor``.
    seconds, penalty: a client slower than ``seconds`` loses (seconds / its time) ** penalty of its utility; 0 seconds
        asks nothing of speed.
    """

    def worth_of(candidate: Candidate, gain: float, round: int) -> float:
        last = max(candidate.last_round or 1, 1)
        value = gain + math.sqrt(0.1 * math.log(max(round, 1)) / last)
        slow = candidate.seconds is not None and 0 < seconds < candidate.seconds
        return value * (seconds / candidate.seconds) ** penalty if slow and candidate.seconds else value

    def choose(candidates: Sequence[Candidate], count: int, round: int, random: np.random.Generator) -> list[Candidate]:
        tried = [candidate for candidate in candidates if candidate.loss is not None]
        fresh = [candidate for candidate in candidates if candidate.loss is None]
        share = max(floor, exploration * decay ** (round - 1))
        new = min(len(fresh), max(math.ceil(share * count), count - len(tried)))
        chosen = [fresh[place] for place in _random_order(random, len(fresh))[:new]]
        old = min(count - new, len(tried))
        if old:
            gains = zip(tried, _gains(tried), strict=True)
            worth = np.array([worth_of(candidate, gain, round) for candidate, gain in gains])
            # The paper keeps those within 95 % of the last one that exploitation would take, and draws among them.
            good = np.flatnonzero(worth >= 0.95 * np.sort(worth)[-old])
            times = random.standard_exponential(len(good)) / np.maximum(worth[good], 1e-12)
            chosen += [tried[place] for place in good[np.argsort(times, kind="stable")[:old]].tolist()]
        return chosen

    return choose


def _gains(candidates: Sequence[Candidate]) -> list[float]:
    """Rows × mean loss of each, cut at the 95th percentile and scaled into 0 .. 1. Losses may be negative (a
    log-density's are): the lowest is 0 then.
    """
    raw = [(1 if c.examples is None else c.examples) * (c.loss or 0.0) for c in candidates]
    gains = np.nan_to_num(np.clip(np.array(raw, np.float64), -_HUGE, _HUGE))
    gains = np.minimum(gains, np.percentile(gains, 95, method="lower"))
    gains -= min(gains.min(), 0.0)
    return (gains / max(gains.max(), 1e-12)).tolist()


_HUGE = 1e300
"""Losses are a client's own words: no product of them may overflow."""


def _cyclic() -> SelectionRule:
    """One after another in an order that stays: the next ``count`` in every round, so that each client's turn comes."""

    def choose(candidates: Sequence[Candidate], count: int, round: int, random: np.random.Generator) -> list[Candidate]:
        first = (round - 1) * count
        return [candidates[(first + place) % len(candidates)] for place in range(count)]

    return choose


def _least_recent() -> SelectionRule:
    """Those whose last contribution is the longest ago; newcomers first, ties by lot."""

    def choose(candidates: Sequence[Candidate], count: int, round: int, random: np.random.Generator) -> list[Candidate]:
        shuffled = [candidates[place] for place in _random_order(random, len(candidates))]
        return sorted(shuffled, key=lambda c: -1 if c.last_round is None else c.last_round)[:count]

    return choose


def _number(name: str, default: float, most: float = math.inf) -> Parameter:
    return Parameter(name, 0, default, whole=False, most=most)


@dataclass(frozen=True)
class _Entry:
    make: Callable[..., SelectionRule]
    parameters: tuple[Parameter, ...] = ()
    needs_loss: bool = False


_SHARES = (_number("exploration", 0.9, 1), _number("decay", 0.98, 1), _number("floor", 0.2, 1))
SELECTORS: Mapping[str, _Entry] = MappingProxyType(
    {
        "uniform": _Entry(_uniform),
        "weighted": _Entry(_weighted),
        "power_of_choice": _Entry(_power_of_choice, (Parameter("among", 1),), needs_loss=True),
        "oort": _Entry(_oort, (*_SHARES, _number("seconds", 0.0), _number("penalty", 2.0)), needs_loss=True),
        "cyclic": _Entry(_cyclic),
        "least_recent": _Entry(_least_recent),
    }
)
_PARAMETERS = {name: entry.parameters for name, entry in SELECTORS.items()}


def selector_of(text: str) -> Selector:
    """The selector that a text means: a name of `SELECTORS`, with numbers in brackets where the rule takes them, in
    order or by name: ``oort(0.5, seconds=30)``.

    Raises errors.ExperimentError (``selection_invalid``) naming what is wrong.
    """
    call = read_call(text, _PARAMETERS, _invalid)
    entry = SELECTORS[call.name]
    return Selector(text, entry.needs_loss, entry.make(*call.numbers.values()))


def _random_order(random: np.random.Generator, count: int) -> list[int]:
    """0 .. count-1 in an order drawn by lot."""
    return random.permutation(count).tolist()


def _invalid(message: str) -> errors.ExperimentError:
    return errors.ExperimentError(
        f"This selection cannot be used: {message}.",
        hint="See docs/rounds.md for the selections and their numbers.",
        code="selection_invalid",
    )
