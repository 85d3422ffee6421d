"""What `coterie doctor` finds out about execution providers: trust, coverage and the time of a step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.client_sdk.device.database import Database
from coterie.client_sdk.device.verdicts import SCHEMA, Verdicts
from coterie.compute.extension.providers import load_providers
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime.choice import StepCase, timings
from coterie.compute.runtime.conformance import ConformanceReport, conformance
from coterie.compute.runtime.coverage import Coverage, plan_coverage
from coterie.compute.runtime.devices import Provider, discover
from coterie.compute.runtime.libraries import plugin_libraries
from coterie.compute.runtime.quarantine import identity_of
from coterie.compute.runtime.step_recipes import STEPS
from coterie.compute.runtime.verdict import Identity, Verdict
from coterie.errors import ConfigurationError

if TYPE_CHECKING:
    from coterie.aggregation.plan.compile import CompiledPlan

SAMPLE = "step of a convolution network"


@dataclass(frozen=True, kw_only=True)
class ProviderRow:
    """One provider. before: what the device remembered of it, "" where it knew nothing. coverage: by graph. step_ms:
    None where it cannot be timed, for the reason ``fault``.
    """

    provider: Provider
    report: ConformanceReport
    before: str
    coverage: Mapping[str, Coverage]
    step_ms: float | None
    fault: str

    @property
    def verdict(self) -> str:
        """In a word, and why."""
        return "trusted" if self.report.passed else f"quarantined: {self.report.reason}"

    @property
    def recipes(self) -> str:
        """How many agree, and which need the CPU's help."""
        agree = sum(case.outcome == "agrees" for case in self.report.cases)
        declined = [case.name for case in self.report.declined]
        told = f"{agree} of {len(self.report.cases)} agree"
        return f"{told}; left to the CPU: {', '.join(declined)}" if declined else told

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "provider": self.provider.name,
            "version": self.provider.runtime,
            "driver": self.provider.driver,
            "trusted": self.report.passed,
            "reason": self.report.reason,
            "before": self.before,
            "recipes": {case.name: case.outcome for case in self.report.cases},
            "coverage": {name: str(found) for name, found in self.coverage.items()},
            "step_ms": self.step_ms,
            "fault": self.fault,
        }


def provider_rows(plan: "CompiledPlan | None", store: Path | None) -> Iterator[ProviderRow]:
    """Try every provider of this machine anew, and time a step on it.

    plan: whose graphs are covered and timed; a small convolution network without it. store: a device's folder, whose
    memory of providers is read and brought up to date. Raises ConfigurationError for a folder that is no device's, or
    that a client uses.
    """
    memory = None if store is None else _memory(store)
    remembered: Mapping[Identity, Verdict] = {} if memory is None else memory.recall()
    case, graphs = _sample() if plan is None else _of_plan(plan)
    providers = discover(load_providers())
    timed = {timing.provider.name: timing for timing in timings(case, providers)}
    for provider in providers:
        report = conformance(provider)
        verdict = Verdict(identity_of(provider), report.passed, report.reason)
        known = remembered.get(verdict.identity)
        if memory is not None:
            memory.record(verdict)
        timing = timed[provider.name]
        yield ProviderRow(
            provider=provider,
            report=report,
            before="" if known is None else "trusted" if known.trusted else f"quarantined: {known.reason}",
            coverage={name: found for (name, _), found in plan_coverage(graphs, [provider]).items()},
            step_ms=None if timing.fault else round(timing.seconds * 1000, 4),
            fault=timing.fault,
        )


def broken_libraries() -> Iterator[tuple[str, str]]:
    """Installed plug-ins of ONNX Runtime that bring no provider here: the package, and why."""
    for library in plugin_libraries():
        if library.fault:
            yield f"{library.package} {library.version}", library.fault


def _memory(store: Path) -> Verdicts:
    if not (store / "device.db").exists():
        raise ConfigurationError(
            f"{store} is no device's folder: it has no device.db.",
            hint="Name the folder of a client, as in --store .coterie/client, or leave --store out.",
            code="store_absent",
        )
    return Verdicts(Database(store, SCHEMA))


def _sample() -> tuple[StepCase, Mapping[str, bytes]]:
    recipe = next(recipe for recipe in STEPS if recipe.name == SAMPLE)
    graph = recipe.graph()
    data = to_onnx(graph, name="sample")
    return StepCase(data=data, carry={}, constants={}, state={}, feeds=recipe.feeds(graph)), {"sample": data}


def _of_plan(compiled: "CompiledPlan") -> tuple[StepCase, Mapping[str, bytes]]:
    """The first step of the plan on rows of zeros."""
    from coterie.client_sdk.device.trainers.base import LocalTask, TrainOptions
    from coterie.client_sdk.device.trainers.plan import PlanTrainer, step_feeds

    plan, schema = compiled.plan, compiled.plan.manifest.schema
    if "train" not in plan.graphs:
        raise ConfigurationError("The experiment's plan has no graphs: its trainer is external.", code="plan_external")
    columns = [(feature.name, feature.shape, feature.dtype) for feature in schema.features]
    columns.append((schema.label.name, (), schema.label.dtype))
    size = plan.manifest.training.batch_size
    rows = {name: np.zeros((size, *shape), dtype) for name, shape, dtype in columns}
    task, options = LocalTask(experiment="doctor", round=1, seed=0), TrainOptions()
    begun = PlanTrainer().begin(plan, compiled.initial, compiled.frozen, task, rows, {}, options)
    return begun.step(next(step_feeds(plan, task, rows, options))), plan.graphs
