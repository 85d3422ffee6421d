"""How much clients differ under every partitioner, and what it costs: what docs/algorithms.md quotes.

    COTERIE_DATA=DIR python benchmarks/partitions.py [--only dirichlet ...] [--json] [--quick]

The task of benchmarks/methods.py (4000 images of MNIST, 20 clients, FedAvg), split in each of the ways. Printed, a line
each (see lines.py): accuracy on test images, the worst decile of clients on the rows that they hold out, the mean skew
of labels (EMD from 0 to 2, Jensen-Shannon divergence from 0 to 1 bit), and the deviation of sizes over their mean. What
a partitioner needs beside labels is made from them or from the pixels: writers by blocks of 40 rows, times by row
number, a column by the mean brightness. DIR holds mnist.npz.
"""

import argparse
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from lines import Line, show

from coterie.simulation import simulate_full
from coterie.simulation.partition import (
    LabelNoise,
    Noise,
    Partition,
    Turns,
    continuous,
    dirichlet,
    dirichlet_clients,
    iid,
    natural,
    natural_groups,
    pathological,
    periods,
    quantity,
    shards,
    split,
)

Arrays = dict[str, npt.NDArray[Any]]
METHODS: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("methods.py")))
CLIENTS: int = METHODS["CLIENTS"]


def _even(rows: Arrays) -> Partition:
    return iid(len(rows["digit"]), CLIENTS, seed=1)


PARTITIONS: Mapping[str, Callable[[Arrays], Partition]] = {
    "iid": _even,
    "dirichlet": lambda rows: dirichlet(rows["digit"], CLIENTS, alpha=0.3, seed=1),
    "dirichlet_clients": lambda rows: dirichlet_clients(rows["digit"], CLIENTS, alpha=0.3, seed=1),
    "shards": lambda rows: shards(rows["digit"], CLIENTS, seed=1),
    "pathological": lambda rows: pathological(rows["digit"], CLIENTS, classes=2, seed=1),
    "quantity": lambda rows: quantity(len(rows["digit"]), CLIENTS, law="dirichlet", seed=1, minimum=10),
    "natural": lambda rows: natural(np.arange(len(rows["digit"])) * CLIENTS // len(rows["digit"])),
    "natural_groups": lambda rows: natural_groups(np.arange(len(rows["digit"])) // 40, CLIENTS, seed=1),
    "continuous": lambda rows: continuous(rows["image"].mean(axis=(1, 2)), CLIENTS, strictness=0.9, seed=1),
    "periods": lambda rows: periods(np.arange(len(rows["digit"])), CLIENTS),
    "noise": lambda rows: _even(rows).then(Noise(feature="image", variance=2000.0, seed=2)),
    "turns": lambda rows: _even(rows).then(Turns(feature="image", turns=4)),
    "label_noise": lambda rows: _even(rows).then(LabelNoise(label="digit", classes=10, high=0.4, seed=3)),
}


def measure(name: str, file: Mapping[str, npt.NDArray[Any]], *, quick: bool) -> Line:
    """One partitioner's figures."""
    rounds, count = (2, 800) if quick else (METHODS["ROUNDS"], 4000)
    train, test = METHODS["rows"](file, "train", count), METHODS["rows"](file, "test", 1000)
    train["image"] = train["image"].reshape(-1, 28, 28)
    parts = PARTITIONS[name](train).labelled(train["digit"])
    clients = [{**client, "image": client["image"].reshape(-1, 784)} for client in split(train, parts)]
    run = simulate_full(METHODS["experiment"]("fedavg", rounds), clients)
    details = {
        "worst_decile": METHODS["federated"](run)["worst_decile"],
        "emd": parts.skew.mean_emd,
        "js": parts.skew.mean_js,
        "size_deviation": parts.skew.size_deviation,
    }
    return Line(name, METHODS["tested"](run, run.weights, test), "of the test rows", details=details)


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(PARTITIONS), default=list(PARTITIONS))
    parser.add_argument("--json", action="store_true", help="one JSON line for each partitioner")
    parser.add_argument("--quick", action="store_true", help="two rounds on few rows, to see that it runs")
    options = parser.parse_args()
    file = METHODS["load"]()
    for name in options.only:
        show(measure(name, file, quick=options.quick), as_json=options.json)


if __name__ == "__main__":
    main()
