"""What `coterie doctor` finds out about execution providers: trust, coverage and the time of a step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.client_sdk.device.database import ClientDatabase
from coterie.client_sdk.device.verdicts import SCHEMA, Verdicts
from coterie.compute.extension.providers import broken_providers, load_providers
from coterie.compute.extension.trial import tried
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime.choice import StepCase, Timing, timings
from coterie.compute.runtime.conformance import ConformanceReport, conformance
from coterie.compute.runtime.coverage import Coverage, plan_coverage
from coterie.compute.runtime.devices import Provider, discover
from coterie.compute.runtime.libraries import plugin_libraries
from coterie.compute.runtime.quarantine import verdict_on
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.step_recipes import STEPS
from coterie.compute.runtime.verdict import Identity, Verdict
from coterie.errors import ConfigurationError

if TYPE_CHECKING:
    from coterie.aggregation.compiling.compile import CompiledPlan

SAMPLE = "step of a convolution network"


@dataclass(frozen=True, kw_only=True)
class ProviderRow:
    """One provider.

    before: what the device remembered of it, "" where it knew nothing.
    coverage: by graph.
    step_ms: None where it was not timed, for the reason ``fault``.
    front_ms: of a step whose frozen front alone runs there, where the step has one. A provider in quarantine is given
        no graph but those of the trial, and so has neither.
    """

    provider: Provider
    report: ConformanceReport
    before: str
    coverage: Mapping[str, Coverage]
    step_ms: float | None
    fault: str
    front_ms: float | None = None

    @property
    def verdict(self) -> str:
        """In a word, and why."""
        return "trusted" if self.report.passed else f"quarantined: {self.report.reason}"

    @property
    def recipes(self) -> str:
        """How many agree, and which need the CPU's help."""
        agree = sum(case.outcome == "agrees" for case in self.report.cases)
        declined = [case.name for case in self.report.declined]
        told = f"{agree} of {len(self.report.cases)} recipes agree with NumPy"
        return f"{told}; left to the CPU: {', '.join(declined)}" if declined else told

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values. Not field by field: a row tells what it draws from its provider and report."""
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
            "front_ms": self.front_ms,
        }


def provider_rows(plan: "CompiledPlan | None", store: Path | None) -> Iterator[ProviderRow]:
    """Try every provider of this machine anew, and time a step on it.

    plan: whose graphs are covered and timed; a small convolution network without it.
    store: a device's folder, whose memory of providers is read and brought up to date.
    Raises ConfigurationError for a folder that is no device's, or that a client uses.
    """
    memory = None if store is None else _memory(store)
    remembered: Mapping[Identity, Verdict] = {} if memory is None else memory.recall()
    case, graphs = _sample() if plan is None else _of_plan(plan)
    for provider in discover(load_providers()):
        # The CPU is what this process computes on itself; what others bring may end a process.
        report = conformance(provider) if provider.name == CPU else tried(provider)
        verdict = verdict_on(report)
        known = remembered.get(verdict.identity)
        if memory is not None:
            memory.record(verdict)
        row = ProviderRow(
            provider=provider,
            report=report,
            before="" if known is None else "trusted" if known.trusted else f"quarantined: {known.reason}",
            coverage={},
            step_ms=None,
            fault="in quarantine",
        )
        yield _computed(row, case, graphs) if report.passed else row


def _computed(row: ProviderRow, case: StepCase, graphs: Mapping[str, bytes]) -> ProviderRow:
    """What a trusted provider makes of these graphs and of this step."""
    found = [timing for timing in timings(case, [row.provider]) if timing.provider.name == row.provider.name]
    front = next((_milliseconds(timing) for timing in found if timing.trunk), None)
    covered = {name: found for (name, _), found in plan_coverage(graphs, [row.provider]).items()}
    return replace(row, coverage=covered, step_ms=_milliseconds(found[0]), fault=found[0].fault, front_ms=front)


def _milliseconds(timing: Timing) -> float | None:
    return None if timing.fault else round(timing.seconds * 1000, 4)


def broken_packages() -> Iterator[tuple[str, str]]:
    """Installed packages that bring no provider though they should: plug-ins of ONNX Runtime, and those of entry
    points. Each with why.
    """
    for library in plugin_libraries():
        if library.fault:
            yield f"plug-in {library.package} {library.version}", library.fault
    for error in broken_providers():
        yield "provider of a package", error.message


def _memory(store: Path) -> Verdicts:
    if not (store / "device.db").exists():
        raise ConfigurationError(
            f"{store} is not a device's folder: it has no device.db.",
            hint="Name the folder of a client, as in --store .coterie/client, or leave --store out.",
            code="store_absent",
        )
    return Verdicts(ClientDatabase(store, SCHEMA))


def _sample() -> tuple[StepCase, Mapping[str, bytes]]:
    recipe = next(recipe for recipe in STEPS if recipe.name == SAMPLE)
    graph = recipe.graph()
    data = to_onnx(graph, name="sample")
    return StepCase(data=data, carry={}, constants={}, state={}, feeds=recipe.feeds(graph)), {"sample": data}


def _of_plan(compiled: "CompiledPlan") -> tuple[StepCase, Mapping[str, bytes]]:
    """The first step of the plan on rows of zeros."""
    from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork
    from coterie.client_sdk.device.trainers.plan import PlanTrainer, step_feeds

    plan, schema = compiled.plan, compiled.plan.manifest.schema
    if plan.manifest.stepped is None:
        raise ConfigurationError("The experiment's plan has no graphs: its trainer is external.", code="plan_external")
    columns = [(feature.name, feature.shape, feature.dtype) for feature in schema.features]
    columns.append((schema.label.name, schema.label.shape, schema.label.dtype))
    size = plan.manifest.training.batch_size
    rows = {name: np.zeros((size, *shape), dtype) for name, shape, dtype in columns}
    task = LocalTask(experiment="doctor", round=1, seed=0)
    work = LocalWork(plan=plan, task=task, weights=compiled.initial, frozen=compiled.frozen, rows=rows)
    return PlanTrainer().begin(work).step(next(step_feeds(work))), plan.graphs
