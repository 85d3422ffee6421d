"""Audits of whole simulated runs, by their defaults, whose noise is what was promised, half of it, or none."""

import hashlib
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from coterie.aggregation.horizontal import FedDyn
from coterie.aggregation.private import central
from coterie.compute.nn.zoo import mlp
from coterie.errors import ArgumentValueError, ExperimentError
from coterie.privacy.dp import clipping, distributed
from coterie.privacy.dp.noise import gaussian
from coterie.protocol.conversion import to_json
from coterie.protocol.mechanisms import DISTRIBUTED, DistributedMechanism
from coterie.protocol.privacy import AdaptiveClip, ExampleLevel, LocalLevel, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.simulation.audited import ROUNDS
from coterie.simulation.canaries import CanaryAudit, audit_by_canaries

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "simulation"))
kit: Any = import_module("simulation_kit")

Mechanism = Literal["gaussian", DistributedMechanism]
CLIENTS = [kit.rows(20, seed) for seed in range(5)]


@contextmanager
def noise_times(factor: float) -> Generator[None]:
    """Every sampler of noise on sums draws this many times what it is asked for."""
    whole: Any = vars(gaussian)["_steps"]
    share = distributed.share

    def fewer_steps(*asked: Any) -> Any:
        return np.rint(factor * whole(*asked)).astype(np.int64)

    def smaller_share(mechanism: Any, count: int, variance: float, source: Any) -> Any:
        # Steps of shared noise are coarse, so that a smaller variance is drawn instead.
        return share(mechanism, count, variance * factor**2, source) if factor else np.zeros(count, np.int64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gaussian, "_steps", fewer_steps)
        patch.setattr(distributed, "share", smaller_share)
        yield


def _study(privacy: Any, *, seed: int = 0, rounds: int = 2, rest: int = 0, secure: Any = None, **changes: Any) -> Any:
    """An experiment of 2403 weights. Each seed has its own noise."""
    if secure is None:
        secure = isinstance(privacy, UserLevel) and privacy.mechanism in DISTRIBUTED
    policy = RoundPolicy(rounds=rounds, cohort=40, weight_cap=1, evaluate_every=0, rest_rounds=rest)
    common: dict[str, Any] = {"model": mlp((4, 300, 3)), "epochs": 1, "rounds": policy, "seed": seed}
    return kit.experiment(**common, privacy=privacy, secure_aggregation=secure, **changes)


def _audit(privacy: Any, **changes: Any) -> CanaryAudit:
    return audit_by_canaries(_study(privacy, **changes), CLIENTS, entropy=_stream(repr((privacy, changes))))


def _stream(name: str) -> Callable[[int], bytes]:
    """Entropy that a test can repeat."""
    calls = iter(range(1000))
    return lambda count: hashlib.shake_128(f"{name}/{next(calls)}".encode()).digest(count)


def _user(epsilon: float, mechanism: Any = "gaussian", **more: Any) -> UserLevel:
    return UserLevel(clip=1.0, delta=1e-5, epsilon=epsilon, mechanism=mechanism, **more)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_half_of_the_noise_is_caught_and_all_of_it_is_not_accused(epsilon: float) -> None:
    """Three runs each, every one with noise and canaries of its own; test_marks.py has the rates of many."""
    with noise_times(0.5):
        assert [_audit(_user(epsilon), seed=seed).verdict for seed in range(3)] == ["refuted"] * 3
    right = [_audit(_user(epsilon), seed=seed) for seed in range(3)]
    assert [found.verdict for found in right] == ["not refuted"] * 3
    assert all(found.cap > 1.5 * epsilon and found.claimed == pytest.approx(epsilon) for found in right)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("mechanism", ["gaussian", *DISTRIBUTED])
def test_noise_that_is_not_there_is_always_caught(mechanism: Mechanism, epsilon: float) -> None:
    with noise_times(0.0):
        found = _audit(_user(epsilon, mechanism))
    assert found.verdict == "refuted" and found.epsilon > 5 * epsilon
    # Nothing is assumed of the noise by guesses, and they see it too.
    assert found.guesses is not None and found.guesses.epsilon > epsilon


MORE: dict[str, tuple[UserLevel, dict[str, Any]]] = {
    "discrete_gaussian": (_user(4.0, "discrete_gaussian"), {}),
    "skellam": (_user(4.0, "skellam"), {}),
    "under masks": (_user(4.0), {"secure": True}),
    "adaptive": (_user(4.0, adaptive=AdaptiveClip()), {"rounds": 4}),
    "schedule": (_user(4.0, schedule=(1.0, 2.0, 0.5)), {"rounds": 3}),
    "toeplitz": (_user(4.0, "toeplitz", max_participations=1), {"rounds": 30}),
    "banded": (_user(4.0, "banded", min_separation=2), {"rounds": 4, "rest": 1}),
    "blt": (_user(4.0, "blt", min_separation=2), {"rounds": 9, "rest": 1}),
}


@pytest.mark.parametrize("name", MORE)
def test_half_of_the_noise_is_caught_whoever_makes_it_and_however_it_is_correlated(name: str) -> None:
    privacy, changes = MORE[name]
    with noise_times(0.5):
        assert _audit(privacy, **changes).verdict == "refuted"
    right = _audit(privacy, **changes)
    assert right.verdict == "not refuted"
    assert right.marks is not None and right.rounds == min(changes.get("rounds", 2), ROUNDS)


def test_a_clip_that_does_not_clip_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_it_is(vector: Any, bound: float) -> clipping.ClippedVector:
        return clipping.ClippedVector(np.asarray(vector, np.float64), False)

    monkeypatch.setattr(central, "clip", as_it_is)
    assert _audit(_user(1.0)).verdict == "refuted"


def test_rounds_are_all_run_where_the_noise_does_not_depend_on_them() -> None:
    found = _audit(UserLevel(clip=1.0, delta=1e-5, noise_multiplier=4.0), rounds=6)
    assert found.rounds == 6 and found.verdict == "not refuted"
    few = audit_by_canaries(_study(_user(4.0), rounds=6), CLIENTS, rounds=1, entropy=_stream("one round"))
    assert few.rounds == 1 and few.claimed == pytest.approx(4.0)


def test_too_few_canaries_cannot_tell_and_no_more_are_taken_than_the_model_has_room_for() -> None:
    few = audit_by_canaries(_study(_user(1.0)), CLIENTS, canaries=40, entropy=_stream("few"))
    assert few.verdict == "cannot tell" and few.because is not None and "half the size" in few.because
    small = audit_by_canaries(kit.experiment(**_small(1.0)), CLIENTS, entropy=_stream("small"))
    assert small.canaries == 66 and small.verdict == "cannot tell"
    with pytest.raises(ArgumentValueError, match="more weights"):
        audit_by_canaries(kit.experiment(**_small(1.0)), CLIENTS, canaries=67)


def _small(epsilon: float) -> dict[str, Any]:
    """A model of 67 weights."""
    policy = RoundPolicy(rounds=2, cohort=8, weight_cap=1, evaluate_every=0)
    return {"rounds": policy, "privacy": _user(epsilon), "secure_aggregation": False}


@pytest.mark.parametrize(
    ("privacy", "word"),
    [
        (ExampleLevel(clip=1.0, delta=1e-5, epsilon=4.0, rows=20), "rows"),
        (LocalLevel(mechanism="gaussian", epsilon=4.0, delta=1e-5), "upload"),
    ],
)
def test_promises_that_are_not_about_devices_are_not_audited_by_canaries(privacy: Any, word: str) -> None:
    found = _audit(privacy)
    assert (found.verdict, found.rounds, found.cap) == ("cannot tell", 0, 0)
    assert found.because is not None and word in found.because
    assert to_json(found)["guesses"] is None


def test_what_stands_between_the_noise_and_the_auditor_is_named() -> None:
    dynamic = _audit(_user(1.0), algorithm=FedDyn(clients=40))
    assert dynamic.verdict == "cannot tell" and dynamic.because is not None and "feddyn" in dynamic.because
    # Behind a robust rule the marks say nothing, but guesses are judged: they could refute.
    secure = SecureAggregation(groups=4)
    groups = _audit(_user(1.0), secure=secure, reducer="trimmed_mean(1)")
    assert groups.verdict == "cannot tell" and groups.because is not None and "groups" in groups.because
    with noise_times(0.0):
        assert _audit(_user(1.0), secure=secure, reducer="trimmed_mean(1)").verdict == "refuted"


def test_nothing_is_said_of_no_claim_and_of_no_release() -> None:
    assert _audit(None).verdict is None
    measures = kit.experiment(rounds=RoundPolicy(rounds=1, cohort=4, purpose="evaluate"))
    with pytest.raises(ExperimentError) as caught:
        audit_by_canaries(measures, CLIENTS)
    assert caught.value.reason == "audit_nothing"
