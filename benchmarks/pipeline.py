"""The data pipeline: batches of rows, and keeping a device busy with images.

    python benchmarks/pipeline.py [--json] [--quick] [--rows N] [--rounds K] [--only CASE ...]

Cases: batches (see pipeline_batches.py; budget: at least 0.5 of a NumPy loop), and images (see pipeline_images.py;
needs Pillow). One line a case. Times are of the wall clock: the machine should have two free cores and nothing to do.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

from pipeline_batches import batches

Case = Callable[[argparse.Namespace], dict[str, Any]]


def images(options: argparse.Namespace) -> dict[str, Any]:
    """The case of images, which needs Pillow."""
    from pipeline_images import images as measured

    return measured(12 if options.quick else 120)


CASES: Mapping[str, Case] = {
    "batches": lambda options: batches(options.rows, options.rounds),
    "images": images,
}


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON line for each case")
    parser.add_argument("--quick", action="store_true", help="few rows and rounds, to see that it runs")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the batches")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[*CASES], choices=[*CASES], metavar="CASE")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.rounds = 20_000, 2
    for name in options.only:
        found = {"case": name, **CASES[name](options)}
        print(json.dumps(found) if options.json else line(found), flush=True)


def line(result: Mapping[str, Any]) -> str:
    """One line for people."""
    return f"{result['case']:14s} " + "  ".join(f"{name} {value}" for name, value in result.items() if name != "case")


if __name__ == "__main__":
    main()
