"""Every method of horizontal learning, and every selection, on one small task: what docs/algorithms.md quotes.

    COTERIE_DATA=DIR python benchmarks/methods.py --method scaffold [--json] [--quick]
    COTERIE_DATA=DIR python benchmarks/methods.py --all [--json]

The task: the first 4000 training images of MNIST split over 20 clients whose labels are skewed (Dirichlet 0.3), an MLP
784-64-10, ten rounds of ten clients, two local epochs of batches of 16, a fifth of each client's rows held out. Methods
that visit one client at a time make 100 rounds, so every method trains about as much. Printed, a line each (see
lines.py): accuracy on the first
1000 test images of MNIST, the mean and the worst decile of the clients' accuracy on the rows that they hold out,
megabytes uploaded, and seconds. DIR holds mnist.npz.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
from lines import Line, show

from coterie.aggregation.averaging import average_last
from coterie.aggregation.evaluate import evaluate
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import (
    IFCA,
    Cyclic,
    FedAsync,
    FedBuff,
    FedDyn,
    FedExP,
    FedNova,
    FedProx,
    FedSGD,
    Moon,
    QFedAvg,
    Scaffold,
)
from coterie.aggregation.server_optimizers import server_adagrad, server_adam, server_sgd, server_yogi
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import Simulation, dirichlet, simulate_full, split
from coterie.simulation.baselines import centralised, local_only

Arrays = dict[str, npt.NDArray[Any]]

CLIENTS, COHORT, ROUNDS, RATE = 20, 10, 10, 0.05
SCHEMA = DataSchema(
    features=(Feature(name="image", dtype="uint8", shape=(784,), scale=1 / 255),),
    label=Label(name="digit", low=0, high=9),
)

METHODS: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "fedavg": lambda rounds: {},
    "fedsgd": lambda rounds: {"algorithm": FedSGD(), "epochs": 1, "optimizer": sgd(0.5)},
    "fedprox": lambda rounds: {"algorithm": FedProx(0.01)},
    "scaffold": lambda rounds: {"algorithm": Scaffold(CLIENTS)},
    "fednova": lambda rounds: {"algorithm": FedNova()},
    "feddyn": lambda rounds: {"algorithm": FedDyn(CLIENTS, 0.1)},
    "fedexp": lambda rounds: {"algorithm": FedExP()},
    "moon": lambda rounds: {"algorithm": Moon(0.1, 0.5)},
    "qfedavg": lambda rounds: {"algorithm": QFedAvg(0.1)},
    "ifca": lambda rounds: {"algorithm": IFCA(2)},
    "cyclic": lambda rounds: {"algorithm": Cyclic(), "rounds": visits(rounds, selection="cyclic")},
    "fedbuff": lambda rounds: {"algorithm": FedBuff(), "rounds": policy(rounds, mode="buffered", concurrency=15)},
    "fedasync": lambda rounds: {"algorithm": FedAsync(), "rounds": visits(rounds, mode="buffered", concurrency=10)},
    "fedavgm": lambda rounds: {"server_optimizer": server_sgd(1.0, 0.5)},
    "adasum": lambda rounds: {"reducer": "adasum"},
    "fedadagrad": lambda rounds: {"server_optimizer": server_adagrad(0.03, 0.01)},
    "fedadam": lambda rounds: {"server_optimizer": server_adam(0.1, tau=0.01)},
    "fedyogi": lambda rounds: {"server_optimizer": server_yogi(0.1, tau=0.01)},
    "weighted": lambda rounds: {"rounds": policy(rounds, selection="weighted")},
    "power-of-choice": lambda rounds: {"rounds": policy(rounds, selection="power_of_choice(15)")},
    "oort": lambda rounds: {"rounds": policy(rounds, selection="oort")},
    "least-recent": lambda rounds: {"rounds": policy(rounds, selection="least_recent")},
    "uploads": lambda rounds: {"uploads": ("2.*",)},
    "broadcast": lambda rounds: {"broadcast": "int8"},
}
# The paper evaluates the mean of the last two versions.
AVERAGED = {"fedexp": 2}
BASELINES = ("centralised", "local-only")


def policy(rounds: int, **changes: Any) -> RoundPolicy:
    """Rounds of ten clients; all clients evaluate at the end."""
    plain = {"rounds": rounds, "cohort": COHORT, "evaluation_cohort": CLIENTS, "evaluate_every": rounds}
    return RoundPolicy.model_validate(plain | changes)


def visits(rounds: int, **changes: Any) -> RoundPolicy:
    """As many trainings, of one client a round."""
    many = rounds * COHORT
    return policy(many, **{"cohort": 1, "evaluate_every": many} | changes)


def experiment(method: str, rounds: int) -> Experiment:
    """The task with a method."""
    plain = Experiment(
        name=f"methods-{method}",
        model=mlp((784, 64, 10)),
        schema=SCHEMA,
        loss=softmax_cross_entropy,
        metrics={"accuracy": accuracy},
        optimizer=sgd(RATE),
        batch_size=16,
        epochs=2,
        rounds=policy(rounds),
        # The methods are compared as they were published: in the open.
        secure_aggregation=False,
    )
    return replace(plain, **METHODS[method](rounds)) if method in METHODS else plain


def measure(method: str, file: Mapping[str, npt.NDArray[Any]], *, quick: bool) -> Line:
    """One method's figures."""
    rounds, count = (2, 800) if quick else (ROUNDS, 4000)
    train, test = rows(file, "train", count), rows(file, "test", 1000)
    clients = split(train, dirichlet(train["digit"], CLIENTS, alpha=0.3, seed=1))
    wanted, begun = experiment(method, rounds), time.monotonic()
    if method == "local-only":
        apart = local_only(wanted, clients)
        on_test = [value for run in apart.runs if (value := tested(run, run.weights, test)) is not None]
        reached = float(np.mean(on_test))
        found: dict[str, float | None] = {
            "clients": apart.mean("accuracy"),
            "worst_decile": apart.worst_decile("accuracy"),
            "megabytes": 0.0,
        }
    else:
        with TemporaryDirectory() as folder:
            run = (
                centralised(wanted, clients)
                if method == "centralised"
                else simulate_full(wanted, clients, folder=Path(folder))
            )
            last = AVERAGED.get(method, 1)
            version = average_last(run.history, Path(folder), last) if last > 1 else run.weights
        reached, found = tested(run, version, test), federated(run)
    return Line(method, reached, "of the test rows", details={**found, "seconds": time.monotonic() - begun})


def tested(run: Simulation, version: Mapping[str, npt.NDArray[Any]], test: Arrays) -> float | None:
    """Accuracy of a version on the test rows; None where a version is several models."""
    plan = run.plan
    if plan.manifest.stage("eval").from_source("probe"):
        return None
    return evaluate(plan.graphs, plan.manifest, version, test).means()["accuracy"]


def federated(run: Simulation) -> dict[str, float | None]:
    """What the clients measured at the end, and what was uploaded."""
    last, spread = run.history.curve("accuracy"), run.history.curve("fairness.accuracy")
    return {
        "clients": last[-1][1] if last else None,
        "worst_decile": spread[-1][1] if spread else None,
        "megabytes": sum(record.bytes_up for record in run.history.rounds) / 1e6,
    }


def rows(file: Mapping[str, npt.NDArray[Any]], part: str, count: int) -> Arrays:
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


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (*METHODS, *BASELINES)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--method", choices=names, nargs="+", metavar="METHOD", help=", ".join(names))
    which.add_argument("--all", action="store_true", help="every method and both baselines")
    parser.add_argument("--json", action="store_true", help="one JSON line for each method")
    parser.add_argument("--quick", action="store_true", help="two rounds on few rows, to see that it runs")
    options = parser.parse_args()
    file = load()
    for method in names if options.all else options.method:
        show(measure(method, file, quick=options.quick), as_json=options.json)


if __name__ == "__main__":
    main()
