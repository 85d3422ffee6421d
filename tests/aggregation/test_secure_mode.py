"""In which mode an experiment aggregates: the one that is asked for, else the one that its noise needs."""

from dataclasses import replace
from typing import Any

import pytest

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.private.secure_aggregation import mode_for, settled
from coterie.aggregation.promises.claims import claim_of
from coterie.aggregation.promises.promises import mode_of
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.errors import ExperimentError, InputError
from coterie.protocol.mechanisms import DISTRIBUTED
from coterie.protocol.privacy import ExampleLevel, LocalLevel, Privacy, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.secure_aggregation import SecureAggregation

PLAIN = Experiment(
    name="mode",
    model=mlp((4, 8, 3)),
    schema=DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2)),
    loss=softmax_cross_entropy,
    optimizer=sgd(0.1),
    rounds=RoundPolicy(rounds=4, cohort=20, weight_cap=1, evaluate_every=0),
)
LENGTH = 67


def user(mechanism: Any) -> UserLevel:
    return UserLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, mechanism=mechanism)


SHARED: dict[str, Privacy] = {name: user(name) for name in DISTRIBUTED}
OTHERS: dict[str, Privacy | None] = {
    "none": None,
    "gaussian": user("gaussian"),
    "rows": ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=500),
    "local": LocalLevel(mechanism="gaussian", epsilon=8.0, delta=1e-6),
}
TRUSTED = {"rows": "device", "local": "device"}


@pytest.mark.parametrize("asked", [None, True, SecureAggregation(), SecureAggregation(mode=None, corrupt=0.2)], ids=str)
@pytest.mark.parametrize("name", SHARED)
def test_shared_noise_makes_consistent_the_default(name: str, asked: Any) -> None:
    made = replace(PLAIN, privacy=SHARED[name], secure_aggregation=asked)
    assert made.secure is not None and made.secure.mode == mode_of(made) == "consistent"
    claim = claim_of(made, length=LENGTH)
    assert claim is not None and claim.trusts == "cohort"


@pytest.mark.usefixtures("by_renyi")
@pytest.mark.parametrize("asked", [None, True, SecureAggregation()], ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_other_experiments_keep_semi_honest(name: str, asked: Any) -> None:
    made = replace(PLAIN, privacy=OTHERS[name], secure_aggregation=asked)
    assert made.secure is not None and made.secure.mode == mode_of(made) == "semi_honest"
    claim = claim_of(made, length=LENGTH)
    assert claim is None or claim.trusts == TRUSTED.get(name, "coordinator")


@pytest.mark.usefixtures("by_renyi")
@pytest.mark.parametrize("mode", ["semi_honest", "consistent"])
@pytest.mark.parametrize("name", [*SHARED, *OTHERS])
def test_a_mode_that_is_asked_for_is_kept_and_the_claim_says_whom_it_trusts(name: str, mode: Any) -> None:
    privacy = {**OTHERS, **SHARED}[name]
    made = replace(PLAIN, privacy=privacy, secure_aggregation=SecureAggregation(mode=mode))
    assert made.secure == SecureAggregation(mode=mode)
    claim = claim_of(made, length=LENGTH)
    kept = "cohort" if name in SHARED and mode == "consistent" else TRUSTED.get(name, "coordinator")
    assert (None if claim is None else claim.trusts) == (None if privacy is None else kept)


def test_the_wire_carries_the_mode_that_was_settled_and_takes_it_back() -> None:
    made = replace(PLAIN, privacy=SHARED["skellam"])
    assert made.secure is not None
    assert made.secure.mode == "consistent"
    assert SecureAggregation.model_validate_json(made.secure.model_dump_json()) == made.secure
    bare = SecureAggregation.model_validate_json(SecureAggregation().model_dump_json())
    assert (
        bare.mode is None
        and mode_for(bare, SHARED["skellam"]) == "consistent"
        and mode_for(bare, None) == "semi_honest"
    )
    assert settled(settled(bare, SHARED["skellam"]), None).mode == "consistent", "what is settled stays"


def test_fractions_that_only_semi_honest_withstands_are_refused_naming_the_mode() -> None:
    few = RoundPolicy(rounds=4, cohort=10, min_updates=10, weight_cap=1, evaluate_every=0)
    asked: dict[str, Any] = {"rounds": few, "privacy": SHARED["skellam"]}
    with pytest.raises(ExperimentError, match="among 10 clients in mode='consistent'"):
        replace(PLAIN, **asked, secure_aggregation=SecureAggregation(corrupt=0.3, dropout=0.3))
    weaker = SecureAggregation(corrupt=0.3, dropout=0.3, mode="semi_honest")
    assert replace(PLAIN, **asked, secure_aggregation=weaker).secure == weaker


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="/mode: Input should be 'semi_honest' or 'consistent'"):
        SecureAggregation(mode="malicious")  # pyright: ignore[reportArgumentType]
