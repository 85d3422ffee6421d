"""What differential privacy an experiment asks for, as one frozen value: `UserLevel`, `ExampleLevel` or `LocalLevel`.

    UserLevel(clip=1.0, delta=1e-5, epsilon=8.0)          a whole device is hidden; noise on the sum of a round
    ExampleLevel(clip=1.0, delta=1e-5, epsilon=8.0)       one row of a device is hidden; noise in every training step
    LocalLevel(mechanism="gaussian", epsilon=8.0, delta=1e-5)   a device's update is hidden from everyone at once

Each is checked whole when it is made, and errors.ExperimentError (``privacy_invalid``) names the field and says what it
may be. What a value costs is said by `accounting` and `rounds`, what it means by `statement`, both in this package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast, get_args

from coterie import errors

CentralMechanism: TypeAlias = Literal["gaussian", "toeplitz", "banded", "blt", "discrete_gaussian", "skellam"]
"""How a round's sum is noised. ``toeplitz``, ``banded`` and ``blt`` correlate the noise of different rounds (DP-FTRL);
``discrete_gaussian`` and ``skellam`` are added on the devices, under secure aggregation.
"""
LocalMechanism: TypeAlias = Literal["gaussian", "randomised_response", "sign_ds"]

MATRIX: tuple[CentralMechanism, ...] = ("toeplitz", "banded", "blt")
DISTRIBUTED: tuple[CentralMechanism, ...] = ("discrete_gaussian", "skellam")
MOST_EPSILON = 1e4
LARGEST_DELTA = 0.01
MOST_ROUNDS = 1_000_000
MOST_BUFFERS = 10
MOST_MULTIPLIER = 1e6


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip:
    """Clip to a quantile of the updates' norms, found as rounds go by (Andrew et al., NeurIPS 2021).

    quantile: the share of updates that should not need clipping, in (0, 1). rate: η of C ← C · exp(−η (b − quantile)).
    bits_noise: standard deviation of the noise on the sum of the clip bits; None for the paper's cohort / 20. The noise
    of the updates grows so that bits and updates together cost what the updates alone would have.
    """

    quantile: float = 0.5
    rate: float = 0.2
    bits_noise: float | None = None

    def __post_init__(self) -> None:
        _check(self, _ADAPTIVE)


@dataclass(frozen=True, kw_only=True)
class UserLevel:
    """Nobody can tell from what is released whether one device took part, with all of its rows and rounds.

    clip: the L2 norm to which every update is shortened (the first one, if adaptive). delta: of (ε, δ).
    epsilon: of all rounds together; or noise_multiplier: give exactly one. The multiplier is the standard deviation of
    the noise on a round's sum over `clip`; for a matrix mechanism, that of its uncorrelated noise over `clip` times the
    sensitivity, so that all rounds together cost one Gaussian of this multiplier.
    mechanism: see `CentralMechanism`. adaptive: move `clip` by noisy quantiles; not with correlated noise.
    min_separation: a device that takes part in round i takes part again in i + min_separation at the earliest.
    max_participations: how often a device takes part at most; None for as often as the separation allows.
    bands: of ``banded``, at most min_separation; None for min_separation. buffers: of ``blt``.
    schedule: a factor for the noise of each round (see `schedules`), only for ``gaussian``; None for the same in all.
    """

    clip: float
    delta: float
    epsilon: float | None = None
    noise_multiplier: float | None = None
    mechanism: CentralMechanism = "gaussian"
    adaptive: AdaptiveClip | None = None
    min_separation: int = 1
    max_participations: int | None = None
    bands: int | None = None
    buffers: int = 4
    schedule: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        given = cast(object, self.schedule)
        if isinstance(given, list | tuple):
            object.__setattr__(self, "schedule", tuple(_float(factor) for factor in cast(list[object], given)))
        _check(self, _USER)
        _one_of_two(self)
        for wrong, message in self._conflicts():
            if wrong:
                raise _invalid(f"UserLevel: {message}")

    def _conflicts(self) -> tuple[tuple[bool, str], ...]:
        """Fields that do not go together."""
        return (
            (
                self.mechanism in MATRIX and self.adaptive is not None,
                "adaptive clipping changes the sensitivity between rounds whose noise is correlated; "
                'choose mechanism="gaussian" or leave adaptive out',
            ),
            (
                self.mechanism in MATRIX and self.min_separation == 1 and self.max_participations is None,
                f'mechanism="{self.mechanism}" gains nothing where a device may take part in every round; give '
                "min_separation (say 20) or max_participations",
            ),
            (
                self.schedule is not None and self.mechanism != "gaussian",
                'a schedule of noise is for mechanism="gaussian"; leave schedule out',
            ),
            (
                self.bands is not None and self.mechanism != "banded",
                'bands are for mechanism="banded"; leave bands out',
            ),
            (
                self.bands is not None and self.bands > self.min_separation,
                f"bands {self.bands} exceed min_separation {self.min_separation}, so that one device's rounds would "
                "add up; raise min_separation or lower bands",
            ),
            (
                self.mechanism == "banded" and self.min_separation == 1,
                'mechanism="banded" needs rounds between two participations; give min_separation (say 20)',
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; `from_json` is the inverse."""
        return _to_json("user", self)


@dataclass(frozen=True, kw_only=True)
class ExampleLevel:
    """Nobody can tell from a device's updates whether one row was among its data: DP-SGD in the plan.

    clip: the L2 norm to which every example's gradient is shortened. delta, epsilon or noise_multiplier: as in
    `UserLevel`, over all steps of all rounds of one device. rows: how many rows a device is taken to have, as a public
    number, which an experiment must give: each row is drawn into a batch with probability batch_size / rows; a device
    with fewer has smaller batches, one with more draws each row less often. max_batch: the most rows that one batch may
    hold (a larger one counts as empty, and how likely that is, is charged to δ); None for the least that leaves all but
    a ten-thousandth of δ.
    """

    clip: float
    delta: float
    epsilon: float | None = None
    noise_multiplier: float | None = None
    rows: int | None = None
    max_batch: int | None = None

    def __post_init__(self) -> None:
        _check(self, _EXAMPLE)
        _one_of_two(self)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; `from_json` is the inverse."""
        return _to_json("example", self)


@dataclass(frozen=True, kw_only=True)
class LocalLevel:
    """Nobody, the coordinator included, can tell from one upload what the device's update was: noise is added on the
    device, before anything leaves it. epsilon and delta are those of ONE upload.

    mechanism: ``gaussian`` (calibrated exactly: Balle and Wang, 2018), ``randomised_response`` (a sign per coordinate)
    or ``sign_ds`` (a few signed coordinates); the last two have delta 0. clip: the L2 norm before the noise
    (``gaussian``), or the size of the step that a sign stands for. top: of ``sign_ds``, the share of coordinates that
    count as the largest. outputs: how many coordinates ``sign_ds`` and ``randomised_response`` send; None for as many
    as the mechanism finds best.
    """

    mechanism: LocalMechanism
    epsilon: float
    delta: float = 0.0
    clip: float = 1.0
    top: float = 0.01
    outputs: int | None = None

    def __post_init__(self) -> None:
        _check(self, _LOCAL)
        if (self.mechanism == "gaussian") != (self.delta > 0):
            raise _invalid(
                f'LocalLevel: mechanism="{self.mechanism}" needs '
                + ("a delta above 0, for example 1e-5" if self.mechanism == "gaussian" else "delta=0.0; it is pure"),
            )

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; `from_json` is the inverse."""
        return _to_json("local", self)


Privacy: TypeAlias = UserLevel | ExampleLevel | LocalLevel
"""What an experiment may ask for."""

LEVELS: Mapping[str, type[Privacy]] = MappingProxyType(
    {"user": UserLevel, "example": ExampleLevel, "local": LocalLevel}
)


def from_json(value: object) -> Privacy:
    """The inverse of ``to_json``. Raises errors.ExperimentError (``privacy_invalid``) for an unknown level or field, a
    missing one, or a value out of range.
    """
    given = _object(value, "privacy")
    level = given.pop("level", None)
    kind = LEVELS.get(level) if isinstance(level, str) else None
    if kind is None:
        raise _invalid(f"privacy: there is no level {str(level)[:64]!r}; there are {', '.join(LEVELS)}")
    if given.get("adaptive") is not None:
        given["adaptive"] = _made(AdaptiveClip, _object(given["adaptive"], "privacy.adaptive"))
    return _made(kind, given)


# How values are checked: field → (test, what it must be).

_Rules: TypeAlias = Mapping[str, tuple[Callable[[Any], bool], str]]


def _number(value: object) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 1 << 53
    return isinstance(value, float) and math.isfinite(value)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _float(value: object) -> object:
    """Whole numbers as floats, so that equal values have equal JSON; anything else as it is."""
    return float(value) if isinstance(value, int) and _number(value) else value


def _optional(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or test(value)


def _positive(most: float) -> Callable[[Any], bool]:
    return lambda value: _number(value) and 0 < value <= most


def _between(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: _number(value) and low <= value <= high


def _mechanism(known: tuple[str, ...]) -> tuple[Callable[[Any], bool], str]:
    return (lambda value: value in known), f"one of {', '.join(known)}"


def _adaptive(value: object) -> bool:
    return isinstance(value, AdaptiveClip)


def _counted(most: int) -> Callable[[Any], bool]:
    return lambda value: _whole(value) and 1 <= value <= most


def _factors(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and 0 < len(cast(tuple[object, ...], value)) <= MOST_ROUNDS
        and all(_number(factor) and 0 < cast(float, factor) <= 1e6 for factor in cast(tuple[object, ...], value))
    )


_CLIP = (_positive(1e9), "a number above 0 and at most 1e9")
_DELTA = (
    _positive(LARGEST_DELTA),
    f"above 0 and at most {LARGEST_DELTA}; below 1 / (number of devices), for example 1e-5",
)
_EPSILON = (_optional(_positive(MOST_EPSILON)), f"a number above 0 and at most {MOST_EPSILON:g}, or None")
_MULTIPLIER = (_optional(_positive(MOST_MULTIPLIER)), f"a number above 0 and at most {MOST_MULTIPLIER:g}, or None")
_ROUNDS = f"a whole number in 1..{MOST_ROUNDS}"

_ADAPTIVE: _Rules = {
    "quantile": (_between(1e-6, 1 - 1e-6), "above 0 and below 1"),
    "rate": (_positive(10), "above 0 and at most 10"),
    "bits_noise": (_optional(_positive(1e9)), "a number above 0, or None"),
}
_USER: _Rules = {
    "clip": _CLIP,
    "delta": _DELTA,
    "epsilon": _EPSILON,
    "noise_multiplier": _MULTIPLIER,
    "mechanism": _mechanism(get_args(CentralMechanism)),
    "adaptive": (_optional(_adaptive), "an AdaptiveClip(...), or None"),
    "min_separation": (_counted(MOST_ROUNDS), _ROUNDS),
    "max_participations": (_optional(_counted(MOST_ROUNDS)), f"{_ROUNDS}, or None"),
    "bands": (_optional(_counted(MOST_ROUNDS)), f"{_ROUNDS}, or None"),
    "buffers": (_counted(MOST_BUFFERS), f"a whole number in 1..{MOST_BUFFERS}"),
    "schedule": (_optional(_factors), "a tuple of one positive factor per round, or None"),
}
_EXAMPLE: _Rules = {
    "clip": _CLIP,
    "delta": _DELTA,
    "epsilon": _EPSILON,
    "noise_multiplier": _MULTIPLIER,
    "rows": (_optional(_counted(1 << 31)), "a whole number of at least 1, or None"),
    "max_batch": (_optional(_counted(1 << 20)), f"a whole number in 1..{1 << 20}, or None"),
}
_LOCAL: _Rules = {
    "mechanism": _mechanism(get_args(LocalMechanism)),
    "epsilon": (_positive(MOST_EPSILON), f"above 0 and at most {MOST_EPSILON:g}"),
    "delta": (_between(0, LARGEST_DELTA), f"in 0..{LARGEST_DELTA}"),
    "clip": _CLIP,
    "top": (_positive(0.5), "above 0 and at most 0.5"),
    "outputs": (_optional(_counted(1 << 31)), "a whole number of at least 1, or None"),
}


def _check(value: object, rules: _Rules) -> None:
    for name, (holds, wanted) in rules.items():
        given = getattr(value, name)
        if not holds(given):
            raise _invalid(f"{type(value).__name__}: {name} must be {wanted}, not {repr(given)[:64]}")
        if name in _REAL:
            object.__setattr__(value, name, _float(given))


_REAL = frozenset({"clip", "delta", "epsilon", "noise_multiplier", "quantile", "rate", "bits_noise", "top"})
"""Fields that whole numbers may fill too."""


def _one_of_two(value: UserLevel | ExampleLevel) -> None:
    if (value.epsilon is None) == (value.noise_multiplier is None):
        given = "neither" if value.epsilon is None else "both"
        raise _invalid(f"{type(value).__name__}: give exactly one of epsilon and noise_multiplier, not {given}")


def _invalid(message: str) -> errors.ExperimentError:
    return errors.ExperimentError(f"{message}.", code="privacy_invalid")


def _to_json(level: str, value: Privacy) -> dict[str, Any]:
    said: dict[str, Any] = {"level": level}
    for field in fields(value):
        held = getattr(value, field.name)
        if isinstance(held, AdaptiveClip):
            held = {inner.name: getattr(held, inner.name) for inner in fields(held)}
        said[field.name] = list(cast(tuple[float, ...], held)) if isinstance(held, tuple) else held
    return said


def _object(value: object, where: str) -> dict[str, Any]:
    kind = type(value).__name__
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in cast(Mapping[object, object], value)):
        raise _invalid(f"{where} must be a JSON object, not {kind}")
    return dict(cast(Mapping[str, Any], value))


def _made(kind: Callable[..., Any], given: dict[str, Any]) -> Any:
    known = {field.name: field for field in fields(cast(Any, kind))}
    unknown = sorted(set(given) - set(known))
    name = getattr(kind, "__name__", "privacy")
    if unknown:
        raise _invalid(f"{name} has no field {unknown[0][:64]!r}; it has {', '.join(known)}")
    try:
        return kind(**given)
    except TypeError as error:
        missing = str(error).partition("argument")[2].lstrip("s: ")
        raise _invalid(f"{name} lacks {missing or 'a field'}") from error
