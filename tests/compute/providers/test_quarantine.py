"""A verdict is reached once for each provider, version and driver, and holds as long as none of them changes."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from coterie.compute.runtime import quarantine
from coterie.compute.runtime.conformance import CaseResult, ConformanceReport, conformance
from coterie.compute.runtime.devices import Provider, discover, provider_named
from coterie.compute.runtime.quarantine import failure, identity_of, verdict_on, verdicts
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.verdict import Verdict
from tests.compute.providers.fakes import failing, made, off, stale

GOOD, WRONG = made("Good"), made("Wrong", off)


def trials(tried: list[str]) -> Callable[[Provider], ConformanceReport]:
    def trial(provider: Provider) -> ConformanceReport:
        tried.append(provider.name)
        return ConformanceReport(provider, (CaseResult("add", "differs" if provider == WRONG else "agrees", 0.0),))

    return trial


def test_every_recipe_is_tried_once_and_the_verdict_is_remembered() -> None:
    tried: list[str] = []
    found = verdicts([GOOD, WRONG], {}, trial=trials(tried))
    assert [verdict.trusted for verdict in found.values()] == [True, False] and tried == ["Good", "Wrong"]
    memory = {verdict.identity: verdict for verdict in found.values()}
    assert verdicts([GOOD, WRONG], memory, trial=trials(tried)) == found and tried == ["Good", "Wrong"]


@pytest.mark.parametrize("change", [{"runtime": "1.1"}, {"driver": "2"}, {"name": "Other"}])
def test_another_version_or_driver_is_judged_anew(change: dict[str, str]) -> None:
    memory = {identity_of(GOOD): Verdict(identity_of(GOOD), True)}
    other, tried = replace(GOOD, **change), list[str]()
    verdicts([other, GOOD], memory, trial=trials(tried))
    assert tried == [other.name]


def test_other_recipes_are_another_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity_of(GOOD)
    monkeypatch.setattr(quarantine, "recipes_digest", lambda: "other")
    assert replace(before, recipes="other") == identity_of(GOOD) != before


@pytest.mark.parametrize(
    ("provider", "trusted", "reason"),
    [
        (GOOD, True, ""),
        (stale("Stale"), False, "differs in 'add', differs in 'subtract'"),
        (WRONG, False, "differs in 'add', differs in 'subtract'"),
        (failing("Frail", 3), False, "failed in 'subtract', failed in 'multiply', failed in"),
    ],
    ids=lambda value: value.name if isinstance(value, Provider) else "",
)
def test_judging(provider: Provider, trusted: bool, reason: str) -> None:
    verdict = verdict_on(conformance(provider))
    assert verdict.trusted is trusted and verdict.reason.startswith(reason)
    assert verdict.identity == identity_of(provider)


def test_the_reason_says_what_was_said_first() -> None:
    reason = verdict_on(conformance(failing("Frail", 3))).reason
    assert reason.endswith("more: The provider Frail failed in a graph that it had accepted: the device is lost")


def test_a_failure_in_a_run_outweighs_what_was_passed() -> None:
    assert failure(GOOD, "the device is lost") == Verdict(identity_of(GOOD), False, "the device is lost")


def test_a_provider_knows_version_and_driver() -> None:
    cpu = provider_named(CPU)
    assert cpu in discover() and cpu.runtime and cpu.driver
    assert identity_of(cpu).driver == cpu.driver
