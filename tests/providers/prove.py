"""Prove one execution provider on this machine, in this interpreter.

    python -m tests.providers.prove WebGpuExecutionProvider [--graphs train eval] [--files exports] [--times]

Runs every recipe without help from the CPU, every graph of the plans of ``plans.py``, a training of each plan on the
provider against the same training on the CPU, and the files that are written beside plans. With --times, steps are
timed on it and on the CPU. The last line that is printed is one JSON object (``Proof``).
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from coterie.client_sdk.device.providers import DeviceProviders
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork, TrainOptions
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute.onnx.providers import PROVIDERS
from coterie.compute.runtime.conformance import conformance
from coterie.compute.runtime.coverage import coverage
from coterie.compute.runtime.devices import Provider, discover
from coterie.compute.runtime.quarantine import identity_of
from coterie.compute.runtime.reference import distance
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.steady import Fallback, SteadyLoop
from coterie.compute.runtime.verdict import Verdict
from coterie.errors import CoterieError
from tests.providers.controlled import controlled_cases
from tests.providers.doubles import double_cases
from tests.providers.emitted import EmittedCase
from tests.providers.exported import exported_cases
from tests.providers.plans import CLASSES, PLANS, PlanCase, graph_cases
from tests.providers.timed import step_times

# Whole steps, whose sums are in another order on each side. Private noise is the same for both.
TOLERANCE = 1e-3
FILES: Mapping[str, Callable[[Provider], Iterator[EmittedCase]]] = MappingProxyType(
    {
        "exports": lambda _: exported_cases(),
        "control flow": lambda _: controlled_cases(),
        "float64": lambda provider: double_cases(
            next(name for name, row in PROVIDERS.items() if row.runtime == provider.name)
        ),
    }
)
TASK = LocalTask(experiment="prove", round=1, seed=7)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What a provider made of everything.

    agrees: recipes computed by the provider alone. declined: recipes that need the CPU's help. wrong: what differs or
    fails, each with what was said. graphs: of plans that computed what onnx's evaluator computes; whole: how many of
    them ran without the CPU. trainings: of plans that ended as on the CPU. files: beside plans, that computed what they
    should, by their kind. outlived: where a graph ended that some
    providers take and then fail on: "there", or on the "cpu" with the state kept. seconds: of the recipes; all of it.
    steps: milliseconds of a training step on the CPU and on the provider, by model.
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
    files: Mapping[str, int]
    outlived: str
    seconds: Mapping[str, float]
    steps: Mapping[str, tuple[float, float]]

    @property
    def proved(self) -> bool:
        """Nothing was wrong, and something was computed."""
        return not self.wrong and self.agrees > 0


def prove(provider: Provider, *, graphs: Collection[str], files: Collection[str] = (), times: bool = False) -> Proof:
    """Try everything. graphs: the names of those graphs of plans that the provider would have to run; files: the kinds
    of those beside plans; times: whether steps are timed.
    """
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
    right = {kind: _right(provider, kind, wrong) for kind in files}
    outlived = _outlived(provider)
    wrong += [] if outlived in ("there", "cpu") else [outlived]
    steps = step_times(provider) if times else dict[str, tuple[float, float]]()
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
        files=right,
        outlived=outlived,
        seconds={"recipes": round(recipes, 1), "all": round(time.perf_counter() - begun, 1)},
        steps=steps,
    )


def _right(provider: Provider, kind: str, wrong: list[str]) -> int:
    """How many files of a kind compute what they should; of the others, adds what is wrong."""
    count = 0
    try:
        for case in FILES[kind](provider):
            said = _computed(case, provider)
            count += not said
            wrong += [f"{kind}: {said}"] if said else []
    except CoterieError as error:
        # What makes a file may run it too, as an export does before it delivers.
        wrong.append(f"{kind}: after {count} files one cannot be made: {error.message}")
    return count


def _computed(case: EmittedCase, provider: Provider) -> str:
    """What is wrong with a file on the provider; "" when it computes what it should."""
    try:
        apart = case.apart(provider.executable(case.data).run(case.feeds))
    except CoterieError as error:
        return f"{case.name}: {error.message}"
    return "" if apart <= case.most else f"{case.name} differs by {apart:.2g}"


def _trained(plan: PlanCase, provider: Provider) -> str:
    """What is wrong with a training of two epochs on the provider; "" when it ends as on the CPU."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10, *plan.feature.shape)).astype(np.float32)
    rows: dict[str, NDArray[Any]] = {"x": x, "y": rng.integers(0, CLASSES, 10).astype(np.int32)}
    if plan.feature.dtype == "int32":
        rows["x"] = rng.integers(0, CLASSES, (10, *plan.feature.shape)).astype(np.int32)
    compiled = plan.compiled()
    trusted = Verdict(identity_of(provider), trusted=True)
    desk = DeviceProviders(provider.name, {trusted.identity: trusted}, discovery=lambda: [provider])
    work = LocalWork(plan=compiled.plan, task=TASK, weights=compiled.initial, frozen=compiled.frozen, rows=rows)
    results = [
        PlanTrainer(providers=each).train(replace(work, options=TrainOptions(entropy=Random(7).randbytes)))
        for each in (None, desk)
    ]
    if failed := [news.reason for news in desk.news() if news.state in ("failed", "absent", "refused")]:
        return f"training of {plan.name!r}: {failed[0]}"
    expected, found = (np.asarray(result.sections["delta"], np.float32) for result in results)
    apart = distance(found, expected)
    return "" if apart <= TOLERANCE else f"training of {plan.name!r} differs by {apart:.2g}"


def _outlived(provider: Provider) -> str:
    """Three steps that add a pool's largest values and their places: WebGPU's provider takes MaxPool's second output
    and fails in the run. Plans never ask for it.
    """
    image, state = [1, 1, 4, 4], [1, 1, 2, 2]
    nodes = [
        helper.make_node("MaxPool", ["x"], ["largest", "places"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Cast", ["places"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["largest", "numbers"], ["both"]),
        helper.make_node("Add", ["both", "w"], ["next/w"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", image), ("w", state))
    ]
    result = helper.make_tensor_value_info("next/w", TensorProto.FLOAT, state)
    graph = helper.make_graph(nodes, "places", ends, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    told: list[Fallback] = []
    try:
        loop = SteadyLoop(
            provider.executable(model.SerializeToString()),
            carry={"next/w": "w"},
            constants={},
            state={"w": np.zeros(state, np.float32)},
            told=told.append,
        )
        for _ in range(3):
            loop.step({"x": np.arange(16, dtype=np.float32).reshape(image)})
    except CoterieError as error:
        return f"a graph that providers fail on: {error.message}"
    if not np.array_equal(loop.state()["w"].ravel(), [30, 42, 78, 90]):
        return f"a graph that providers fail on: the state is {loop.state()['w'].ravel().tolist()}"
    return "cpu" if told else "there"


def main() -> None:
    """Prove the provider that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("provider")
    parser.add_argument("--graphs", nargs="+", default=["probe", "begin", "train", "finish", "eval", "infer"])
    parser.add_argument("--files", nargs="*", default=list(FILES), choices=list(FILES))
    parser.add_argument("--times", action="store_true")
    asked = parser.parse_args()
    provider = next((each for each in discover() if each.name == asked.provider), None)
    if provider is None:
        sys.exit(f"{asked.provider} is not on this machine: {', '.join(each.name for each in discover())} are.")
    proof = prove(provider, graphs=asked.graphs, files=asked.files, times=asked.times)
    print(json.dumps({**asdict(proof), "proved": proof.proved, "cpu": provider.name == CPU}))


if __name__ == "__main__":
    main()
