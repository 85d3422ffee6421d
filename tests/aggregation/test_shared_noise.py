"""The noise that devices share keeps within the epsilon that was asked for, as it is really made."""

import os

import numpy as np
import pytest

from coterie.aggregation.private.shared_noise import measured, shared_noise
from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.choosing import choose
from coterie.privacy.dp.rounds import whole_cost
from coterie.privacy.secagg.encoding import Binding, encode
from coterie.privacy.secagg.ring_sections import ring_sections
from coterie.protocol.mechanisms import DISTRIBUTED, DistributedMechanism
from coterie.protocol.privacy import UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.sections import SectionSpec
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.secure_sections import SecureSection


@pytest.mark.parametrize("mechanism", DISTRIBUTED)
@pytest.mark.parametrize(
    ("epsilon", "length", "cohort", "rounds"),
    [(8.0, 10, 10, 1), (30.0, 10, 10, 1), (30.0, 1000, 10, 1), (2.0, 1000, 100, 20), (8.0, 20_000, 200, 5)],
)
def test_rounding_and_tails_are_within_the_epsilon_that_was_asked_for(
    mechanism: DistributedMechanism, epsilon: float, length: int, cohort: int, rounds: int
) -> None:
    privacy = UserLevel(clip=0.5, delta=1e-5, epsilon=epsilon, mechanism=mechanism)
    policy = RoundPolicy(rounds=rounds, cohort=cohort, min_updates=cohort // 2, weight_cap=1, evaluate_every=0)
    real = measured(privacy, SecureAggregation(), policy, length=length)
    found = total_cost(whole_cost(privacy, rounds, cohort=cohort, measured=real), privacy.delta).epsilon
    assert 0.97 * epsilon <= found <= epsilon


def test_a_multiplier_that_was_asked_for_is_kept() -> None:
    privacy = UserLevel(clip=0.5, delta=1e-5, noise_multiplier=1.5, mechanism="skellam")
    policy = RoundPolicy(rounds=2, cohort=10, min_updates=8, weight_cap=1, evaluate_every=0)
    terms = shared_noise(privacy, SecureAggregation(), policy, length=500, round=1)
    assert terms.contributors == 7
    assert terms.contributors * terms.variance >= 1.5**2 * terms.square * (1 - 1e-9)


def test_the_counts_beside_a_noised_vector_are_the_same_without_rows() -> None:
    """How many clients of a sum have rows would be told without noise."""
    spec = SectionSpec(name="delta", length=500, slices=((0, 500),))
    terms = choose("skellam", clip=1.0, noise_multiplier=2.0, length=500, clients=5, contributors=4)
    noised = SecureSection(
        name="delta",
        encoding="noised",
        values=terms.padded,
        bits=terms.bits,
        top=(1 << terms.bits) - 1,
        norm=terms.clip,
    )
    sections = (*ring_sections((), clients=5, weight_cap=1, norm=1.0), noised)
    counts = {
        tuple(
            encode(
                sections,
                (spec,),
                {"delta": vector},
                weight=weight,
                weight_cap=1,
                binding=Binding("p" * 64, "b" * 64),
                entropy=os.urandom,
                noise=terms.message,
            )
            .vector[: sections[0].values]
            .tolist()
        )
        for vector in (np.ones(500, np.float32), np.full(500, np.nan, np.float32))
        for weight in (0, 1)
    }
    assert counts == {(1, 1, 0, 0, 0)}
