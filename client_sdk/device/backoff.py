"""Retry delays.

Two rules, both pure functions of their arguments:

* After an answer, wait a uniform draw from the window that the coordinator gave.
* After failure n (n = 1, 2, ...), wait a uniform draw from [0, min(cap, base * 2^(n-1))] ("full jitter", so that
  devices that failed together do not return together), added to the floor: the start of the last window the
  coordinator gave, or its ``Retry-After`` when that is longer. So a device is never faster than its coordinator asked,
  however often it fails, and before any window is known only the jitter counts.
"""

import random
from dataclasses import dataclass

from coterie.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Seconds between failed attempts.

    base_s: the longest wait after the first failure.
    cap_s: the longest jitter ever. The defaults suit laptops and servers, where somebody may be watching; a phone takes
        ``Backoff(base_s=900, cap_s=14400)``.
    """

    base_s: float = 1.0
    cap_s: float = 900.0

    def __post_init__(self) -> None:
        if not 0 < self.base_s <= self.cap_s:
            raise ConfigurationError(
                f"Back-off needs 0 < base_s <= cap_s, got base_s={self.base_s}, cap_s={self.cap_s}."
            )


@dataclass(frozen=True)
class Window:
    """Relative seconds within which the coordinator wants to hear again."""

    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.start_s <= self.end_s:
            raise ConfigurationError(f"A retry window needs 0 <= start <= end, got {self.start_s} and {self.end_s}.")


def after_answer(window: Window, rng: random.Random) -> float:
    """Seconds to wait after an answer: uniform in the window."""
    return rng.uniform(window.start_s, window.end_s)


def after_failure(
    failures: int, backoff: Backoff, rng: random.Random, *, window: Window | None = None, retry_after_s: float = 0.0
) -> float:
    """Seconds to wait after ``failures`` failures in a row (at least 1); see the module's second rule."""
    if failures < 1:
        raise ConfigurationError(f"failures must be at least 1, got {failures}.")
    # 2^60 seconds is beyond any cap; the bound keeps the power from overflowing after years without a coordinator.
    jitter = rng.uniform(0.0, min(backoff.cap_s, backoff.base_s * 2.0 ** min(failures - 1, 60)))
    return max(window.start_s if window else 0.0, retry_after_s) + jitter
