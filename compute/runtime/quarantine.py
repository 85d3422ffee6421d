"""Which providers are trusted: a verdict for each (provider, version, driver), reached once and then remembered.

Where verdicts are kept is the caller's affair: a device keeps them in its store. A verdict holds as long as nothing of
its identity changes; another version, driver or set of recipes is judged anew.
"""

from collections.abc import Callable, Iterable, Mapping

from coterie.compute.runtime.conformance import ConformanceReport, recipes_digest
from coterie.compute.runtime.devices import Provider
from coterie.compute.runtime.verdict import Identity, Verdict


def identity_of(provider: Provider) -> Identity:
    """A provider as it is on this machine now."""
    return Identity(provider.name, provider.runtime, provider.driver, recipes_digest())


def verdict_on(report: ConformanceReport) -> Verdict:
    """What follows from a trial."""
    return Verdict(identity_of(report.provider), report.passed, report.reason)


def failure(provider: Provider, reason: str) -> Verdict:
    """The verdict on a provider that failed in a run: what it passed before counts no more."""
    return Verdict(identity_of(provider), trusted=False, reason=reason)


def verdicts(
    providers: Iterable[Provider],
    remembered: Mapping[Identity, Verdict],
    *,
    trial: Callable[[Provider], ConformanceReport],
) -> dict[Provider, Verdict]:
    """A verdict for each provider: the remembered one where there is one, else a new one for the caller to remember.

    trial: takes seconds (``conformance``, or ``coterie.compute.extension.trial.tried`` in a process of its own).
    """
    return {each: remembered.get(identity_of(each)) or verdict_on(trial(each)) for each in providers}
