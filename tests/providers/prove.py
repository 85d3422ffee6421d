"""Prove one execution provider on this machine, in this interpreter.

    python -m tests.providers.prove WebGpuExecutionProvider [--graphs train eval]

Runs every recipe without help from the CPU, every graph of the plans of ``plans.py``, and a training of each plan on
the provider against the same training on the CPU. The last line that is printed is one JSON object (``Proof``).
"""

import argparse
import json
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.client_sdk.device.providers import DeviceProviders
from coterie.client_sdk.device.trainers.base import LocalTask, TrainOptions
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute.runtime.conformance import conformance
from coterie.compute.runtime.coverage import coverage
from coterie.compute.runtime.devices import Provider, discover
from coterie.compute.runtime.quarantine import identity_of
from coterie.compute.runtime.reference import distance
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.verdict import Verdict
from coterie.errors import CoterieError
from tests.providers.plans import CLASSES, PLANS, PlanCase, graph_cases

# Whole steps, whose sums are in another order on each side.
TOLERANCE = 1e-3
TASK = LocalTask(experiment="prove", round=1, seed=7)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What a provider made of everything.

    agrees: recipes computed by the provider alone. declined: recipes that need the CPU's help. wrong: what differs or
    fails, each with what was said. graphs: of plans that computed what onnx's evaluator computes; whole: how many of
    them ran without the CPU. trainings: of plans that ended as on the CPU. seconds: of the recipes; all of it.
    """

    provider: str
    version: str
    driver: str
    agrees: int
    declined: tuple[str, ...]
    wrong: tuple[str, ...]
    graphs: int
    whole: int
    trainings: int
    seconds: Mapping[str, float]

    @property
    def proved(self) -> bool:
        """Nothing was wrong, and something was computed."""
        return not self.wrong and self.agrees > 0


def prove(provider: Provider, *, graphs: Collection[str]) -> Proof:
    """Try everything. graphs: the names of those graphs of plans that the provider would have to run."""
    begun = time.perf_counter()
    report = conformance(provider)
    recipes = time.perf_counter() - begun
    wrong = [f"recipe {case.name!r} {case.outcome}: {case.error or case.distance}" for case in report.failures]
    count = whole = trainings = 0
    for plan in PLANS:
        for case in graph_cases(plan):
            if case.graph not in graphs:
                continue
            try:
                found = provider.executable(case.data).run(case.feeds)
                apart = max(distance(found[name], value) for name, value in case.expected.items())
            except CoterieError as error:
                wrong.append(f"graph {case.graph} of {plan.name!r}: {error.message}")
                continue
            if apart > TOLERANCE:
                wrong.append(f"graph {case.graph} of {plan.name!r} differs by {apart:.2g}")
                continue
            count += 1
            whole += coverage(case.data, provider).whole
        said = _trained(plan, provider)
        trainings += not said
        wrong += [said] if said else []
    return Proof(
        provider=provider.name,
        version=provider.runtime,
        driver=provider.driver,
        agrees=sum(case.outcome == "agrees" for case in report.cases),
        declined=tuple(case.name for case in report.declined),
        wrong=tuple(wrong),
        graphs=count,
        whole=whole,
        trainings=trainings,
        seconds={"recipes": round(recipes, 1), "all": round(time.perf_counter() - begun, 1)},
    )


def _trained(plan: PlanCase, provider: Provider) -> str:
    """What is wrong with a training of two epochs on the provider; "" when it ends as on the CPU."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10, *plan.feature.shape)).astype(np.float32)
    rows: dict[str, NDArray[Any]] = {"x": x, "y": rng.integers(0, CLASSES, 10).astype(np.int32)}
    if plan.feature.dtype == "int32":
        rows["x"] = rng.integers(0, CLASSES, (10, *plan.feature.shape)).astype(np.int32)
    compiled = plan.compiled()
    desk = DeviceProviders(
        provider.name, {}, found=lambda: [provider], judged=lambda each: Verdict(identity_of(each), trusted=True)
    )
    results = [
        PlanTrainer(providers=providers).train(
            compiled.plan, compiled.initial, compiled.frozen, TASK, rows, {}, TrainOptions()
        )
        for providers in (None, desk)
    ]
    if failed := [news.reason for news in desk.news() if news.state in ("failed", "absent")]:
        return f"training of {plan.name!r}: {failed[0]}"
    expected, found = (np.asarray(result.sections["delta"], np.float32) for result in results)
    apart = distance(found, expected)
    return "" if apart <= TOLERANCE else f"training of {plan.name!r} differs by {apart:.2g}"


def main() -> None:
    """Prove the provider that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("provider")
    parser.add_argument("--graphs", nargs="+", default=["probe", "begin", "train", "finish", "eval", "infer"])
    asked = parser.parse_args()
    provider = next((each for each in discover() if each.name == asked.provider), None)
    if provider is None:
        sys.exit(f"{asked.provider} is not on this machine: {', '.join(each.name for each in discover())} are.")
    proof = prove(provider, graphs=asked.graphs)
    print(json.dumps({**asdict(proof), "proved": proof.proved, "cpu": provider.name == CPU}))


if __name__ == "__main__":
    main()
