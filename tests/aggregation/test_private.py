"""What secrecy and privacy exclude: each clash is refused by name, with the reason and a way out; and the defaults."""

from dataclasses import replace
from typing import Any

import pytest

from coterie.aggregation.combinations.privacy import EXAMPLE, LOCAL, USER
from coterie.aggregation.combinations.secure import SECURE
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.horizontal import IFCA, FedExP, FedNova, QFedAvg, Scaffold
from coterie.aggregation.private.secure_aggregation import FROM_COHORT
from coterie.aggregation.promises.promises import PROMISES, lines, mode_of
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.errors import ExperimentError, InputError
from coterie.protocol.privacy import AdaptiveClip, ExampleLevel, LocalLevel, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.wire import read_message

PLAIN = Experiment(
    name="private",
    model=mlp((4, 8, 3)),
    schema=DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2)),
    loss=softmax_cross_entropy,
    optimizer=sgd(0.1),
    rounds=RoundPolicy(rounds=4, cohort=20),
)
NOISE = UserLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0)


def policy(**changes: Any) -> RoundPolicy:
    return RoundPolicy.model_validate({"rounds": 4, "cohort": 20} | changes)


# What is asked → what of it is named.
SECURE_CLASHES: dict[str, tuple[dict[str, Any], str]] = {
    "buffered": ({"rounds": policy(mode="buffered")}, "mode='buffered'"),
    "losses": ({"rounds": policy(selection="power_of_choice(30)")}, "selection='power_of_choice(30)'"),
    "single updates": ({"reducer": "krum(2)"}, "reducer='krum(2)'"),
    "a bound of each": ({"reducer": "norm_bound(5)"}, "reducer='norm_bound(5)'"),
    "groups for nothing": ({"secure_aggregation": SecureAggregation(groups=4)}, "groups=4"),
    "tiny groups": ({"secure_aggregation": SecureAggregation(groups=10), "reducer": "median"}, "groups=10"),
    "uneven groups": (
        {
            "secure_aggregation": SecureAggregation(groups=4),
            "reducer": "median",
            "rounds": policy(over_selection=1.2),
        },
        "groups=4 with 24 tasks for a cohort of 20",
    ),
    "codecs": ({"codecs": ("int8",)}, "codecs=('int8',)"),
    "two clients": ({"rounds": policy(cohort=2), "secure_aggregation": True}, "cohort=2"),
    "two survivors": ({"rounds": policy(min_updates=2)}, "min_updates=2"),
    "two evaluators": ({"rounds": policy(evaluation_cohort=2)}, "evaluation_cohort=2"),
    "hopeless": ({"secure_aggregation": SecureAggregation(corrupt=0.5, dropout=0.5)}, "corrupt=0.5 and dropout=0.5"),
    "no range": ({"algorithm": QFedAvg(1.0)}, "'qfedavg'"),
    "weights": ({"rounds": policy(weight_cap=1 << 30)}, "weight_cap=1073741824"),
    "asked bits": ({"secure_aggregation": SecureAggregation(bits=16)}, "weight_cap=10000"),
}


@pytest.mark.parametrize("case", SECURE_CLASHES)
def test_what_secrecy_excludes_is_refused_naming_both_and_the_way_out(case: str) -> None:
    asked, named = SECURE_CLASHES[case]
    with pytest.raises(ExperimentError) as refused:
        replace(PLAIN, **asked)
    assert refused.value.reason == "experiment_combination"
    message = refused.value.message
    assert named in message and "secure aggregation" in message
    assert message.endswith("or set secure_aggregation=False.")
    if "secure_aggregation" not in asked:
        assert f"the default from a cohort of {FROM_COHORT}" in message
    allowed = replace(PLAIN, **(asked | {"secure_aggregation": False}))
    assert allowed.secure is None


UNBOUNDED = {"fedexp": FedExP(), "fednova": FedNova(), "ifca": IFCA(2), "qfedavg": QFedAvg(1.0)}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_methods_that_send_numbers_without_a_public_range_are_refused_by_their_section(name: str) -> None:
    with pytest.raises(ExperimentError, match=f"algorithm '{name}' .its section '.*'. is incompatible"):
        replace(PLAIN, algorithm=UNBOUNDED[name])


def test_secrecy_is_the_default_from_ten_clients_on_and_what_was_asked_below() -> None:
    assert replace(PLAIN, rounds=policy(cohort=9)).secure is None
    default = SecureAggregation(mode="semi_honest")
    assert replace(PLAIN, rounds=policy(cohort=10)).secure == default
    assert replace(PLAIN, rounds=policy(cohort=5), secure_aggregation=True).secure == default
    assert replace(PLAIN, secure_aggregation=False).secure is None
    mine = SecureAggregation(norm=3, mode="consistent")
    assert replace(PLAIN, secure_aggregation=mine).secure == mine
    assert replace(PLAIN, algorithm=Scaffold(clients=30)).secure is not None


@pytest.mark.parametrize(
    ("asked", "secure", "fewest"),
    [
        ({"cohort": 20}, None, 18),
        ({"cohort": 20}, SecureAggregation(dropout=0.3), 14),
        ({"cohort": 20, "min_updates": 20}, None, 20),
        ({"cohort": 20}, False, 20),
        # A device that is told nothing else takes part in no sum of fewer than five.
        ({"cohort": 6}, SecureAggregation(dropout=0.5), 5),
    ],
    ids=["default", "more drop-out", "as asked", "in the open", "no fewer than devices take part with"],
)
def test_a_round_outlives_the_drop_out_that_secrecy_counts_on(
    asked: dict[str, Any], secure: SecureAggregation | bool | None, fewest: int
) -> None:
    rounds = RoundPolicy.model_validate({"rounds": 4, **asked})
    made = Experiment(
        name="private",
        model=PLAIN.model,
        schema=PLAIN.schema,
        loss=PLAIN.loss,
        optimizer=PLAIN.optimizer,
        rounds=rounds,
        secure_aggregation=secure,
    )
    assert made.rounds.min_updates == fewest


def test_robust_rules_work_on_groups_and_count_groups() -> None:
    grouped = replace(PLAIN, reducer="trimmed_mean(1)", secure_aggregation=SecureAggregation(groups=5))
    assert grouped.secure is not None and grouped.secure.groups == 5
    with pytest.raises(ExperimentError, match="at least 7 updates"):
        replace(PLAIN, reducer="trimmed_mean(3)", secure_aggregation=SecureAggregation(groups=5))


NOISED = policy(weight_cap=1, evaluate_every=0)
USER_CLASHES: dict[str, tuple[dict[str, Any], str]] = {
    "weights": ({"rounds": policy(evaluate_every=0)}, "weight_cap=10000"),
    "evaluation": ({"rounds": policy(weight_cap=1)}, "evaluate_every=1"),
    "reducer": ({"reducer": "median", "secure_aggregation": False}, "reducer='median'"),
    "buffered": (
        {"rounds": policy(weight_cap=1, evaluate_every=0, mode="buffered"), "secure_aggregation": False},
        "mode='buffered'",
    ),
    "losses": (
        {"rounds": policy(weight_cap=1, evaluate_every=0, selection="oort"), "secure_aggregation": False},
        "selection='oort'",
    ),
    "variates": ({"algorithm": Scaffold(clients=30)}, "algorithm 'scaffold'"),
    "shares in the open": (
        {"privacy": NOISE.but(mechanism="skellam"), "secure_aggregation": False},
        "mechanism='skellam'",
    ),
    "bits in shares": (
        {"privacy": NOISE.but(mechanism="discrete_gaussian", adaptive=AdaptiveClip())},
        "mechanism='discrete_gaussian'",
    ),
    "groups": ({"reducer": "mean", "secure_aggregation": SecureAggregation(groups=4)}, "groups"),
    "sizes that tell": ({"codecs": ("topk:0.01+ef", "int8"), "secure_aggregation": False}, "codecs=('topk:0.01+ef',)"),
    "sizes that tell of levels": ({"codecs": ("qsgd:4+rice",), "secure_aggregation": False}, "codecs=('qsgd:4+rice',)"),
}


@pytest.mark.parametrize("case", USER_CLASHES)
def test_what_noise_excludes_is_refused_with_what_to_choose(case: str) -> None:
    asked, named = USER_CLASHES[case]
    with pytest.raises(ExperimentError) as refused:
        replace(PLAIN, **({"privacy": NOISE, "rounds": NOISED} | asked))
    assert refused.value.reason == "experiment_combination"
    assert named in refused.value.message


def test_every_row_of_the_tables_says_why_and_what_instead() -> None:
    for clash in (*SECURE, *USER, *LOCAL, *EXAMPLE):
        assert clash.because and clash.instead
        assert not clash.because.endswith(".") and not clash.instead.endswith(".")
    assert len({(clash.because, clash.instead) for clash in (*SECURE, *USER)}) >= len((*SECURE, *USER)) - 4


ROWS_HIDDEN = ExampleLevel(clip=1.0, delta=1e-5, epsilon=3.0, rows=100)
WITH_ROWS_HIDDEN: dict[str, tuple[dict[str, Any], str]] = {
    "rows": ({"privacy": ROWS_HIDDEN.but(rows=None)}, "no number of rows"),
    "weights": ({"rounds": policy(evaluate_every=0)}, "weight_cap="),
    "evaluations": ({"rounds": policy(weight_cap=1, evaluate_every=1)}, "evaluate_every=1"),
    "losses": ({"rounds": policy(weight_cap=1, evaluate_every=0, selection="oort")}, "selection='oort'"),
    "fair": ({"algorithm": QFedAvg(1.0)}, "algorithm 'qfedavg'"),
    "clusters": ({"algorithm": IFCA(2)}, "algorithm 'ifca'"),
    "external": (
        {"model": ExternalModel({"w": (2,)}), "loss": None, "optimizer": None},
        "ExternalModel does not have",
    ),
}


@pytest.mark.parametrize("case", WITH_ROWS_HIDDEN)
def test_what_private_steps_exclude_is_refused_with_what_to_choose(case: str) -> None:
    changed, named = WITH_ROWS_HIDDEN[case]
    with pytest.raises(ExperimentError) as refused:
        replace(PLAIN, **({"privacy": ROWS_HIDDEN, "rounds": NOISED, "secure_aggregation": False} | changed))
    assert refused.value.reason == "experiment_combination"
    assert named in refused.value.message


OWN_NOISE = LocalLevel(mechanism="gaussian", epsilon=3.0, delta=1e-5)
WITH_OWN_NOISE: dict[str, tuple[dict[str, Any], str]] = {
    "weights": ({"rounds": policy(evaluate_every=0)}, "weight_cap="),
    "evaluations": ({"rounds": policy(weight_cap=1, evaluate_every=1)}, "evaluate_every=1"),
    "losses": ({"rounds": policy(weight_cap=1, evaluate_every=0, selection="oort")}, "selection='oort'"),
    "sections": ({"algorithm": FedNova()}, "algorithm 'fednova'"),
}


@pytest.mark.parametrize("case", WITH_OWN_NOISE)
def test_what_noise_of_the_device_excludes_is_refused_by_name(case: str) -> None:
    changed, named = WITH_OWN_NOISE[case]
    with pytest.raises(ExperimentError) as refused:
        replace(PLAIN, **({"privacy": OWN_NOISE, "rounds": NOISED, "secure_aggregation": False} | changed))
    assert refused.value.reason == "experiment_combination"
    assert named in refused.value.message


def test_noise_of_the_device_goes_with_secret_sums_and_in_the_open() -> None:
    for secure in (True, False):
        assert replace(PLAIN, privacy=OWN_NOISE, rounds=NOISED, secure_aggregation=secure).privacy == OWN_NOISE


def test_noise_needs_the_rest_that_it_was_made_for() -> None:
    apart = UserLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, mechanism="toeplitz", min_separation=3)
    with pytest.raises(ExperimentError, match="rest_rounds=2"):
        replace(PLAIN, privacy=apart, rounds=NOISED)
    rested = policy(weight_cap=1, evaluate_every=0, rest_rounds=2)
    assert replace(PLAIN, privacy=apart, rounds=rested).privacy == apart


BAD_FIELDS: dict[str, Any] = {
    "norm": 0.0, "bits": 17, "mode": "honest", "corrupt": 0.6, "dropout": -0.1, "groups": 1, "phase_s": float("nan"),
}  # fmt: skip


@pytest.mark.parametrize("field", BAD_FIELDS)
def test_a_field_that_cannot_be_is_refused_by_name(field: str) -> None:
    with pytest.raises(InputError, match=f"This is not a valid SecureAggregation: /{field}: ") as refused:
        SecureAggregation(**{field: BAD_FIELDS[field]})
    assert refused.value.reason == "message_invalid"


def test_it_reads_what_it_writes_and_nothing_else() -> None:
    mine = SecureAggregation(norm=3, bits=8, groups=4, mode="consistent", phase_s=5)
    assert SecureAggregation.model_validate_json(mine.model_dump_json()) == mine
    with pytest.raises(InputError, match="/norms: there is no such field") as refused:
        read_message(SecureAggregation, {"norm": 1.0, "norms": 2.0})
    assert refused.value.hint == "Did you mean norm?"


def test_every_mode_says_what_it_promises_and_what_it_does_not() -> None:
    grouped = replace(PLAIN, reducer="median", secure_aggregation=SecureAggregation(groups=4))
    modes = {
        mode_of(replace(PLAIN, secure_aggregation=False)): "open",
        mode_of(PLAIN): "semi_honest",
        mode_of(replace(PLAIN, secure_aggregation=SecureAggregation(mode="consistent"))): "consistent",
        mode_of(grouped): "groups",
    }
    assert set(modes) == set(modes.values()) == set(PROMISES)
    for promise in PROMISES.values():
        assert promise.promises and promise.does_not
    said = lines(PLAIN)
    assert f"+ {PROMISES['semi_honest'].promises[0]}" in said and f"- {PROMISES['semi_honest'].does_not[0]}" in said
