"""How often `coterie audit run` with its defaults catches noise that is too small, and accuses noise that is not.

    python benchmarks/audit.py --json [--runs 40] [--only gaussian_eps1 ...]

An MLP of 2403 weights, five honest clients of 20 rows, two rounds (four for ``blt``, in which a device takes part
twice), user-level privacy at δ = 1e-5. Each run has a seed of its own (so its own noise) and its own canaries, and goes
through the whole simulated round. ``removed`` and ``halved`` change what the sampler draws, while everything that
accounts for it believes that the full noise was drawn; ``honest`` changes nothing. Each case prints one line (see
lines.py): the share of runs that were refuted, its budget, and the seconds of one run.
"""

import argparse
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import patch

import numpy as np
from lines import Budget, Line, at_least, at_most, show

from coterie import DataSchema, Experiment, Feature, Label, RoundPolicy
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.privacy.dp import distributed
from coterie.privacy.dp.noise import gaussian
from coterie.protocol.mechanisms import DISTRIBUTED, CentralMechanism
from coterie.protocol.privacy import UserLevel
from coterie.simulation.canaries import audit_by_canaries

FACTORS = {"removed": 0.0, "halved": 0.5, "honest": 1.0}
BUDGETS: dict[str, Budget] = {"removed": at_least(1.0), "halved": at_least(0.95), "honest": at_most(0.05)}
MECHANISMS: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "discrete_gaussian": {},
    "skellam": {},
    "blt": {"min_separation": 2, "max_participations": 2},
}
CASES = {
    f"{mechanism}_eps{epsilon:g}": UserLevel(
        clip=1.0, delta=1e-5, epsilon=epsilon, mechanism=cast(CentralMechanism, mechanism), **more
    )
    for mechanism, more in MECHANISMS.items()
    for epsilon in (1.0, 4.0)
}


@contextmanager
def noise_times(factor: float) -> Generator[None]:
    """Every sampler of noise on sums draws this many times what it is asked for."""

    def scaled(draw: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *asked: np.rint(factor * draw(*asked)).astype(np.int64)

    def fewer(mechanism: Any, count: int, variance: float, source: Any) -> Any:
        # Steps of shared noise are coarse, so that a smaller variance is drawn instead.
        return np.zeros(count, np.int64) if not factor else drawn(mechanism, count, variance * factor**2, source)

    drawn, whole = distributed.share, vars(gaussian)["_steps"]
    with patch.object(gaussian, "_steps", scaled(whole)), patch.object(distributed, "share", fewer):
        yield


def rows(seed: int) -> dict[str, np.ndarray]:
    """A client's."""
    random = np.random.Generator(np.random.PCG64(seed))
    return {"x": random.normal(size=(20, 4)).astype(np.float32), "y": random.integers(0, 3, 20).astype(np.int32)}


def study(privacy: UserLevel, seed: int) -> Experiment:
    """The experiment that is audited."""
    secure = privacy.mechanism in DISTRIBUTED
    apart = privacy.min_separation
    return Experiment(
        name="audit",
        model=mlp((4, 300, 3)),
        schema=DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2)),
        loss=softmax_cross_entropy,
        optimizer=sgd(0.1),
        batch_size=8,
        rounds=RoundPolicy(rounds=2 * apart, cohort=40, weight_cap=1, evaluate_every=0, rest_rounds=apart - 1),
        privacy=privacy,
        secure_aggregation=secure,
        seed=seed,
    )


def main() -> None:
    """Run the cases, and print a line for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="one JSON line for each case")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    asked = parser.parse_args()
    clients = [rows(seed) for seed in range(5)]
    for name in asked.only:
        for kind, factor in FACTORS.items():
            begun, refuted, unsure, canaries = time.monotonic(), 0, 0, 0
            with noise_times(factor):
                for seed in range(asked.runs):
                    found = audit_by_canaries(study(CASES[name], seed), clients)
                    refuted += found.verdict == "refuted"
                    unsure += found.verdict == "cannot tell"
                    canaries = found.canaries
            details = {
                "runs": asked.runs,
                "cannot_tell": unsure,
                "canaries": canaries,
                "seconds": round((time.monotonic() - begun) / asked.runs, 2),
            }
            share = refuted / asked.runs
            line = Line(f"{name}_{kind}", share, "of the runs refuted", budget=BUDGETS[kind], details=details)
            show(line, as_json=asked.json)


if __name__ == "__main__":
    main()
