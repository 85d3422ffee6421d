"""What is remembered of a provider: whether it may compute here, for one version and driver of it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    """What a verdict is about. recipes: what it was tried with (`coterie.compute.runtime.conformance`)."""

    provider: str
    version: str
    driver: str
    recipes: str


@dataclass(frozen=True)
class Verdict:
    """Whether a provider may compute here, and why not where it may not."""

    identity: Identity
    trusted: bool
    reason: str = ""
