"""The plan trainer: runs a plan's stages, and knows no algorithm.

It goes through the stages of a task in their order, as `coterie.aggregation.walk` runs them, and steps the one that
runs over ``steps``: that one's batches and random numbers are all that this module adds.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, dropwhile, islice, takewhile
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.evaluate import metric_sums
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.plan.stage import SAMPLE_WEIGHT, Stage, StageFile, TaskName
from coterie.aggregation.sequence_lengths import padding
from coterie.aggregation.step_case import step_case
from coterie.aggregation.walk import Supply, filled, run
from coterie.client_sdk.device.trainers.base import LocalResult, LocalWork
from coterie.client_sdk.device.trainers.private_feeds import private_feeds
from coterie.compute.data.supply import row_count, supply_of
from coterie.compute.onnx.providers import runs_loops
from coterie.compute.runtime.choice import StepCase
from coterie.compute.runtime.devices import ON_CPU, Provider
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.hybrid_loop import HybridLoop
from coterie.compute.runtime.length_loop import LengthLoop, ShorterStep
from coterie.compute.runtime.loop import Loop
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.spread.shared import SharedStep
from coterie.compute.runtime.steady import Fallback
from coterie.draws import random_arrays
from coterie.errors import GraphRefused, InternalError, ProviderFailed
from coterie.protocol.arrays import ArrayDict
from coterie.protocol.metrics import MetricSums

if TYPE_CHECKING:
    from coterie.client_sdk.device.parallel import DeviceParallel
    from coterie.client_sdk.device.seats import Seat, Seats

KEPT_GRAPHS = 16

Result = TypeVar("Result")
ExecutableKey: TypeAlias = tuple[str, int, str]
"""A graph's digest, the number of threads, the provider's name."""


@dataclass(frozen=True)
class StartedTraining:
    """A training before its first step.

    supply: what the stages before it left.
    weight: examples that count.
    """

    work: LocalWork
    supply: Supply
    weight: int

    @property
    def stage(self) -> Stage:
        """The stage that is stepped."""
        return stepped(self.work.plan.manifest)

    def filled(self) -> ArrayDict:
        """Every input of the steps that does not change from batch to batch."""
        return filled(self.stage, self.supply)

    def step(self, feeds: ArrayDict) -> StepCase:
        """The first step, for who wants to time it.

        feeds: what ``step_feeds`` gives.
        """
        return step_case(self.work.plan, self.stage, self.supply, feeds)


def stepped(manifest: Manifest) -> Stage:
    """The stage that is stepped over batches. Raises PlanRefused (``plan_stage_absent``)."""
    return manifest.stepped or manifest.stage("train")


class PlanTrainer:
    """Runs plans on ONNX Runtime. Loaded graphs and step loops are kept by digest, so a second task of a plan starts at
    once.

    providers: what chooses an execution provider for each plan; the CPU without it. Only stages that run over rows run
    on the provider; those that run once a task on the CPU. A provider that
    fails costs nothing: the CPU repeats the step from the state before it and goes on, and ``providers`` is told.
    parallel: what says whether several processes share the steps of a plan that runs on the CPU; one without it. A
    process that is lost ends the training (ProcessLost), and ``parallel`` is told.
    May be used from several threads; each training then has a loop of its own.
    """

    def __init__(self, *, providers: "Seats | None" = None, parallel: "DeviceParallel | None" = None) -> None:
        self._providers, self._parallel = providers, parallel
        self._lock = Lock()
        self._executables: dict[ExecutableKey, Executable] = {}
        self._loops: dict[ExecutableKey, list[Loop]] = {}

    def check(self, plan: Plan, task: TaskName, threads: int = 1) -> None:
        """Load every graph of the task on the CPU, to which falls back what a provider does not take.

        Raises PlanRefused (``plan_stage_absent``) for an external plan, GraphRefused.
        """
        for stage in plan.manifest.stages_of(task) or (plan.manifest.stage(task),):
            for file in stage.files:
                if file.kind is None and file.name in plan.graphs:
                    self._executable(plan, file, threads)

    def train(self, work: LocalWork) -> LocalResult:
        """The stages of a training. The weight is the number of rows, at most the task's cap.

        Guarantees: a function of the work, bit for bit, for a given number of threads and ONNX Runtime version; of a
        plan with example-level privacy, whose weight is 1, of the entropy's bytes too. Of another provider than the
        CPU, or of a plan's variant, up to that one's rounding.
        """
        begun, batches = self.begin(work), step_feeds(work)
        first = list(islice(batches, 1))
        seat = self._chosen(begun, first, work.options.threads)
        spread = self._spread(begun, first, seat, work.options.threads)
        try:
            ended, steps = self._stepped(begun, spread, seat, chain(first, batches))
        except ProviderFailed as error:
            # The state lay on a device that is lost, so the CPU begins again.
            self._fell_back(Fallback(ON_CPU.name if seat is None else seat.provider.name, 0, error.message))
            ended, steps = self._stepped(begun, None, None, step_feeds(work))
        return self.finish(begun, ended, steps)

    def _stepped(
        self, begun: StartedTraining, spread: SharedStep | None, seat: "Seat | None", batches: Iterable[ArrayDict]
    ) -> tuple[ArrayDict, int]:
        """The carried inputs after a step for each batch, and how many those were."""
        options, steps = begun.work.options, 0
        with self._stepping(begun, spread, seat, options.threads) as loop:
            for feeds in batches:
                loop.step(feeds)
                steps += 1
                options.on_step(steps)
            return loop.state(), steps

    def begin(self, work: LocalWork) -> StartedTraining:
        """What there is before the first step; for engines that step several clients at once."""
        manifest = work.plan.manifest
        supply = Supply(
            model=work.weights,
            frozen=work.frozen,
            client_state=work.client_state,
            hyper={**manifest.hyper, **work.task.hyper},
        )
        before = takewhile(lambda stage: stage.over != "steps", manifest.stages_of("train"))
        supply = self._run_stages(work, before, supply, on_batch=partial(work.options.on_step, 0))
        # How many rows there are is private where rows are.
        examples = 1 if manifest.training.private else row_count(work.rows)
        return StartedTraining(work, supply, min(examples, work.task.weight_cap))

    def finish(self, begun: StartedTraining, ended: Mapping[str, NDArray[Any]], steps: int) -> LocalResult:
        """The result, from the carried inputs as the last step left them."""
        if not steps:
            raise InternalError("A training task ran no step.")
        work, manifest = begun.work, begun.work.plan.manifest
        counters = {"steps": float(steps), "weight": float(begun.weight)}
        supply = replace(begun.supply.after({"carry": ended}), counters=counters)
        _, *after = dropwhile(lambda stage: stage.over != "steps", manifest.stages_of("train"))
        finished = self._run_stages(work, after, supply)
        sections = finished.at("upload")
        result = LocalResult(
            sections={spec.name: sections[spec.name] for spec in manifest.sections},
            weight=begun.weight,
            steps=steps,
            client_state=dict(finished.at("client_state")),
        )
        if manifest.training.precision == "float16" and not result.metrics(work.plan).examples:
            # Every step overflowed and was skipped. That is divergence, which whoever looks at the numbers refuses.
            nothing = {name: np.full_like(section, np.nan) for name, section in result.sections.items()}
            return replace(result, sections=nothing)
        return result

    def evaluate(self, work: LocalWork) -> MetricSums:
        """The plan's metric sums over the rows."""
        manifest = work.plan.manifest
        if not row_count(work.rows):
            return MetricSums()
        supply = Supply(model=work.weights, frozen=work.frozen, client_state=work.client_state)
        return metric_sums(manifest, self._run_stages(work, manifest.stages_of("evaluate"), supply))

    def _run_stages(
        self,
        work: LocalWork,
        stages: Iterable[Stage],
        supply: Supply,
        *,
        on_batch: Callable[[], None] = lambda: None,
    ) -> Supply:
        """The supply after these stages, none of which is stepped."""
        plan, threads = work.plan, work.options.threads
        for stage in stages:

            def run_on(provider: Provider, stage: Stage = stage, before: Supply = supply) -> Supply:
                executable = self._executable(plan, stage.files[0], threads, provider)
                return run(stage, executable, before, work.rows, on_batch=on_batch)

            supply = self._run_pass(plan, run_on) if stage.over == "pass" else run_on(ON_CPU)
        return supply

    def _chosen(self, begun: StartedTraining, first: list[ArrayDict], threads: int) -> "Seat | None":
        """Where a plan's steps run; None for the CPU.

        first: the feeds of the first step, by which it is chosen.
        """
        if self._providers is None or not first:
            return None
        return self._providers.choose(begun.work.plan.id, lambda: begun.step(first[0]), threads)

    def _spread(
        self, begun: StartedTraining, first: list[ArrayDict], seat: "Seat | None", threads: int
    ) -> SharedStep | None:
        """The step, cut for the processes that share it; None for one process, and on another provider than the CPU."""
        elsewhere = seat is not None and (seat.trunk or seat.provider.name != CPU)
        if self._parallel is None or not first or elsewhere:
            return None
        # Processes share the full length, which says nothing of how long the steps of shorter batches would take.
        if begun.stage.lengths and self._parallel.is_measured:
            return None
        # The sum of the weights is then known to each process without asking the others.
        cut = frozenset(t.name for t in begun.stage.from_source("batch") if t.key != SAMPLE_WEIGHT)
        plan = begun.work.plan.id
        return self._parallel.choose(plan, lambda: begun.step(first[0]), batch=cut, threads=threads)

    def _stepping(
        self, begun: StartedTraining, spread: SharedStep | None, seat: "Seat | None", threads: int
    ) -> "AbstractContextManager[Loop]":
        """A step loop with this state and these constants, of which nobody else has hold."""
        if spread is not None and self._parallel is not None:
            return self._parallel.loop(begun.step({}), spread)
        return self._loop(begun, seat, threads)

    def _run_pass(self, plan: Plan, run: Callable[[Provider], Result]) -> Result:
        """A whole pass over rows on the provider of this plan; on the CPU again from its beginning where that fails."""
        seat = None if self._providers is None else self._providers.chosen(plan.id)
        provider = ON_CPU if seat is None or seat.trunk else seat.provider
        try:
            return run(provider)
        except ProviderFailed as error:
            self._fell_back(Fallback(provider.name, 0, error.message))
            return run(ON_CPU)

    def _fell_back(self, fallback: Fallback) -> None:
        if self._providers is not None:
            self._providers.failed(fallback)

    def _executable(self, plan: Plan, file: StageFile, threads: int, provider: Provider = ON_CPU) -> Executable:
        key = (file.sha256, threads, provider.name)
        with self._lock:
            found = self._executables.pop(key, None) or self._load(plan.graphs[file.name], provider, threads)
            self._executables[key] = found
            while len(self._executables) > KEPT_GRAPHS:
                del self._executables[next(iter(self._executables))]
        return found

    def _load(self, data: bytes, provider: Provider, threads: int) -> Executable:
        """On the CPU where the provider does not take this graph, which says nothing of its numbers."""
        try:
            return provider.executable(data, threads=threads)
        except GraphRefused as error:
            if provider.name == CPU:
                raise
            self._refused(provider, error)
            return ON_CPU.executable(data, threads=threads)

    def _hybrid_loop(self, case: StepCase, provider: Provider, threads: int) -> HybridLoop | None:
        try:
            return case.parted(provider, threads=threads, told=self._fell_back)
        except GraphRefused as error:
            self._refused(provider, error)
            return None

    def _whole_loop(
        self, begun: StartedTraining, case: StepCase, file: StageFile, provider: Provider, threads: int
    ) -> Loop:
        """A loop over the whole step: in groups, where the plan says so and the provider runs loops."""
        plan = begun.work.plan
        executable = self._executable(plan, file, threads, provider)
        steps = plan.manifest.training.steps_per_call
        if begun.stage.lengths and executable.provider == CPU:
            return self._length_loop(begun, case, executable)
        if steps is None or not runs_loops(executable.provider):
            return case.whole(executable, told=self._fell_back)
        try:
            whole = replace(case, data=plan.graphs[file.name])
            return whole.grouped(executable, steps, provider, told=self._fell_back)
        except GraphRefused as error:
            self._refused(provider, error)
            return case.whole(executable, told=self._fell_back)

    def _length_loop(self, begun: StartedTraining, case: StepCase, full: Executable) -> LengthLoop:
        """A loop that takes each step at the shortest length of the plan that holds its batch."""
        plan = begun.work.plan
        inputs = {t.key: t.name for t in begun.stage.from_source("batch")}
        lengths = [
            ShorterStep(
                {inputs[key]: length for key, length in file.length.lengths.items()},
                plan.graphs[file.name],
                partial(self._executable, plan, file, full.threads),
            )
            for file in begun.stage.files
            if file.length is not None and file.name in plan.graphs
        ]
        fill = {name: padding(plan.manifest.schema, key) for key, name in inputs.items()}
        return LengthLoop(full, lengths, fill, carry=case.carry, constants=case.constants, state=case.state)

    def _refused(self, provider: Provider, error: GraphRefused) -> None:
        if self._providers is not None:
            self._providers.refused(provider.name, error.message)

    @contextmanager
    def _loop(self, begun: StartedTraining, seat: "Seat | None", threads: int) -> Generator[Loop]:
        """A step loop with this state and these constants, of which nobody else has hold."""
        plan, stage, case = begun.work.plan, begun.stage, begun.step({})
        provider, trunk, kind = (ON_CPU, False, None) if seat is None else (seat.provider, seat.trunk, seat.variant)
        file = next(each for each in stage.files if each.kind == kind)
        # A trunk holds the plan's frozen tensors, and a loop of several lengths the plan's other files.
        group = plan.id if trunk or stage.lengths else plan.manifest.training.steps_per_call or ""
        key = (file.sha256, threads, f"{provider.name} {group}")
        with self._lock:
            spare = self._loops.setdefault(key, [])
            loop = spare.pop() if spare else None
        if loop is None and trunk:
            loop = self._hybrid_loop(case, provider, threads)
        if loop is None:
            loop = self._whole_loop(begun, case, file, ON_CPU if trunk else provider, threads)
        else:
            loop.load(case.state, constants=case.constants)
        yield loop
        with self._lock:
            self._loops.setdefault(key, []).append(loop)
            while len(self._loops) > KEPT_GRAPHS:
                del self._loops[next(iter(self._loops))]


def step_feeds(work: LocalWork) -> Iterator[ArrayDict]:
    """What each step of a training is fed: the batch and the numbers drawn for it, by input."""
    training, stage = work.plan.manifest.training, stepped(work.plan.manifest)
    if training.private is not None:
        yield from private_feeds(work)
        return
    seed = work.task.seed
    limit = min((n for n in (training.max_steps, work.options.max_steps) if n is not None), default=None)
    batch_inputs, drawn = stage.from_source("batch"), stage.from_source("random")
    shapes = {t.name: t.shape for t in drawn}
    batches = supply_of(work.rows, training.batch_size, seed=seed).epochs(training.epochs)
    for step, batch in enumerate(islice(batches, limit)):
        feeds: ArrayDict = {t.name: batch[t.key] for t in batch_inputs}
        yield feeds | random_arrays(seed, step, shapes)
