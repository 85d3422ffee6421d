"""How secure aggregation runs, as one value of an experiment."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast, get_args

from coterie import errors
from coterie.privacy.dp.privacy import DISTRIBUTED, Privacy, UserLevel
from coterie.privacy.dp.privacy import from_json as privacy_from_json
from coterie.privacy.secagg.parameters import LEAST_CLIENTS, share_of
from coterie.protocol.control import ExperimentCreate
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secagg import SecureMode

FEWEST_GRID_BITS, MOST_GRID_BITS = 2, 16
MOST_GROUPS = 1000
FROM_COHORT = 10
"""Experiments of this cohort or a larger one aggregate securely unless they say otherwise."""


@dataclass(frozen=True, kw_only=True)
class SecureAggregation:
    """Only sums over clients are ever seen.

    norm: public bound of the Euclidean norm of a client's change of the weights; a longer one is shortened by the
    client (the round's record says how many were). bits: of each number before it is added, 2 to 16; as many as the
    ring holds when None. mode: ``semi_honest``, against a coordinator that follows the protocol and is curious;
    ``consistent``, also against one that lies about who takes part; None for ``consistent`` where devices share the
    noise of differential privacy, ``semi_honest`` elsewhere. corrupt: the share of clients that may work
    together with the coordinator; dropout: the share that may vanish once it has begun; both in 0 … 0.5. A round policy
    that says no min_updates gets the cohort less that share.
    groups: None for one sum of all; else clients are put into so many random groups, each with a sum of its own, and
    the experiment's reducer works on the groups' means: a robust rule beside secrecy, which hides a client among the
    others of its group only. phase_s: how long each phase of an attempt waits, in seconds.
    Raises errors.ExperimentError (``secure_aggregation_invalid``) naming the field.
    """

    norm: float = 10.0
    bits: int | None = None
    mode: SecureMode | None = None
    corrupt: float = 0.1
    dropout: float = 0.1
    groups: int | None = None
    phase_s: float = 60.0

    def __post_init__(self) -> None:
        for name, (holds, wanted) in _FIELDS.items():
            value = getattr(self, name)
            if not holds(value):
                raise _invalid(f"{name} must be {wanted}, not {repr(value)[:64]}")
            if name in _REAL:
                object.__setattr__(self, name, float(value))

    def to_json(self) -> dict[str, Any]:
        """Every field by name, as JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(value: object) -> SecureAggregation:
        """The inverse of `to_json`. Raises errors.ExperimentError (``secure_aggregation_invalid``)."""
        if not isinstance(value, dict):
            raise _invalid(f"it must be a JSON object, not {type(value).__name__}")
        given = cast(dict[str, Any], value)
        unknown = sorted(set(given) - set(_FIELDS))
        if unknown:
            raise _invalid(f"there is no field {unknown[0][:64]!r}; there are {', '.join(_FIELDS)}")
        return SecureAggregation(**given)


def shares_noise(privacy: Privacy | None) -> bool:
    """Whether each device adds only its share of the noise, so that it counts on the others of its sum."""
    return isinstance(privacy, UserLevel) and privacy.mechanism in DISTRIBUTED


def mode_for(secure: SecureAggregation, privacy: Privacy | None) -> SecureMode:
    """The mode that is asked for. Where none is: ``consistent`` if devices share the noise, since in ``semi_honest``
    they would have to trust the coordinator with it; else ``semi_honest``.
    """
    return secure.mode or ("consistent" if shares_noise(privacy) else "semi_honest")


def settled(secure: SecureAggregation, privacy: Privacy | None) -> SecureAggregation:
    """The same with the mode that an experiment of this privacy runs in."""
    return replace(secure, mode=mode_for(secure, privacy))


def secure_of(request: ExperimentCreate) -> SecureAggregation | None:
    """How a request's rounds aggregate, its mode settled; None where updates come in clear.

    Raises errors.ExperimentError (``secure_aggregation_invalid``, ``privacy_invalid``).
    """
    if request.secure is None:
        return None
    privacy = None if request.privacy is None else privacy_from_json(request.privacy)
    return settled(SecureAggregation.from_json(request.secure), privacy)


def with_room(policy: RoundPolicy, secure: SecureAggregation) -> RoundPolicy:
    """The policy whose rounds outlive the drop-out that is counted on: where it does not say how many updates are
    enough, the cohort without a share of `dropout` are, and never fewer than devices take part with by themselves.
    """
    if "min_updates" in policy.model_fields_set:
        return policy
    fewest = policy.cohort - math.floor(secure.dropout * policy.cohort)
    return policy.model_copy(update={"min_updates": min(policy.cohort, max(fewest, LEAST_CLIENTS))})


def fewest_of_group(cohort: int, secure: SecureAggregation) -> int:
    """Of how few clients the sum of one of its groups may be: the smallest group, less the share that may vanish, as
    far as devices take part in so small a sum by themselves.
    """
    smallest = cohort // (secure.groups or 1)
    return max(smallest - share_of(secure.dropout, smallest), min(smallest, LEAST_CLIENTS))


def _real(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _whole_or_none(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: value is None or (type(value) is int and low <= value <= high)


_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "norm": (_real(1e-12, 1e12), "a number in 1e-12..1e12"),
    "bits": (
        _whole_or_none(FEWEST_GRID_BITS, MOST_GRID_BITS),
        f"a whole number in {FEWEST_GRID_BITS}..{MOST_GRID_BITS}, or None for as many as fit",
    ),
    "mode": (
        lambda value: value is None or value in get_args(SecureMode),
        f"one of {', '.join(get_args(SecureMode))}, or None for the one that fits the privacy asked for",
    ),
    "corrupt": (_real(0.0, 0.5), "a share in 0..0.5"),
    "dropout": (_real(0.0, 0.5), "a share in 0..0.5"),
    "groups": (_whole_or_none(2, MOST_GROUPS), f"a whole number in 2..{MOST_GROUPS}, or None for one sum of all"),
    "phase_s": (_real(0.1, 7 * 24 * 3600.0), "a number of seconds in 0.1..604800"),
}
_REAL = frozenset({"norm", "corrupt", "dropout", "phase_s"})


def _invalid(message: str) -> errors.ExperimentError:
    return errors.ExperimentError(f"SecureAggregation: {message}.", code="secure_aggregation_invalid")
