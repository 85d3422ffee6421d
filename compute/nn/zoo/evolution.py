"""A small evolutionary search over the depth and the widths of a model.

Ageing evolution (Real et al. 2019): a population in the order of birth; the best of a few drawn at random has a child
with one change; the child joins and the oldest leaves. It needs no gradient and forgets lucky measurements.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import TypeAlias, cast

import numpy as np

from coterie.compute.nn.initialisers import stream
from coterie.compute.nn.module import Module
from coterie.compute.nn.zoo.cost import Cost
from coterie.compute.nn.zoo.limits import Limits
from coterie.compute.optim.optimizer import check_whole
from coterie.errors import ArgumentValueError

Widths: TypeAlias = tuple[int, ...]
# How many models may be looked at for one that is scored.
_LOOKS = 10
# How often a child is drawn anew before the search believes that there is nothing new to find.
_TRIES = 50


@dataclass(frozen=True, kw_only=True)
class Space:
    """Models of ``depth[0]`` to ``depth[1]`` layers, each of one of ``widths``.

    build: makes a model of the widths of its layers, first to last. Raises ArgumentValueError for an empty space.
    """

    widths: tuple[int, ...]
    depth: tuple[int, int]
    build: Callable[[Widths], Module]

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.depth), Sequence) or len(self.depth) != 2:
            raise ArgumentValueError(f"Space: depth is (least, most) layers, as in (1, 3); got {self.depth!r}.")
        least, most = self.depth
        check_whole("Space", **{f"widths[{index}]": width for index, width in enumerate(self.widths)})
        check_whole("Space", depth=least)
        if most < least or not self.widths or list(self.widths) != sorted(set(self.widths)):
            raise ArgumentValueError(
                f"Space: {self.depth} layers of widths {self.widths} is no space of models.",
                hint="Give the widths in rising order, each once, and depth as (least, most).",
            )

    @property
    def size(self) -> int:
        """How many models there are."""
        least, most = self.depth
        return sum(len(self.widths) ** layers for layers in range(least, most + 1))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One model that was looked at. score: None where it missed a limit, and then ``misses`` says which."""

    widths: Widths
    cost: Cost
    score: float | None
    misses: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found. best: the trial of the highest score; of equal ones the faster. trials: all, in order."""

    best: Trial
    trials: tuple[Trial, ...]


def search(
    space: Space,
    score: Callable[[Module], float],
    cost: Callable[[Module], Cost],
    *,
    latency_ms: float | None = None,
    step_ms: float | None = None,
    size_mb: float | None = None,
    memory_mb: float | None = None,
    evaluations: int = 32,
    population: int = 8,
    tournament: int = 3,
    seed: int = 0,
) -> Found:
    """Look for the model of the highest score among those that keep the limits.

    score: how good a model is, the higher the better, such as its accuracy after a short training. cost: what it costs;
    ``lambda model: coterie.compute.training.measure(model, inputs)`` measures it here. Limits are those of ``select``.
    evaluations: how many models are scored at most. A model that misses a limit is never scored, and no model is looked
    at twice; ten times as many are looked at, at most.

    Guarantees: every scored model keeps every limit; the same arguments, scores and costs give the same trials. Raises
    ArgumentValueError where not even the smallest model keeps the limits, or for a score that is not finite.
    """
    check_whole("search", evaluations=evaluations, population=population, tournament=tournament)
    limits = Limits(latency_ms=latency_ms, step_ms=step_ms, size_mb=size_mb, memory_mb=memory_mb)
    trials: dict[Widths, Trial] = {}
    draw = _Draw(seed)

    def tried(widths: Widths) -> Trial:
        model = space.build(widths)
        spent = cost(model)
        if misses := limits.misses(spent):
            return Trial(widths=widths, cost=spent, score=None, misses=misses)
        return Trial(widths=widths, cost=spent, score=_number(score(model), widths))

    # The smallest model first: where it misses a limit, so do the others.
    smallest = (space.widths[0],) * space.depth[0]
    trials[smallest] = tried(smallest)
    if trials[smallest].score is None:
        raise ArgumentValueError(
            f"search: even the smallest model, of widths {smallest}, misses a limit: "
            f"{', '.join(trials[smallest].misses)}.",
            hint="Raise the limit, or give a space of smaller models.",
        )
    alive = deque([trials[smallest]], maxlen=population)
    scored = 1
    while scored < evaluations and len(trials) < min(_LOOKS * evaluations, space.size):
        proposed = _proposals(space, alive, population, tournament, draw)
        widths = next((one for one in proposed if one not in trials), None)
        if widths is None:
            break
        trials[widths] = trial = tried(widths)
        if trial.score is not None:
            alive.append(trial)
            scored += 1
    every = tuple(trials.values())
    return Found(best=max(every, key=lambda one: (_score(one), -one.cost.latency_us)), trials=every)


def _number(score: object, widths: Widths) -> float:
    """What a function of the user's gave, as a number."""
    try:
        value = float(cast(float, score))
    except (TypeError, ValueError):
        value = nan
    if not isfinite(value):
        raise ArgumentValueError(
            f"search: the score of the model of widths {widths} is {score}.",
            hint="Let the function return a finite number, the higher the better.",
        )
    return value


def _score(trial: Trial) -> float:
    """The score; below every other one for a model that was not scored."""
    return float("-inf") if trial.score is None else trial.score


def _proposals(
    space: Space, alive: "deque[Trial]", population: int, tournament: int, draw: "_Draw"
) -> Iterator[Widths]:
    """Models to look at next: drawn evenly until the population is full, then children of good ones."""
    for _ in range(_TRIES):
        if len(alive) < population:
            yield draw.member(space)
        else:
            fighters = [alive[draw.below(len(alive))] for _ in range(tournament)]
            parent = max(fighters, key=_score)
            yield draw.child(space, parent.widths)


class _Draw:
    """Numbers of the raw Philox stream: the same on every machine and version of NumPy."""

    def __init__(self, seed: int) -> None:
        self._bits = stream(seed, "search")

    def below(self, bound: int) -> int:
        """A whole number in 0 .. bound - 1."""
        return int(np.uint64(self._bits.random_raw()) % np.uint64(bound))

    def member(self, space: Space) -> Widths:
        """A model of the space: first its depth, then its widths."""
        least, most = space.depth
        layers = least + self.below(most - least + 1)
        return tuple(space.widths[self.below(len(space.widths))] for _ in range(layers))

    def child(self, space: Space, parent: Widths) -> Widths:
        """One layer more, one fewer, or one layer's width a step up or down; as far as the space has it."""
        least, most = space.depth
        place = self.below(len(parent))
        match self.below(4):
            case 0 if len(parent) < most:
                return (*parent[:place], parent[place], *parent[place:])
            case 1 if len(parent) > least:
                return (*parent[:place], *parent[place + 1 :])
            case _:
                step = 1 if self.below(2) else -1
                index = min(max(space.widths.index(parent[place]) + step, 0), len(space.widths) - 1)
                return (*parent[:place], space.widths[index], *parent[place + 1 :])
