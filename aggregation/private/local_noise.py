"""Local differential privacy of an update: what a device sends when nobody else is to be trusted with the noise.

The change of the weights is made safe by `coterie.privacy.dp.local` before any codec, ring or mask; metric sums are
zeros, the weight is one and steps are none, so that nothing else of the device's rows leaves it.
"""

from typing import Any

import numpy as np

from coterie.aggregation.plan.manifest import DELTA, METRICS, Manifest
from coterie.errors import PlanRefused
from coterie.privacy.dp.local import privatise
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.claims import LocalTerms
from coterie.protocol.privacy import LocalLevel, Privacy


def local_terms(privacy: Privacy | None) -> LocalTerms | None:
    """What a task says of it; None where devices add no noise of their own."""
    if not isinstance(privacy, LocalLevel):
        return None
    return LocalTerms(
        mechanism=privacy.mechanism,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        clip=privacy.clip,
        top=privacy.top,
        outputs=privacy.outputs,
    )


def level_of(terms: LocalTerms) -> LocalLevel:
    """The inverse of `local_terms`. Raises errors.ExperimentError (``privacy_invalid``) for impossible terms."""
    return LocalLevel(
        mechanism=terms.mechanism,
        epsilon=terms.epsilon,
        delta=terms.delta,
        clip=terms.clip,
        top=terms.top,
        outputs=terms.outputs,
    )


def privatised(manifest: Manifest, sections: ArraysByName, terms: LocalTerms, source: NoiseSource) -> dict[str, Any]:
    """The sections as they may leave the device.

    source: a fresh key, of the device's own, for this update alone.

    Raises as `check_sections`, and errors.ExperimentError (``privacy_invalid``) for impossible terms.
    """
    check_sections(manifest)
    noised = privatise(sections[DELTA], level_of(terms), source)
    silent = {name: np.zeros_like(vector) for name, vector in sections.items() if name != DELTA}
    return {**silent, DELTA: noised.astype(np.float32)}


def check_sections(manifest: Manifest) -> None:
    """Raise errors.PlanRefused (``local_noise_sections``) for a plan that sends anything beside the change of the
    weights and metric sums.
    """
    others = sorted({spec.name for spec in manifest.sections} - {DELTA, METRICS})
    if others:
        raise PlanRefused(
            f"The plan sends {others[0]!r} besides the change of the weights, and local noise covers the change only.",
            hint="The researcher can choose a method that sends the change only, such as FedAvg.",
            code="local_noise_sections",
        )
