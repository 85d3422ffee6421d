"""Schedules: a hyper-parameter as a function of the number of a round or step, counted from 0."""

from collections.abc import Callable
from math import cos, pi
from typing import TypeAlias

from coterie.compute.optim.optimizer import check_whole

Schedule: TypeAlias = Callable[[int], float]


def constant(value: float) -> Schedule:
    """Always ``value``."""
    return lambda number: value


def step_decay(value: float, *, factor: float, every: int) -> Schedule:
    """``value`` times ``factor`` once more after every ``every`` numbers."""
    check_whole("step_decay", every=every)
    return lambda number: value * factor ** (number // every)


def cosine(value: float, *, length: int, final: float = 0.0) -> Schedule:
    """From ``value`` at 0 along half a cosine to ``final`` at ``length``, and ``final`` after it (Loshchilov and Hutter
    2017, without restarts).
    """
    check_whole("cosine", length=length)
    return lambda number: final + (value - final) * (1 + cos(pi * min(number, length) / length)) / 2


def warmup(schedule: Schedule, *, length: int) -> Schedule:
    """Rises in equal steps to ``schedule``'s first value, reached at ``length``, and then follows ``schedule`` from its
    own 0.
    """
    check_whole("warmup", length=length)
    return lambda number: schedule(0) * (number + 1) / (length + 1) if number < length else schedule(number - length)
