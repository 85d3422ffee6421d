"""Noise for each group of a robust rule beside secrecy: what one device moves, how much is drawn, what is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from coterie.aggregation import secure
from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.fold import ring
from coterie.aggregation.fold.fold import at_once
from coterie.aggregation.plan.manifest import METRICS
from coterie.aggregation.private.central import CentralNoise, noised_groups
from coterie.aggregation.promises.claims import claim_of
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.errors import ExperimentError
from coterie.privacy.dp.noise import gaussian
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.ring import reduced
from coterie.protocol import ids
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.privacy import AdaptiveClip, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.simulation.assignment import Assignment
from coterie.simulation.simulation import simulate_full
from coterie.simulation.work import in_ring

GROUPS, SIZE = 3, 4
COHORT = GROUPS * SIZE
PRIVACY = UserLevel(clip=0.5, delta=1e-5, noise_multiplier=0.05)
EXPERIMENT = Experiment(
    name="groups",
    model=mlp((4, 8, 3)),
    schema=DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2)),
    loss=softmax_cross_entropy,
    optimizer=sgd(0.1),
    rounds=RoundPolicy(rounds=2, cohort=COHORT, min_updates=COHORT, weight_cap=1, evaluate_every=0),
    secure_aggregation=SecureAggregation(groups=GROUPS),
    reducer="median",
    privacy=PRIVACY,
)
Vector = npt.NDArray[np.float64]


def noise(seed: int = 1, **changes: Any) -> CentralNoise:
    fields: dict[str, Any] = {"privacy": PRIVACY, "round": 1, "rounds": 2, "expected": COHORT, "groups": GROUPS}
    return CentralNoise(**fields | changes, seed=bytes([seed] * 32))


def test_one_device_moves_one_group_by_no_more_than_its_noise_is_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through rings, decoding and all, with and without each device, the noise switched off for the eye of the test."""
    manifest, asked = compile_plan(EXPERIMENT).plan.manifest, SecureAggregation(groups=GROUPS)
    attempt = ids.new_id(ids.ATTEMPT, entropy=b"1" * 16)
    terms = secure.secure_terms(
        manifest, "train", attempt=attempt, secure=asked, privacy=PRIVACY, rounds=EXPERIMENT.rounds
    )
    seen: list[Vector] = []

    def rule(_: str, length: int, vectors: Sequence[Vector], state: ArraysByName) -> tuple[Vector, ArraysByName]:
        seen.extend(vectors)
        return np.zeros(length), {}

    def silence(*_: object) -> npt.NDArray[np.int64]:
        return np.zeros(manifest.layout.size, np.int64)

    monkeypatch.setattr(ring, "_ruled", rule)
    monkeypatch.setattr(gaussian, "_steps", silence)

    def words(device: int) -> npt.NDArray[np.uint32]:
        random = np.random.default_rng(device)
        delta = random.standard_normal(manifest.layout.size) * 10.0 ** (device - 4)
        asked = Assignment(
            experiment="groups", round=1, base="0" * 64, hyper={}, seed=3, weight_cap=1, secure=terms.model_dump_json()
        )
        sections: Mapping[str, Any] = {"delta": delta.astype(np.float32), METRICS: np.array([1.0, 0.5])}
        return np.frombuffer(in_ring(manifest, "train", device, sections, 1, asked)[0], np.uint32)

    mine = [words(device) for device in range(COHORT)]

    def groups_without(gone: int | None) -> list[Vector]:
        seen.clear()
        sums = [
            ring.Summed(
                reduced(
                    np.array([mine[d] for d in range(place, COHORT, GROUPS) if d != gone]).sum(0, np.uint32),
                    vector_spec(terms.sections),
                ),
                SIZE - (gone is not None and gone % GROUPS == place),
            )
            for place in range(GROUPS)
        ]
        fold_terms = ring.RingFoldTerms(
            terms=terms, base="0" * 64, groups=GROUPS, expected=COHORT, rule="median", central=noise()
        )
        ring.ring_fold(manifest, fold_terms).result(tuple(sums), {}, at_once)
        return list(seen)

    whole = groups_without(None)
    for gone in range(COHORT):
        moved = [
            SIZE * float(np.linalg.norm(one - other)) for one, other in zip(whole, groups_without(gone), strict=True)
        ]
        assert moved[gone % GROUPS] <= gaussian.sensitivity(PRIVACY.clip, 0.05 * PRIVACY.clip, manifest.layout.size)
        assert moved[gone % GROUPS] > (0.4 if gone > 5 else 0.0)
        assert all(move == 0.0 for place, move in enumerate(moved) if place != gone % GROUPS)


def test_each_group_has_all_of_the_noise_and_its_own() -> None:
    totals = [np.zeros(50_000)] * GROUPS
    found = noised_groups(totals, noise(), {})
    for one in found:
        assert float(one.std()) == pytest.approx(0.05 * PRIVACY.clip / SIZE, rel=0.02)
    together: Vector = np.corrcoef(np.array(found)) - np.eye(GROUPS)
    assert float(np.abs(together).max()) < 0.02
    again = noised_groups(totals, noise(), {})
    assert all(np.array_equal(one, other) for one, other in zip(found, again, strict=True))
    assert not np.array_equal(found[0], noised_groups(totals, noise(seed=2), {})[0])


REFUSED: dict[str, tuple[UserLevel, str]] = {
    "correlated": (
        UserLevel(clip=1.0, delta=1e-5, epsilon=8.0, mechanism="blt", max_participations=1),
        "mechanism='blt' in groups",
    ),
    "shared": (UserLevel(clip=1.0, delta=1e-5, epsilon=8.0, mechanism="skellam"), "mechanism='skellam' in groups"),
    "adaptive": (
        UserLevel(clip=1.0, delta=1e-5, noise_multiplier=0.5, adaptive=AdaptiveClip()),
        "an adaptive clip in groups",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_noise_that_is_made_for_one_sum_is_refused_in_groups(case: str) -> None:
    privacy, words = REFUSED[case]
    with pytest.raises(ExperimentError, match=words):
        replace(EXPERIMENT, privacy=privacy)


def test_groups_cost_what_one_sum_costs_and_the_claim_says_how() -> None:
    flat = replace(EXPERIMENT, reducer="mean", secure_aggregation=SecureAggregation())
    grouped, plain = claim_of(EXPERIMENT, length=100), claim_of(flat, length=100)
    assert grouped is not None and plain is not None
    assert grouped.neighbours == plain.neighbours
    assert any("each of 3 groups has all of the noise" in line for line in grouped.assumptions)
    assert any("the public number 4," in line for line in grouped.assumptions)


def test_a_robust_rule_over_noised_groups_learns_in_simulation() -> None:
    """Of twelve devices one sends the opposite of what it learned; and noise is as large as for so small a sum."""
    random = np.random.default_rng(5)
    clients: list[dict[str, Any]] = []
    for _ in range(COHORT):
        labels = random.integers(0, 3, 40)
        x = (np.eye(3, 4)[labels] + 0.1 * random.standard_normal((40, 4))).astype(np.float32)
        clients.append({"x": x, "y": labels})
    clients[4] = clients[4] | {"y": (clients[4]["y"] + 1) % 3}
    rounds = EXPERIMENT.rounds.model_copy(update={"rounds": 6})
    asked = replace(EXPERIMENT, rounds=rounds, evaluation=clients[0], epochs=3, optimizer=sgd(0.5))
    quiet = simulate_full(asked, clients)
    losses = [record.metrics["loss"] for record in quiet.history]
    assert all(record.state == "committed" and not record.training for record in quiet.history)
    assert losses[-1] < 0.8 * losses[0]
    loud = simulate_full(replace(asked, privacy=PRIVACY.but(noise_multiplier=50.0)), clients)
    away = np.concatenate([(loud.weights[name] - quiet.weights[name]).ravel() for name in quiet.weights])
    # A median of three normal numbers has 0.67 of their deviation.
    assert float(away.std()) == pytest.approx(0.67 * 50 * PRIVACY.clip / SIZE * np.sqrt(6), rel=0.3)
