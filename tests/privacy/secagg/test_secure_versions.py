"""From masked vectors to a version: the machines' sum is the simulation's, bit for bit, and so is the version."""

from pathlib import Path
from typing import Any

import attempt_kit as kit
import numpy as np
import pytest

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.fold.ring import RingFoldTerms, Summed, ring_fold
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.secure import SecureResult, secure_aggregate, secure_evaluation, secure_terms
from coterie.aggregation.server_optimizers import server_sgd
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.errors import UpdateRefused
from coterie.privacy.secagg import unmask
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.ring import RingVector, reduced, unpack
from coterie.privacy.secagg.server import plan_masks
from coterie.protocol import ids, spread
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.metrics import METRICS, MetricSums
from coterie.protocol.privacy import Privacy, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.secagg import SecureMode, SecureTerms
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.tensors import encode_tensors, read_file
from coterie.simulation.assignment import Assignment
from coterie.simulation.collect import Aggregate, Collector, in_secret
from coterie.simulation.shares import WorkShares
from coterie.simulation.versions import Versions
from coterie.simulation.work import Trained, in_ring

CLIENTS = 7
POLICY = RoundPolicy(rounds=2, cohort=CLIENTS, min_updates=5, weight_cap=100)
EXPERIMENT = Experiment(
    name="sums",
    model=mlp((4, 8, 3)),
    schema=DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2)),
    loss=softmax_cross_entropy,
    optimizer=sgd(0.1),
    rounds=POLICY,
    secure_aggregation=True,
)
COMPILED = compile_plan(EXPERIMENT)
MANIFEST: Manifest = COMPILED.plan.manifest
BASE = encode_tensors(COMPILED.initial)
DIGEST = sha256_hex(BASE)


def terms(kind: Any = "train", privacy: Privacy | None = None, **changes: Any) -> SecureTerms:
    policy = POLICY.model_copy(update={"weight_cap": 1}) if privacy else POLICY
    secure = SecureAggregation(norm=2.0, dropout=0.2, **changes)
    return secure_terms(
        MANIFEST,
        kind,
        attempt=ids.new_id(ids.ATTEMPT, entropy=b"1" * 16),
        secure=secure,
        privacy=privacy,
        rounds=policy,
    )


def sections(index: int) -> tuple[dict[str, Any], int]:
    """What the device of this number has trained, and its weight."""
    random = np.random.default_rng(index)
    delta = (random.standard_normal(MANIFEST.layout.size) * 0.05).astype(np.float32)
    weight = 10 + index
    return {"delta": delta, METRICS: np.array([weight, 0.5 * weight], np.float64)}, weight


def words(agreed: SecureTerms, index: int) -> bytes:
    """What it adds to the sum."""
    vectors, weight = sections(index)
    asked = Assignment(
        experiment="sums", round=1, base=DIGEST, hyper={}, seed=3, weight_cap=100, secure=agreed.model_dump_json()
    )
    return in_ring(MANIFEST, "train", index, vectors, min(weight, agreed.weight_cap), asked)[0]


def simulated(agreed: SecureTerms, who: list[int]) -> Aggregate:
    fold_terms = RingFoldTerms(
        terms=agreed, base=DIGEST, groups=1, expected=CLIENTS, rule="mean", central=None, fewest=2
    )
    reading = in_secret(dict.fromkeys(range(CLIENTS), 0))
    collector = Collector(MANIFEST, DIGEST, ring_fold(MANIFEST, fold_terms), reading, WorkShares(1))
    for index in who:
        vectors, weight = sections(index)
        trained = Trained(number=index, task="t", weight=weight, steps=1, size=0, update=words(agreed, index))
        assert vectors and collector.add(trained)
    versions = Versions(MANIFEST.layout, None)
    assert versions.add(MANIFEST.layout.flatten(COMPILED.initial)) == DIGEST
    return collector.result(versions, server_sgd(), {})


def aggregated(agreed: SecureTerms, sums: list[Summed], folder: Path, **changes: Any) -> SecureResult:
    base = folder / "base"
    base.write_bytes(BASE)
    arguments: dict[str, Any] = {"expected": CLIENTS, "server": server_sgd(), "server_state": None} | changes
    return secure_aggregate(MANIFEST, terms=agreed, base=base, sums=sums, out=folder / "out", **arguments)


def machines(agreed: SecureTerms, monkeypatch: pytest.MonkeyPatch) -> tuple[RingVector, list[int]]:
    """The sum of an attempt of which one client drops out before it masks and one after, and who is in it."""
    mine = {index: np.frombuffer(words(agreed, index), np.uint32) for index in range(CLIENTS)}
    monkeypatch.setattr(kit, "vector", mine.__getitem__)
    attempt = kit.run(kit.start(CLIENTS, agreed), {"masked": (2,), "reveal": (4,)})
    spec = vector_spec(agreed.sections)
    total = np.zeros(spec.length, np.uint32)
    for place in attempt.coordinator.survivors:
        total += unpack(attempt.masked[place], spec)
    assert (total != 0).mean() > 0.9
    unmask.remove(total, plan_masks(attempt.coordinator))
    return reduced(total, spec), sorted(attempt.at(place).index for place in attempt.coordinator.survivors)


@pytest.mark.parametrize("mode", kit.MODES)
@pytest.mark.parametrize(
    "privacy",
    [None, UserLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, mechanism="discrete_gaussian")],
    ids=["plain", "noised"],
)
def test_the_machines_make_the_sum_and_the_version_of_the_simulation(
    mode: SecureMode, privacy: Privacy | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    agreed = terms(mode=mode, privacy=privacy)
    total, who = machines(agreed, monkeypatch)
    assert len(who) == CLIENTS - 1
    result = aggregated(agreed, [Summed(total, len(who))], tmp_path)
    made = simulated(agreed, who)
    assert result.version == made.version
    assert (result.metrics, result.clipped) == (made.metrics, made.clipped)
    if privacy is None:
        assert result.metrics["examples"] == sum(10 + index for index in who)
        weights = [10 + index for index in who]
        mean = sum(w * sections(n)[0]["delta"].astype(np.float64) for n, w in zip(who, weights, strict=True))
        moved = MANIFEST.layout.flatten(read_file(Path(result.weights))) - MANIFEST.layout.flatten(COMPILED.initial)
        np.testing.assert_allclose(moved, mean / sum(weights), atol=2e-4)
    else:
        assert (result.metrics, result.weight, result.clients) == ({}, CLIENTS, CLIENTS)


def test_a_robust_rule_over_groups_passes_over_a_group_that_lies(tmp_path: Path) -> None:
    agreed = terms(groups=2)
    spec = vector_spec(agreed.sections)
    honest = [reduced(np.frombuffer(words(agreed, index), np.uint32), spec) for index in (0, 1, 2)]
    sums = [Summed(one, 1) for one in honest]
    far = np.frombuffer(words(agreed, 3), np.uint32).copy()
    far[spec.places()["delta"]] = 0
    middle = aggregated(agreed, [*sums, Summed(far, 1)], tmp_path, rule="median")
    alone = aggregated(agreed, sums, tmp_path, rule="median")
    mean = aggregated(agreed, [*sums, Summed(far, 1)], tmp_path, rule="mean")
    assert middle.step_norm < 2 * alone.step_norm < mean.step_norm
    assert middle.clients == 4 and middle.metrics["examples"] == 10 + 11 + 12 + 13


def test_sums_without_weight_or_clients_make_no_version(tmp_path: Path) -> None:
    agreed = terms()
    spec = vector_spec(agreed.sections)
    nobody = np.zeros(spec.length, np.uint32)
    nobody[0] = 3
    for sums, code in (
        ([], "nothing_usable"),
        ([Summed(nobody, 3)], "zero_weight"),
        ([Summed(nobody, 4)], "bad_clients"),
    ):
        with pytest.raises(UpdateRefused) as refused:
            aggregated(agreed, sums, tmp_path)
        assert refused.value.reason == code
        assert not (tmp_path / "out").exists()


def test_a_survey_comes_out_as_the_sum_of_what_clients_measured() -> None:
    agreed = terms("evaluate")
    assert agreed.noise is None and agreed.min_clients == 5
    spec = vector_spec(agreed.sections)
    total = np.zeros(spec.length, np.uint32)
    expected = MetricSums()
    for index in range(5):
        sums = MetricSums({"examples": 4.0 + index, "loss": 2.25 * index + 1})
        vectors = {METRICS: sums.to_vector(MANIFEST.metrics), spread.SECTION: spread.histogram(MANIFEST.metrics, sums)}
        asked = Assignment(
            experiment="sums", round=1, base=DIGEST, hyper={}, seed=3, weight_cap=100, secure=agreed.model_dump_json()
        )
        total += np.frombuffer(in_ring(MANIFEST, "evaluate", index, vectors, 4 + index, asked)[0], np.uint32)
        expected = expected.merge(sums).merge(
            spread.count_sums(MANIFEST.metrics, spread.histogram(MANIFEST.metrics, sums))
        )
    found = secure_evaluation(MANIFEST, terms=agreed, base=DIGEST, total=reduced(total, spec), survivors=5)
    assert found.sums.keys() == expected.sums.keys()
    assert found.sums == pytest.approx(expected.sums, abs=1e-4)
    with pytest.raises(UpdateRefused):
        secure_evaluation(MANIFEST, terms=agreed, base=DIGEST, total=reduced(total, spec), survivors=4)


def test_terms_say_how_many_may_vanish_and_keep_the_clip_after_rounding() -> None:
    plain = terms()
    assert (plain.min_clients, plain.max_clients, plain.weight_cap) == (5, 7, 100)
    grouped = terms(groups=2)
    assert (grouped.min_clients, grouped.max_clients) == (3, 4)
    central = terms(privacy=UserLevel(clip=0.5, delta=1e-5, noise_multiplier=1.0))
    assert [section.name for section in central.sections] == ["counts", "delta"]
    norm = central.sections[1].norm
    assert norm is not None and 0.499 < norm < 0.5
    shared = terms(privacy=UserLevel(clip=0.5, delta=1e-5, noise_multiplier=1.0, mechanism="skellam"))
    assert shared.noise is not None and shared.noise.clip == 0.5
    assert shared.noise.contributors <= shared.min_clients
