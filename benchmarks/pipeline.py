"""The data pipeline: batches of rows, and keeping a device busy with images.

    python benchmarks/pipeline.py [--json] [--quick] [--rows N] [--rounds K] [--only CASE ...]

Cases: batches (see pipeline_batches.py; budget: at least 0.5 of a NumPy loop), and images (see pipeline_images.py;
needs Pillow). Each prints its lines (see lines.py). Times are of the wall clock: the machine should have two free cores
and nothing to do.
"""

import argparse
from collections.abc import Callable, Mapping

from lines import Line, show
from pipeline_batches import batches

Case = Callable[[argparse.Namespace], tuple[Line, ...]]


def images(options: argparse.Namespace) -> tuple[Line, ...]:
    """The case of images, which needs Pillow."""
    from pipeline_images import images as measured

    return measured(12 if options.quick else 120)


CASES: Mapping[str, Case] = {
    "batches": lambda options: (batches(options.rows, options.rounds),),
    "images": images,
}


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--quick", action="store_true", help="few rows and rounds, to see that it runs")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the batches")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[*CASES], choices=[*CASES], metavar="CASE")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.rounds = 20_000, 2
    for name in options.only:
        for line in CASES[name](options):
            show(line, as_json=options.json)


if __name__ == "__main__":
    main()
