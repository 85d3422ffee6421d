"""How every reducer fares under every attack: test accuracy on handwritten digits, split by Dirichlet 0.1 and 1.0.

    python benchmarks/robust.py [--data DIR] [--seeds 1] [--only krum(4) ...] [--attacks opt_alie ...]
                                [--alpha 0.1 1.0] [--json] [--quick]

DIR holds mnist.npz; COTERIE_DATA serves when --data is not given. 20 clients, of which 4 lie and all take part in
every round; 20 rounds of 5 steps of SGD, an MLP 784-32-10, batch 32. All clients of a round train in one graph (`vmap`
over clients), which many small runs need. The attackers see the honest updates of the round; those of ``opt_ipm`` and
``opt_alie`` know the rule as well, and fltrust's trusted update, and look for the strength that moves it farthest. As
on a coordinator, updates that are not finite are left out before the rule sees the others; where it then has too few,
it says ``refused``. Under the backdoor, the share of marked test rows that are taken for its target follows the
accuracy. fltrust gets a trusted update from 100 rows that no client has, and centered_clipping the aggregate of the
round before; monna gets that of fltrust. A table is printed, with --json a line a cell (see lines.py).
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from lines import Line, show, show_row

from coterie.aggregation.attacks import ATTACKS, OPTIMISED, attack
from coterie.aggregation.attacks.poisoned import TARGET, with_trigger
from coterie.aggregation.reducers import Vector, aggregate
from coterie.compute import grad, jit, ops, vmap
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.errors import UpdateRefused
from coterie.simulation.partition import dirichlet

CLIENTS, LYING, STEPS, BATCH, RATE, CLASSES, HIDDEN, ROOT = 20, 4, 5, 32, 0.1, 10, 32, 100
REDUCERS = (
    "mean", "norm_bound(1)", "median", "trimmed_mean(4)", "meamed(4)", "krum(4)", "multi_krum(4)", "bulyan(4)",
    "mda(4)", "monna(4)", "caf(4)", "smea(4)",
    "geometric_median", "centered_clipping(1,3)", "fltrust", "adasum", "bucketing(2)+median", "arc()+trimmed_mean(4)",
    "nnm(4)+median", "nnm(4)+krum(4)", "nnm(4)+geometric_median", "norm_bound(1)+nnm(4)+trimmed_mean(4)",
)  # fmt: skip
SHAPES = ((784, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
SIZES = [int(np.prod(shape)) for shape in SHAPES]
Rows = npt.NDArray[Any]


def _weights(vector: Any) -> list[Any]:
    ends = np.cumsum([0, *SIZES]).tolist()
    return [xp.reshape(vector[ends[place] : ends[place + 1]], shape) for place, shape in enumerate(SHAPES)]


def loss(vector: Array, x: Array, y: Array) -> Array:
    """Mean cross entropy of the MLP whose weights are one vector."""
    w1, b1, w2, b2 = _weights(vector)
    return xp.mean(softmax_cross_entropy(ops.relu(x @ w1 + b1) @ w2 + b2, y))


def local(vector: Array, x: Array, y: Array) -> Array:
    """What STEPS steps over x ``[STEPS, BATCH, 784]`` change."""
    now = vector
    for step in range(STEPS):
        now = now - RATE * grad(loss)(now, x[step], y[step])
    return now - vector


train = jit(vmap(local, in_axes=(None, 0, 0)))


def accuracy(vector: Rows, x: Rows, y: Rows) -> float:
    """The share of rows whose class is found."""
    ends = np.cumsum([0, *SIZES])
    w1, b1, w2, b2 = (vector[ends[i] : ends[i + 1]].reshape(shape) for i, shape in enumerate(SHAPES))
    return float((np.argmax(np.maximum(x @ w1 + b1, 0) @ w2 + b2, axis=1) == y).mean())


def first(seed: int) -> Rows:
    """He's uniform weights."""
    generator = np.random.default_rng(seed)
    bounds = [np.sqrt(6 / 784), 0.0, np.sqrt(6 / HIDDEN), 0.0]
    drawn = [generator.uniform(-bound, bound, size) for bound, size in zip(bounds, SIZES, strict=True)]
    return np.concatenate(drawn).astype(np.float32)


def run(
    rule: str, name: str, parts: Sequence[Rows], data: Mapping[str, Rows], rounds: int, seed: int
) -> dict[str, Any]:
    """One run: accuracy, the backdoor's success, rounds that the rule refused. parts: the rows of each client, the
    trusted ones last; the first LYING clients lie.
    """
    generator, vector = np.random.default_rng(seed), first(seed)
    refused, trusted, last = 0, np.zeros(0, np.float32), np.zeros(len(vector))

    def judge(updates: npt.NDArray[np.float32]) -> Vector:
        return aggregate(rule, updates, reference=trusted if "fltrust" in rule or "monna" in rule else last)

    lie = attack(name, judge)
    for _ in range(rounds):
        x, y = np.empty((len(parts), STEPS, BATCH, 784), np.float32), np.empty((len(parts), STEPS, BATCH), np.int32)
        for place, part in enumerate(parts):
            chosen = generator.choice(part, STEPS * BATCH)
            features, labels = data["x_train"][chosen], data["y_train"][chosen]
            if place < LYING:
                features, labels = lie.poison(features, labels, CLASSES)
            x[place], y[place] = features.reshape(STEPS, BATCH, -1), labels.reshape(STEPS, BATCH)
        made = np.asarray(train(vector, x, y).numpy(), np.float32)
        honest, trusted = made[LYING:-1], made[-1]
        sent = np.concatenate([lie.forge(honest, made[:LYING], generator), honest])
        usable = sent[np.isfinite(sent).all(axis=1)]
        try:
            # A model that an attack has driven to infinity leaves its clients nothing finite to send.
            if not len(usable):
                raise UpdateRefused("No update is finite.", code="nothing_usable")
            change = last = judge(usable)
        except UpdateRefused:
            refused += 1
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            vector = (vector + change).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        other = data["y_test"] != TARGET
        marked = with_trigger(data["x_test"][other])
        return {
            "accuracy": accuracy(vector, data["x_test"], data["y_test"]),
            "backdoor": accuracy(vector, marked, np.full(len(marked), TARGET)),
            "refused": refused,
        }


def digits(folder: Path) -> dict[str, Rows]:
    """MNIST as float32 in 0..1, flat, and int32."""
    path = folder / "mnist.npz"
    if not path.exists():
        sys.exit(f"There is no {path}. Give --data DIR, a folder that holds mnist.npz, or set COTERIE_DATA.")
    with np.load(path, allow_pickle=False) as file:
        return {
            name: file[name].reshape(len(file[name]), -1).astype(np.float32) / 255
            if name.startswith("x")
            else file[name].astype(np.int32)
            for name in ("x_train", "y_train", "x_test", "y_test")
        }


def clients(data: Mapping[str, Rows], alpha: float, seed: int) -> list[Rows]:
    """The rows of each client, the trusted ones last. Who lies is drawn, since the first clients are like any other."""
    split = dirichlet(data["y_train"][ROOT:], CLIENTS, alpha=alpha, seed=seed, minimum=20)
    order: list[int] = np.random.default_rng(seed).permutation(CLIENTS).tolist()
    return [*(np.asarray(split[place]) + ROOT for place in order), np.arange(ROOT)]


def main() -> None:
    """Run the table and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("COTERIE_DATA", "."), help="folder with mnist.npz")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each cell; the mean is shown")
    parser.add_argument("--only", nargs="+", metavar="REDUCER", help="these instead of all")
    parser.add_argument("--attacks", nargs="+", metavar="ATTACK", help="these instead of all")
    parser.add_argument("--alpha", nargs="+", type=float, default=[0.1, 1.0], help="concentrations of Dirichlet")
    parser.add_argument("--json", action="store_true", help="one JSON object a cell")
    parser.add_argument("--quick", action="store_true", help="four rules, four attacks, 10 rounds")
    options = parser.parse_args()
    data, begun = digits(Path(options.data)), time.monotonic()
    rules = options.only or (("mean", "median", "krum(4)", REDUCERS[-1]) if options.quick else REDUCERS)
    every = ("none", "sign_flip", "alie", "nan") if options.quick else (*ATTACKS, *OPTIMISED)
    attacks: tuple[str, ...] = tuple(options.attacks or every)
    widths = (38, *(12 for _ in attacks))
    for alpha in options.alpha:
        split = [clients(data, alpha, seed) for seed in range(options.seeds)]
        if not options.json:
            show_row((f"Dirichlet {alpha}", *attacks), widths)
        for rule in rules:
            cells: list[str] = []
            for name in attacks:
                rounds = 10 if options.quick else 20
                found = [run(rule, name, parts, data, rounds, seed) for seed, parts in enumerate(split)]
                cell = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
                if options.json:
                    details = {"reducer": rule, "attack": name, "alpha": alpha}
                    details |= {key: cell[key] for key in ("backdoor", "refused")}
                    line = Line(f"{rule}, {name}, {alpha}", cell["accuracy"], "of the test rows", details=details)
                    show(line, as_json=True)
                shown = "refused" if cell["refused"] == rounds else f"{cell['accuracy']:.3f}"
                cells.append(shown + (f" ({cell['backdoor']:.2f})" if name == "backdoor" else ""))
            if not options.json:
                show_row((rule, *cells), widths)
    show(Line("all", time.monotonic() - begun, "s"), as_json=options.json)


if __name__ == "__main__":
    main()
