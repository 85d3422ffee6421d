"""What a run says of itself: unit, both neighbouring relations, adversary, assumptions; nothing that is not so."""

import json
from typing import Any

import pytest

from coterie.errors import ExperimentError
from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.events import Concentrated
from coterie.privacy.dp.rounds import Draws, RoundCost, whole_cost
from coterie.privacy.dp.statement import Trust, statement, trusted
from coterie.protocol.conversion import to_json
from coterie.protocol.mechanisms import DISTRIBUTED
from coterie.protocol.privacy import AdaptiveClip, ExampleLevel, LocalLevel, Privacy, UserLevel
from coterie.protocol.secagg import SecureMode


def user(**given: Any) -> UserLevel:
    asked: dict[str, Any] = {"clip": 1.0, "delta": 1e-5, "epsilon": 8.0, **given}
    return UserLevel(**asked)


LOCAL = LocalLevel(mechanism="gaussian", epsilon=2.0, delta=1e-6)
ROWS = ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0)
# Whoever makes the noise alone is whom it rests on. Shared noise rests on the cohort where the coordinator may lie.
TRUSTED: tuple[tuple[Privacy, SecureMode | None, Trust], ...] = (
    *((user(mechanism=name), "consistent", "cohort") for name in DISTRIBUTED),
    *((user(mechanism=name), "semi_honest", "coordinator") for name in DISTRIBUTED),
    *((user(mechanism=name), None, "coordinator") for name in DISTRIBUTED),
    *((user(), mode, "coordinator") for mode in (None, "semi_honest", "consistent")),
    *((ROWS, mode, "device") for mode in (None, "semi_honest", "consistent")),
    *((LOCAL, mode, "device") for mode in (None, "semi_honest", "consistent")),
)
CASES: dict[str, tuple[Privacy, str, str]] = {
    "central": (user(), "one device", "coordinator"),
    "adaptive": (user(adaptive=AdaptiveClip()), "one device", "coordinator"),
    "correlated": (user(mechanism="blt", min_separation=5), "one device", "coordinator"),
    "distributed": (user(mechanism="skellam"), "one device", "cohort"),
    "rows": (ROWS, "one row", "device"),
    "local": (LOCAL, "a device's update", "device"),
    "pure": (LocalLevel(mechanism="sign_ds", epsilon=2.0), "a device's update", "device"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_statement_has_everything_that_a_claim_needs(name: str) -> None:
    privacy, unit, trusts = CASES[name]
    said = statement(privacy, 20, cohort=200, mode="consistent" if trusts == "cohort" else None, draws=Draws(0.1, 4))
    added, replaced = said.neighbours
    assert unit in said.unit and said.trusts == trusts
    assert 0 < added.epsilon <= replaced.epsilon < float("inf")
    assert said.claim is added
    assert said.adversary and said.released and said.assumptions and said.caveats
    text = "\n".join(said.lines())
    assert f"epsilon {added.epsilon:.4g} at delta {added.delta:g}" in text
    assert json.loads(json.dumps(to_json(said), allow_nan=False))["neighbours"][0]["epsilon"] == added.epsilon


def test_no_amplification_is_claimed_for_devices_that_check_in() -> None:
    """Two of a million devices a round cost what two of two would."""
    privacy = user(noise_multiplier=1.0, epsilon=None)
    few, many = (statement(privacy, 5, cohort=cohort) for cohort in (2, 10**6))
    assert few.claim.epsilon == many.claim.epsilon == total_cost(whole_cost(privacy, 5, cohort=2), 1e-5).epsilon
    assert "no amplification by sampling: devices check in when they like" in few.assumptions


def test_what_the_coordinator_sees_is_said() -> None:
    central, distributed = (
        statement(user(mechanism=name), 3, cohort=100, mode="consistent") for name in ("gaussian", "skellam")
    )
    assert "but not the coordinator" in central.adversary and "the coordinator included" in distributed.adversary
    assert "the coordinator adds the noise" in central.assumptions[0]
    assert "at least min_updates devices" in distributed.assumptions[0]


@pytest.mark.usefixtures("by_renyi")
@pytest.mark.parametrize(("privacy", "mode", "trusts"), TRUSTED)
def test_a_statement_trusts_whoever_could_break_it(privacy: Privacy, mode: SecureMode | None, trusts: Trust) -> None:
    said = statement(privacy, 5, cohort=100, mode=mode, draws=Draws(0.1, 4))
    assert said.trusts == trusted(privacy, mode) == trusts


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_shared_noise_in_semi_honest_says_that_the_coordinator_must_follow_the_protocol(name: Any) -> None:
    kept, weaker = (statement(user(mechanism=name), 5, cohort=100, mode=mode) for mode in ("consistent", "semi_honest"))
    assert kept.claim == weaker.claim, "who is trusted changes, and not what is counted"
    assert "the coordinator included" in kept.adversary and "while it follows the protocol" in weaker.adversary
    assert any("one device's vector with that device's share of the noise alone" in text for text in weaker.assumptions)
    assert not any("follows the protocol" in text for text in kept.assumptions)


def test_every_release_is_named() -> None:
    assert not any("needed no clipping" in text for text in statement(user(), 3, cohort=100).released)
    adaptive = statement(user(adaptive=AdaptiveClip()), 3, cohort=100)
    assert any("needed no clipping: noised, in the price" in text for text in adaptive.released)


def test_what_noise_really_costs_is_what_is_stated() -> None:
    privacy = user(mechanism="discrete_gaussian", max_participations=3)
    dear = statement(privacy, 10, cohort=100, mode="consistent", measured=RoundCost(Concentrated(1.0)))
    assert dear.claim.epsilon == total_cost([Concentrated(3.0)], 1e-5).epsilon > 8.0


def test_rows_need_their_draws() -> None:
    with pytest.raises(ExperimentError, match="Draws"):
        statement(CASES["rows"][0], 3, cohort=10)
