"""Privacy loss distributions by `dp-accounting`, which comes with the extra `server` and is loaded only here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from coterie import errors
from coterie.privacy.dp.events import Approximate, Gaussian, PrivacyEvent, Pure, SampledGaussian

if TYPE_CHECKING:
    from types import ModuleType

INSTALL = 'pip install "coterie[server]"'


def available() -> bool:
    """Whether dp-accounting is installed."""
    return find_spec("dp_accounting") is not None


def epsilon_of(events: Sequence[PrivacyEvent], delta: float) -> float:
    """The ε of these events together, from the composition of their privacy loss distributions, rounded up.

    Deltas of the events are not counted: take them from `delta` before. A tenth of a second to one second for each
    different event. Raises errors.ConfigurationError (``extra_missing``) without dp-accounting, and errors.InputError
    (``privacy_event_invalid``) for an event whose distribution is not known, such as `Concentrated`.
    """
    pld = _library()
    return _epsilon_of(pld, tuple(events), delta)


@lru_cache(maxsize=256)
def _epsilon_of(pld: Any, events: tuple[PrivacyEvent, ...], delta: float) -> float:
    """Kept, because a run asks again at its promise, at every round and for its report."""
    distributions = [_composed(pld, event) for event in events]
    return float(reduce(lambda left, right: left.compose(right), distributions).get_epsilon_for_delta(delta))


def _composed(pld: Any, event: PrivacyEvent) -> Any:
    match event:
        case Gaussian():
            # Many Gaussians are one of less noise: cheaper than composing, and exact.
            return pld.from_gaussian_mechanism(event.multiplier / event.count**0.5, use_connect_dots=True)
        case SampledGaussian():
            single = pld.from_gaussian_mechanism(event.multiplier, sampling_prob=event.rate, use_connect_dots=True)
        case Pure() | Approximate():
            from dp_accounting.pld import common  # pyright: ignore[reportMissingTypeStubs]

            single = pld.from_privacy_parameters(common.DifferentialPrivacyParameters(event.epsilon, 0.0))
        case _:
            raise errors.InputError(
                f"The privacy loss distribution of {type(event).__name__} is not known.",
                hint="Use its Rényi bound.",
                code="privacy_event_invalid",
            )
    return single if event.count == 1 else single.self_compose(event.count)


def _library() -> ModuleType:
    try:
        from dp_accounting.pld import privacy_loss_distribution  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError as error:
        raise errors.ConfigurationError(
            "Accounting by privacy loss distributions needs dp-accounting, which is not installed.",
            hint=f"{INSTALL}, or account by Rényi divergences, which need no extra package.",
            code="extra_missing",
        ) from error
    return privacy_loss_distribution
