"""What an experiment promises about privacy, as its signed tasks say it: a device holds it to its own floor."""

from typing import Annotated, Literal

from pydantic import Field

from coterie.protocol.mechanisms import LocalMechanism
from coterie.protocol.wire import FiniteNumber, Identifier, Positive, Signed


class PrivacyTerms(Signed):
    """The differential privacy of a whole experiment.

    unit: whose presence is hidden, a user's whole data or one example.
    epsilon, delta: at the end of all rounds, for a device that takes part as often as it may.
    mechanism: what makes the noise.
    trusts: who must follow the protocol for the promise to hold: nobody but the device itself, most of the cohort, or
        the coordinator.
    """

    unit: Literal["user", "example"]
    epsilon: Annotated[FiniteNumber, Field(ge=0)]
    delta: Annotated[FiniteNumber, Field(ge=0, le=1)]
    mechanism: Identifier
    trusts: Literal["device", "cohort", "coordinator"]


class LocalTerms(Signed):
    """Noise that a device adds to its update by itself, before anything else is done with it.

    epsilon, delta: of this one upload, between any two updates.
    clip: the norm before Gaussian noise, or the size of the step that a sign stands for.
    top: of ``sign_ds``, the share of coordinates that count as the largest.
    outputs: how many signs are sent; None for as many as tell most.
    """

    mechanism: LocalMechanism
    epsilon: Annotated[FiniteNumber, Field(gt=0)]
    delta: Annotated[FiniteNumber, Field(ge=0, lt=1)]
    clip: Annotated[FiniteNumber, Field(gt=0)]
    top: Annotated[FiniteNumber, Field(gt=0, le=1)]
    outputs: Positive | None
