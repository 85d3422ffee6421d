"""Step times of our plans on every execution provider, in one table; and how long a trial of all recipes takes.

    python benchmarks/providers.py [--json] [--only mlp_784_128_10_b32 ...] [--environments openvino webgpu]

A case is a plan: a model of the zoo with FedAvg and SGD, its first training step on made-up rows, as a device times it
before it chooses (the quickest of up to 20 steps in a second, state and rows copied in each). Providers live in
environments of their own, which `make test-providers` makes; those that are there are measured one after another, each
against the CPU provider of the same ONNX Runtime. With --json one line (see lines.py) a case and provider, beside the
CPU provider, with whole: every node runs there; and one a provider for the process time of its conformance run (budget
on the CPU: 20 s). A line with a fault has no figure.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from lines import Line, Peer, at_most, read, show, show_row

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from coterie.aggregation.compiling.compile import compile_plan  # noqa: E402
from coterie.aggregation.experiment import Experiment  # noqa: E402
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork  # noqa: E402
from coterie.client_sdk.device.trainers.plan import PlanTrainer, step_feeds  # noqa: E402
from coterie.compute.extension.providers import load_providers  # noqa: E402
from coterie.compute.nn.losses import softmax_cross_entropy  # noqa: E402
from coterie.compute.nn.module import Module  # noqa: E402
from coterie.compute.nn.zoo import char_transformer, fedavg_cnn, lenet, mlp  # noqa: E402
from coterie.compute.optim import sgd  # noqa: E402
from coterie.compute.runtime.choice import StepCase, timings  # noqa: E402
from coterie.compute.runtime.conformance import conformance  # noqa: E402
from coterie.compute.runtime.coverage import coverage  # noqa: E402
from coterie.compute.runtime.devices import discover  # noqa: E402
from coterie.protocol.rounds import RoundPolicy  # noqa: E402
from coterie.protocol.schema import DataSchema, Feature, Label  # noqa: E402
from tests.providers.environments import ENVIRONMENTS, NotHere  # noqa: E402

BUDGETS = {"CPUExecutionProvider": at_most(20.0)}
RECIPES = "recipes"
IMAGES = Feature(name="x", shape=(1, 28, 28), low=-10, high=10)
# name → model, feature, rows of a batch
CASES: Mapping[str, tuple[Callable[[], Module], Feature, int]] = {
    "mlp_784_128_10_b32": (lambda: mlp((784, 128, 10)), Feature(name="x", shape=(784,), low=-10, high=10), 32),
    "lenet_b16": (lenet, IMAGES, 16),
    "fedavg_cnn_b32": (fedavg_cnn, IMAGES, 32),
    "char_transformer_b8": (
        lambda: char_transformer(10, 64, 4, 1, 32),
        Feature(name="x", shape=(32,), dtype="int32", low=0, high=9),
        8,
    ),
}


def step(name: str) -> StepCase:
    """The first step of a case's plan."""
    model, feature, size = CASES[name]
    experiment = Experiment(
        name=name,
        model=model(),
        schema=DataSchema((feature,), Label(name="y", low=0, high=9)),
        loss=softmax_cross_entropy,
        optimizer=sgd(0.01),
        batch_size=size,
        rounds=RoundPolicy(rounds=1, cohort=1, evaluate_every=0),
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, *feature.shape)).astype(np.float32)
    x = rng.integers(0, 10, x.shape).astype(np.int32) if feature.dtype == "int32" else x
    rows = {"x": x, "y": rng.integers(0, 10, size).astype(np.int32)}
    compiled, task = compile_plan(experiment), LocalTask(experiment=name, round=1, seed=0)
    work = LocalWork(plan=compiled.plan, task=task, weights=compiled.initial, rows=rows)
    return PlanTrainer().begin(work).step(next(step_feeds(work)))


def here(environment: str, only: list[str]) -> Iterator[Line]:
    """The lines of this interpreter."""
    providers = discover(load_providers())
    for provider in providers:
        begun = time.process_time()
        report = conformance(provider)
        seconds = time.process_time() - begun
        details = {
            "environment": environment,
            "provider": provider.name,
            "version": provider.runtime,
            "driver": provider.driver,
            "trusted": report.passed,
        }
        yield Line(RECIPES, seconds, "s of processor", budget=BUDGETS.get(provider.name), details=details)
    for name in only:
        case = step(name)
        found = timings(case, providers)
        for timing in found:
            details = {
                "environment": environment,
                "provider": timing.provider.name,
                "version": timing.provider.runtime,
                "whole": coverage(case.data, timing.provider).whole,
                "fault": timing.fault or None,
            }
            microseconds = None if timing.fault else timing.seconds * 1e6
            yield Line(name, microseconds, "us", Peer("cpu", found[0].seconds * 1e6), details=details)


def main() -> None:
    """Measure here, and in every environment that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="JSON lines instead of a table")
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--environments", nargs="*", default=[each.name for each in ENVIRONMENTS])
    parser.add_argument("--here", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        for line in here(asked.here, asked.only):
            show(line, as_json=True)
        return
    lines: list[Line] = []
    for environment in ENVIRONMENTS:
        if environment.name not in asked.environments or not environment.python.exists():
            continue
        try:
            variables = dict(environment.made())
        except NotHere as error:
            print(f"{environment.name}: {error}", file=sys.stderr)
            continue
        command = [str(environment.python), __file__, "--here", environment.name, "--only", *asked.only]
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
        if done.returncode:
            print(f"{environment.name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        lines += [read(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        lines = list(here("this interpreter", asked.only))
    if not asked.json:
        show_table(lines)
        return
    for line in lines:
        show(line, as_json=True)


def show_table(lines: list[Line]) -> None:
    """One table for people: a row for each environment and provider, a column for each case."""
    cases = list(dict.fromkeys((RECIPES, *(line.case for line in lines))))
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for line in lines:
        of = line.details
        row = cells.setdefault((of["environment"], of["provider"].removesuffix("ExecutionProvider")), {})
        if line.case == RECIPES:
            row[line.case] = f"{line.figure:.2f} s"
        elif line.ratio is None:
            row[line.case] = of["fault"][:24]
        else:
            row[line.case] = f"{line.figure:.0f} us, x {line.ratio:.2f}" + ("" if of["whole"] else " (part)")
    table = [["environment", "provider", *cases]]
    table += [[*key, *(row.get(name, "-") for name in cases)] for key, row in cells.items()]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        show_row(row, widths)


if __name__ == "__main__":
    main()
