"""MNIST under user-level differential privacy: noise of the coordinator against noise that clients share.

    COTERIE_DATA=DIR python benchmarks/private_mnist.py [--json] [--quick] [--only central …] [--seeds 0 1 2]

The 60 000 training images over 1000 virtual clients of 60 each (drawn alike), a linear model of 7850 weights, ten
rounds in which all clients take part: five full steps of SGD at 0.5, change shortened to the norm 1, server momentum
0.5. Nobody claims amplification by sampling. ε = 8 at δ = 1e-5 for a client with all of its rows and rounds:

    open                secure aggregation alone, no noise: what there would be to gain
    central             the coordinator adds a Gaussian to the sum of updates that it sees
    discrete_gaussian   every client adds a share under secure aggregation; nobody sees a sum without noise
    skellam             the same with Skellam noise

The shares are calibrated to the fewest survivors a round may have (900) less the tenth of the cohort that may be
corrupt: 800 honest shares carry the guarantee, so with all 1000 present the noise is √(1000/800) of what it must be.

Printed, a line each (see lines.py): test accuracy of the last version, the ε that the events cost, the bits a number
takes on the wire; then the means over seeds. Budgets: central at 0.80 or above, each distributed mechanism within two
points of it. DIR holds mnist.npz.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
from lines import Line, at_least, at_most, show

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.private.shared_noise import measured, shared_noise
from coterie.aggregation.server_optimizers import server_sgd
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.rounds import whole_cost
from coterie.protocol.privacy import UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.simulation import iid, simulate_full, split

Arrays = dict[str, npt.NDArray[Any]]

EPSILON, DELTA, CLIP = 8.0, 1e-5, 1.0
ACCURACY, SHARED = "of the test rows", ("discrete_gaussian", "skellam")
WEIGHTS = 7850
CENTRAL_BUDGET, DISTANCE_BUDGET = at_least(0.80), at_most(0.02)
SCHEMA = DataSchema(
    features=(Feature(name="image", dtype="uint8", shape=(784,), scale=1 / 255),),
    label=Label(name="digit", low=0, high=9),
)
SECURE = SecureAggregation(norm=CLIP, corrupt=0.1, dropout=0.1)
WAYS: Mapping[str, Mapping[str, Any]] = {
    "open": {"privacy": None, "secure_aggregation": SECURE},
    "central": {
        "privacy": UserLevel(clip=CLIP, delta=DELTA, epsilon=EPSILON, mechanism="gaussian"),
        "secure_aggregation": False,
    },
    "discrete_gaussian": {
        "privacy": UserLevel(clip=CLIP, delta=DELTA, epsilon=EPSILON, mechanism="discrete_gaussian"),
        "secure_aggregation": SECURE,
    },
    "skellam": {
        "privacy": UserLevel(clip=CLIP, delta=DELTA, epsilon=EPSILON, mechanism="skellam"),
        "secure_aggregation": SECURE,
    },
}


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--quick", action="store_true", help="100 clients and two rounds, to see that it runs")
    parser.add_argument("--only", nargs="+", choices=tuple(WAYS), default=tuple(WAYS), metavar="WAY")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    options = parser.parse_args()
    file, found = load(), dict[str, list[float]]()
    for way in options.only:
        for seed in options.seeds:
            reached, details = measure(way, file, seed, quick=options.quick)
            found.setdefault(way, []).append(reached)
            show(Line(f"{way}, seed {seed}", reached, ACCURACY, details=details), as_json=options.json)
    for line in verdict({way: float(np.mean(values)) for way, values in found.items()}):
        show(line, as_json=options.json)


def measure(way: str, file: Arrays, seed: int, *, quick: bool) -> tuple[float, dict[str, Any]]:
    """One run: its accuracy, and what else it tells."""
    clients, rounds, count = (100, 2, 6000) if quick else (1000, 10, 60_000)
    train, test = rows(file, "train", count), rows(file, "test", 10_000)
    wanted = experiment(way, clients, rounds, seed, test)
    begun = time.monotonic()
    with TemporaryDirectory() as folder:
        run = simulate_full(wanted, split(train, iid(count, clients, seed=seed)), folder=Path(folder))
    seconds = round(time.monotonic() - begun, 1)
    details = {"clients": clients, "rounds": rounds, **price(wanted), "seconds": seconds}
    return run.history.curve("accuracy")[-1][1], details


def experiment(way: str, clients: int, rounds: int, seed: int, test: Arrays) -> Experiment:
    """The task in one of the ways."""
    return Experiment(
        name=f"private-mnist-{way}",
        model=mlp((784, 10)),
        schema=SCHEMA,
        loss=softmax_cross_entropy,
        metrics={"accuracy": accuracy},
        optimizer=sgd(0.5),
        server_optimizer=server_sgd(1.5, 0.5),
        batch_size=60,
        epochs=5,
        holdout=0.0,
        rounds=RoundPolicy(
            rounds=rounds, cohort=clients, min_updates=clients * 9 // 10, weight_cap=1, evaluate_every=0
        ),
        evaluation=test,
        seed=seed,
        **WAYS[way],
    )


def price(experiment: Experiment) -> dict[str, Any]:
    """What the experiment's events cost together, and how its numbers travel."""
    privacy, policy, secure = experiment.privacy, experiment.rounds, experiment.secure
    if not isinstance(privacy, UserLevel):
        return {"epsilon": None, "bits": None}
    if secure is None:
        cost = total_cost(whole_cost(privacy, policy.rounds, cohort=policy.cohort), DELTA)
        return {"epsilon": round(cost.epsilon, 4), "epsilon_rdp": round(cost.epsilon_rdp, 4), "bits": 32}
    terms = shared_noise(privacy, secure, policy, length=WEIGHTS, round=1)
    each = measured(privacy, secure, policy, length=WEIGHTS)
    cost = total_cost(whole_cost(privacy, policy.rounds, cohort=policy.cohort, measured=each), DELTA)
    return {
        "epsilon": round(cost.epsilon, 4),
        "epsilon_rdp": round(cost.epsilon_rdp, 4),
        "bits": terms.bits,
        "inflation": round(terms.inflation, 5),
        "contributors": terms.contributors,
    }


def verdict(means: Mapping[str, float]) -> Iterator[Line]:
    """The mean accuracy of each way, and how far those who share the noise are below the coordinator's."""
    central = means.get("central")
    for way, mean in means.items():
        yield Line(f"{way}, mean", mean, ACCURACY, budget=CENTRAL_BUDGET if way == "central" else None)
        if central is not None and way in SHARED:
            yield Line(f"{way}, below central", central - mean, ACCURACY, budget=DISTANCE_BUDGET)


def rows(file: Arrays, part: str, count: int) -> Arrays:
    """The first rows of a part."""
    return {
        "image": file[f"x_{part}"][:count].reshape(-1, 784),
        "digit": file[f"y_{part}"][:count].astype(np.int32),
    }


def load() -> Arrays:
    """The arrays of mnist.npz, or a clear end of the program."""
    path = Path(os.environ.get("COTERIE_DATA", "")) / "mnist.npz"
    if not path.is_file():
        sys.exit(f"There is no {path}.\nSet COTERIE_DATA to a folder that holds mnist.npz.")
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


if __name__ == "__main__":
    main()
