"""Line searches: how far to go in a direction of descent."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.float64]
Objective: TypeAlias = Callable[[Vector], tuple[float, Vector]]
"""A flat float64 vector → value and gradient."""


@dataclass(frozen=True)
class Point:
    """A place on the line, with what is known there. slope: the derivative along the direction."""

    distance: float
    value: float
    slope: float
    gradient: Vector


def wolfe(
    fn: Objective,
    x: Vector,
    direction: Vector,
    start: Point,
    *,
    first: float = 1.0,
    decrease: float = 1e-4,
    curvature: float = 0.9,
    most: int = 20,
) -> tuple[Point | None, int]:
    """A point that satisfies the strong Wolfe conditions, value <= start + decrease · distance · slope and |slope| <=
    curvature · |start's slope|, by bracketing and cubic interpolation (Nocedal and Wright 2006, algorithms 3.5 and
    3.6); and the number of evaluations.

    start: the point at distance 0, with a negative slope. Where ``most`` evaluations do not suffice, the lowest point
    that satisfies the first condition; None where there is none.
    """
    best: Point | None = None
    count = 0

    def at(distance: float) -> Point:
        nonlocal best, count
        value, gradient = fn(x + distance * direction)
        count += 1
        point = Point(distance, value if isfinite(value) else inf, float(gradient @ direction), gradient)
        if descends(point) and (best is None or point.value < best.value):
            best = point
        return point

    def descends(point: Point) -> bool:
        return point.value <= start.value + decrease * point.distance * start.slope

    def flat(point: Point) -> bool:
        return abs(point.slope) <= -curvature * start.slope

    low, high, distance = start, None, first
    while count < most and high is None:
        point = at(distance)
        if not descends(point) or (point.value >= low.value and low is not start):
            high = point
        elif flat(point):
            return point, count
        elif point.slope >= 0:
            low, high = point, low
        else:
            low, distance = point, 2 * distance
    while count < most and high is not None:
        point = at(_between(low, high))
        if not descends(point) or point.value >= low.value:
            high = point
        elif flat(point):
            return point, count
        else:
            high = low if point.slope * (high.distance - low.distance) >= 0 else high
            low = point
    return best, count


def _between(low: Point, high: Point) -> float:
    """The minimum of the cubic through two points, kept off their neighbourhoods; their middle where it has none."""
    width = high.distance - low.distance
    middle, margin = low.distance + 0.5 * width, 0.1 * abs(width)
    if not isfinite(high.value) or not isfinite(high.slope):
        return middle
    bend = low.slope + high.slope - 3 * (low.value - high.value) / (low.distance - high.distance)
    square = bend * bend - low.slope * high.slope
    if square < 0:
        return middle
    root = sqrt(square) if width > 0 else -sqrt(square)
    below = high.slope - low.slope + 2 * root
    if below == 0:
        return middle
    found = high.distance - width * (high.slope + root - bend) / below
    ends = sorted((low.distance, high.distance))
    return found if ends[0] + margin <= found <= ends[1] - margin else middle
