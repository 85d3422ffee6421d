"""What was released, as far as its cost goes: frozen values, hashable, with canonical JSON of numbers and text.

A law of this file, since ledgers keep these values for years: what a kind and its fields mean never changes; a new
mechanism is a new kind. `count` releases of a kind cost the same as as many events of count 1.

Costs are those of adding or removing one unit (a device for `UserLevel`, a row for `ExampleLevel`): the vector of the
unit is there, or is zero. `accounting.total_cost` translates to replacing a unit by another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast

from coterie import errors
from coterie.protocol.conversion import from_json


@dataclass(frozen=True)
class _Event:
    """What all kinds share: positive finite numbers."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "event":
                fits, wanted = KINDS.get(value) is type(self), "the name of its kind"
            elif each.name == "count":
                fits, wanted = type(value) is int and value >= 1, "a whole number of at least 1"
            elif each.name == "whole_orders":
                fits, wanted = type(value) is bool, "true or false"
            else:
                low, high = _BOUNDS[each.name]
                number = isinstance(value, int | float) and not isinstance(value, bool)
                fits = number and math.isfinite(value) and low <= value <= high
                wanted = f"in {low:g}..{high:g}"
                if fits:
                    object.__setattr__(self, each.name, float(value))
            if not fits:
                raise _invalid(f"{type(self).__name__}: {each.name} must be {wanted}, not {str(value)[:64]!r}")


_BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "multiplier": (1e-9, 1e12),
        "rate": (1e-15, 1.0),
        "epsilon": (0.0, 1e6),
        "delta": (0.0, 1.0),
        "rho": (0.0, 1e15),
        "xi": (0.0, 1e15),
    }
)


@dataclass(frozen=True)
class Gaussian(_Event):
    """A sum with Gaussian noise of `multiplier` times its sensitivity. No sampling is assumed."""

    event: Literal["gaussian"] = field(default="gaussian", repr=False, kw_only=True)
    multiplier: float
    count: int = 1


@dataclass(frozen=True)
class SampledGaussian(_Event):
    """`Gaussian` over units of which each was drawn for itself with probability `rate` (Poisson), and nobody knows who
    was. Only for draws that are really made so, such as a device's draws of its own rows; devices that check in when
    they like are not sampled.
    """

    event: Literal["sampled_gaussian"] = field(default="sampled_gaussian", repr=False, kw_only=True)
    multiplier: float
    rate: float
    count: int = 1


@dataclass(frozen=True)
class Pure(_Event):
    """A release of pure epsilon between ANY two inputs of the unit, such as randomised response on a device."""

    event: Literal["pure"] = field(default="pure", repr=False, kw_only=True)
    epsilon: float
    count: int = 1


@dataclass(frozen=True)
class Approximate(_Event):
    """A release of (epsilon, delta) between any two inputs. With epsilon 0: a failure of probability delta."""

    event: Literal["approximate"] = field(default="approximate", repr=False, kw_only=True)
    epsilon: float
    delta: float
    count: int = 1


@dataclass(frozen=True)
class Concentrated(_Event):
    """A release whose Rényi divergence of order α is at most rho · α + xi, but for a failure of probability `delta`
    (Bun and Steinke, 2016): what is proven of noise that devices share.

    whole_orders: the bound is proven only for α = 2, 3, ….
    """

    event: Literal["concentrated"] = field(default="concentrated", repr=False, kw_only=True)
    rho: float
    xi: float = 0.0
    delta: float = 0.0
    whole_orders: bool = False
    count: int = 1


PrivacyEvent: TypeAlias = Gaussian | SampledGaussian | Pure | Approximate | Concentrated

KINDS: Mapping[str, type[PrivacyEvent]] = MappingProxyType(
    {
        "gaussian": Gaussian,
        "sampled_gaussian": SampledGaussian,
        "pure": Pure,
        "approximate": Approximate,
        "concentrated": Concentrated,
    }
)


def event_from_json(value: object) -> PrivacyEvent:
    """The event that `coterie.protocol.conversion.to_json` wrote.

    Raises errors.InputError (``privacy_event_invalid``) for an unknown kind or field, or a number out of range: a
    ledger's text never chooses what is run.
    """
    if not isinstance(value, Mapping):
        raise _invalid("A privacy event must be a JSON object")
    given = cast(Mapping[object, Any], value)
    name = given.get("event")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise _invalid(f"There is no privacy event {str(name)[:64]!r}; there are {', '.join(KINDS)}")
    return from_json(kind, given, code="privacy_event_invalid")


def merged(events: Iterable[PrivacyEvent]) -> tuple[PrivacyEvent, ...]:
    """The same cost in as few events as possible, in an order that does not depend on theirs.

    Exact: Gaussians of multipliers z compose to one of (Σ z⁻²)^-½, and Rényi bounds add up.
    """
    inverse = rho = xi = delta = 0.0
    gaussian = concentrated = whole = False
    counts: dict[PrivacyEvent, int] = {}
    # Sums of floats in one order give one result whatever order the events came in.
    for event in sorted(events, key=repr):
        match event:
            case Gaussian():
                gaussian, inverse = True, inverse + event.count / event.multiplier**2
            case Concentrated():
                concentrated, whole = True, whole or event.whole_orders
                rho += event.count * event.rho
                xi += event.count * event.xi
                delta += event.count * event.delta
            case _:
                single = replace(event, count=1)
                counts[single] = counts.get(single, 0) + event.count
    found: list[PrivacyEvent] = [replace(event, count=count) for event, count in counts.items()]
    if gaussian:
        found.append(Gaussian(inverse**-0.5))
    if concentrated:
        found.append(Concentrated(rho, xi, min(delta, 1.0), whole))
    return tuple(sorted(found, key=repr))


def _invalid(message: str) -> errors.InputError:
    return errors.InputError(f"{message}.", code="privacy_event_invalid")
