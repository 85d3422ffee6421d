"""A verdict is reached once for each provider, version and driver, and holds as long as none of them changes."""

from dataclasses import replace

import pytest

from coterie.compute.runtime import quarantine
from coterie.compute.runtime.devices import Provider, discover, provider_named
from coterie.compute.runtime.quarantine import failure, identity_of, judge, verdicts
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.verdict import Verdict
from tests.compute.providers.fakes import failing, made, off

GOOD, WRONG = made("Good"), made("Wrong", off)


def test_every_recipe_is_tried_once_and_the_verdict_is_remembered() -> None:
    tried: list[str] = []

    def judged(provider: Provider) -> Verdict:
        tried.append(provider.name)
        return Verdict(identity_of(provider), provider.name == "Good", "" if provider.name == "Good" else "it lies")

    found = verdicts([GOOD, WRONG], {}, judged=judged)
    assert [verdict.trusted for verdict in found.values()] == [True, False] and tried == ["Good", "Wrong"]
    memory = {verdict.identity: verdict for verdict in found.values()}
    assert verdicts([GOOD, WRONG], memory, judged=judged) == found and tried == ["Good", "Wrong"]


@pytest.mark.parametrize("change", [{"runtime": "1.1"}, {"driver": "2"}, {"name": "Other"}])
def test_another_version_or_driver_is_judged_anew(change: dict[str, str]) -> None:
    memory = {identity_of(GOOD): Verdict(identity_of(GOOD), True)}
    other = replace(GOOD, **change)
    tried: list[Provider] = []
    verdicts([other, GOOD], memory, judged=lambda each: tried.append(each) or Verdict(identity_of(each), False))
    assert tried == [other]


def test_other_recipes_are_another_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity_of(GOOD)
    monkeypatch.setattr(quarantine, "recipes_digest", lambda: "other")
    assert replace(before, recipes="other") == identity_of(GOOD) != before


@pytest.mark.parametrize(
    ("provider", "trusted", "reason"),
    [
        (GOOD, True, ""),
        (WRONG, False, "differs in 'add', differs in 'subtract'"),
        (failing("Frail", 3), False, "failed in"),
    ],
    ids=lambda value: value.name if isinstance(value, Provider) else "",
)
def test_judging(provider: Provider, trusted: bool, reason: str) -> None:
    verdict = judge(provider)
    assert verdict.trusted is trusted and verdict.reason.startswith(reason)
    assert verdict.identity == identity_of(provider)


def test_a_failure_in_a_run_outweighs_what_was_passed() -> None:
    assert failure(GOOD, "the device is lost") == Verdict(identity_of(GOOD), False, "the device is lost")


def test_a_provider_knows_version_and_driver() -> None:
    cpu = provider_named(CPU)
    assert cpu in discover() and cpu.runtime and cpu.driver
    assert identity_of(cpu).driver == cpu.driver
