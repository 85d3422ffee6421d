"""The plan trainer: runs a plan's graphs, and knows no algorithm.

probe, where there is one, sums over the rows; begin fills the state, train is stepped over batches, finish yields the
sections and the new client state. Which input takes what is said by the manifest (``source`` and ``key`` of every
input); the table ``_FILL`` is all that this module adds.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.evaluate import evaluate, run_probe
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.graph import NEXT, GraphInput, GraphName, Source
from coterie.client_sdk.device.trainers.base import Arrays, LocalResult, LocalWork, Tensors
from coterie.client_sdk.device.trainers.private_feeds import private_feeds
from coterie.compute.data.batches import Batches
from coterie.compute.runtime.choice import StepCase
from coterie.compute.runtime.devices import ON_CPU, Provider
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.hybrid_loop import HybridLoop
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.steady import Fallback, SteadyLoop
from coterie.errors import GraphRefused, InternalError, ProviderFailed
from coterie.protocol.metrics import MetricSums
from coterie.protocol.training import batch_order, random_inputs

if TYPE_CHECKING:
    from coterie.client_sdk.device.providers import DeviceProviders, Seat

KEPT_GRAPHS = 16

Result = TypeVar("Result")
Key: TypeAlias = tuple[str, int, str]
"""A graph's digest, the number of threads, the provider's name."""


@dataclass(frozen=True)
class Supply:
    """Everything that inputs may be filled from, apart from what changes with each step."""

    work: LocalWork
    hyper: Mapping[str, float]
    probe: Tensors = field(default_factory=dict[str, NDArray[np.float32]])
    state: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    counters: Mapping[str, float] = field(default_factory=dict[str, float])


def _client_state(supply: Supply, tensor: GraphInput) -> NDArray[Any]:
    found = supply.work.client_state.get(tensor.key)
    return np.zeros(tensor.shape, np.float32) if found is None else found


def _state(supply: Supply, tensor: GraphInput) -> NDArray[Any]:
    return supply.state[tensor.name]


_FILL: Mapping[Source, Callable[[Supply, GraphInput], NDArray[Any]]] = {
    "model": lambda supply, tensor: supply.work.weights[tensor.key],
    "frozen": lambda supply, tensor: supply.work.frozen[tensor.key],
    "client_state": _client_state,
    "probe": lambda supply, tensor: supply.probe[tensor.key],
    "hyper": lambda supply, tensor: np.array([supply.hyper[tensor.key]], np.float32),
    "active": lambda supply, tensor: np.ones(1, np.float32),
    "state": _state,
    "zeros": lambda supply, tensor: np.zeros(tensor.shape, tensor.dtype),
    "counter": lambda supply, tensor: np.array([supply.counters[tensor.key]], np.float32),
}
# Filled anew at each step.
_FED: frozenset[Source] = frozenset(("batch", "random", "noise"))


@dataclass(frozen=True)
class Begun:
    """A training before its first step. weight: examples that count."""

    supply: Supply
    weight: int

    def filled(self) -> Arrays:
        """Every input of the train graph that does not change from batch to batch."""
        graph = self.supply.work.plan.manifest.graph("train")
        return {t.name: _FILL[t.source](self.supply, t) for t in graph.inputs if t.source not in _FED}

    def step(self, feeds: Arrays) -> StepCase:
        """The first step, for who wants to time it. feeds: what ``step_feeds`` gives."""
        plan, filled = self.supply.work.plan, self.filled()
        graph = plan.manifest.graph("train")
        carried = frozenset(graph.carry.values())
        return StepCase(
            data=plan.graphs["train"],
            carry=graph.carry,
            constants={name: value for name, value in filled.items() if name not in carried},
            state={name: value for name, value in filled.items() if name in carried},
            feeds=feeds,
            frozen=frozenset(t.name for t in graph.from_source("frozen")),
            batch=frozenset(t.name for t in graph.from_source("batch")),
        )


class PlanTrainer:
    """Runs plans on ONNX Runtime. Loaded graphs and step loops are kept by digest, so a second task of a plan starts at
    once.

    providers: what chooses an execution provider for each plan; the CPU without it. Only graphs that are stepped over
    rows (probe, train, eval) run on the provider; begin and finish, which run once a task, on the CPU. A provider that
    fails costs nothing: the CPU repeats the step from the state before it and goes on, and ``providers`` is told.
    May be used from several threads; each training then has a loop of its own.
    """

    def __init__(self, *, providers: "DeviceProviders | None" = None) -> None:
        self._providers = providers
        self._lock = Lock()
        self._executables: dict[Key, Executable] = {}
        self._loops: dict[Key, list[SteadyLoop | HybridLoop]] = {}

    def train(self, work: LocalWork) -> LocalResult:
        """The probe if there is one, begin, steps, finish. The weight is the number of rows, at most the task's cap.

        Guarantees: a function of the work, bit for bit, for a given number of threads and ONNX Runtime version; of
        a plan with example-level privacy, whose weight is 1, of the entropy's bytes too. Of another provider than the
        CPU, up to that provider's rounding.
        """
        begun, options = self.begin(work), work.options
        batches = step_feeds(work)
        first = list(islice(batches, 1))
        seat = self._chosen(begun, first, options.threads)
        steps = 0
        with self._loop(begun, seat, options.threads) as loop:
            for feeds in chain(first, batches):
                loop.step(feeds)
                steps += 1
                options.on_step(steps)
            ended = loop.state()
        return self.finish(begun, ended, steps)

    def begin(self, work: LocalWork) -> "Begun":
        """What there is before the first step; for engines that step several clients at once."""
        plan, options = work.plan, work.options
        manifest = plan.manifest
        probe: Tensors = {}
        if "probe" in manifest.graphs:

            def probed(provider: Provider) -> Tensors:
                executable = self._executable(plan, "probe", options.threads, provider)
                none_yet = partial(options.on_step, 0)
                return run_probe(executable, manifest, work.weights, work.rows, frozen=work.frozen, on_batch=none_yet)

            probe = self._passed(plan, probed)
        supply = Supply(work, {**manifest.hyper, **work.task.hyper}, probe)
        begun = self._run(supply, "begin")
        state = {name.removeprefix(NEXT): value for name, value in begun.items()}
        # How many rows there are is private where rows are.
        examples = 1 if manifest.training.private else len(next(iter(work.rows.values())))
        weight = min(examples, work.task.weight_cap)
        return Begun(replace(supply, state=state), weight)

    def finish(self, begun: "Begun", ended: Mapping[str, NDArray[Any]], steps: int) -> LocalResult:
        """The result, from the carried inputs as the last step left them."""
        if not steps:
            raise InternalError("A training task ran no step.")
        # What begin made and no step changes is there for finish as well.
        supply = replace(begun.supply, state={**begun.supply.state, **ended})
        counters = {"steps": float(steps), "weight": float(begun.weight)}
        finished = self._run(replace(supply, counters=counters), "finish")
        kept = f"{NEXT}client_state/"
        return LocalResult(
            sections={spec.name: finished[f"upload/{spec.name}"] for spec in supply.work.plan.manifest.sections},
            weight=begun.weight,
            steps=steps,
            client_state={name.removeprefix(kept): value for name, value in finished.items() if name.startswith(kept)},
        )

    def evaluate(self, work: LocalWork) -> MetricSums:
        """The plan's metric sums over the rows."""
        plan, threads = work.plan, work.options.threads

        def evaluated(provider: Provider) -> MetricSums:
            probe = "probe" in plan.manifest.graphs
            return evaluate(
                self._executable(plan, "eval", threads, provider),
                plan.manifest,
                work.weights,
                work.rows,
                frozen=work.frozen,
                probe=self._executable(plan, "probe", threads, provider) if probe else None,
                threads=threads,
            )

        return self._passed(plan, evaluated)

    def _chosen(self, begun: "Begun", first: list[Arrays], threads: int) -> "Seat | None":
        """Where a plan's steps run; None for the CPU. first: the feeds of the first step, by which it is chosen."""
        if self._providers is None or not first:
            return None
        return self._providers.choose(begun.supply.work.plan.id, lambda: begun.step(first[0]), threads)

    def _passed(self, plan: Plan, run: Callable[[Provider], Result]) -> Result:
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

    def _run(self, supply: Supply, name: GraphName) -> Arrays:
        plan, threads = supply.work.plan, supply.work.options.threads
        filled = {t.name: _FILL[t.source](supply, t) for t in plan.manifest.graph(name).inputs}
        return dict(self._executable(plan, name, threads).run(filled))

    def _executable(self, plan: Plan, name: GraphName, threads: int, provider: Provider = ON_CPU) -> Executable:
        key = (plan.manifest.graph(name).sha256, threads, provider.name)
        with self._lock:
            found = self._executables.pop(key, None) or self._loaded(plan.graphs[name], provider, threads)
            self._executables[key] = found
            while len(self._executables) > KEPT_GRAPHS:
                del self._executables[next(iter(self._executables))]
        return found

    def _loaded(self, data: bytes, provider: Provider, threads: int) -> Executable:
        """On the CPU where the provider does not take this graph, which says nothing of its numbers."""
        try:
            return provider.executable(data, threads=threads)
        except GraphRefused as error:
            if provider.name == CPU:
                raise
            self._refused(provider, error)
            return ON_CPU.executable(data, threads=threads)

    def _parted(self, case: StepCase, provider: Provider, threads: int) -> HybridLoop | None:
        try:
            return case.parted(provider, threads=threads, told=self._fell_back)
        except GraphRefused as error:
            self._refused(provider, error)
            return None

    def _refused(self, provider: Provider, error: GraphRefused) -> None:
        if self._providers is not None:
            self._providers.refused(provider.name, error.message)

    @contextmanager
    def _loop(self, begun: Begun, seat: "Seat | None", threads: int) -> Generator[SteadyLoop | HybridLoop]:
        """A step loop of the train graph with this state and these constants, of which nobody else has hold."""
        plan, case = begun.supply.work.plan, begun.step({})
        provider, trunk = (ON_CPU, False) if seat is None else (seat.provider, seat.trunk)
        # A trunk holds the plan's frozen tensors.
        key = (plan.manifest.graph("train").sha256, threads, f"{provider.name} {plan.id if trunk else ''}")
        with self._lock:
            spare = self._loops.setdefault(key, [])
            loop = spare.pop() if spare else None
        if loop is None and trunk:
            loop = self._parted(case, provider, threads)
        if loop is None:
            executable = self._executable(plan, "train", threads, ON_CPU if trunk else provider)
            loop = case.whole(executable, told=self._fell_back)
        else:
            loop.load(case.state, constants=case.constants)
        yield loop
        with self._lock:
            self._loops.setdefault(key, []).append(loop)
            while len(self._loops) > KEPT_GRAPHS:
                del self._loops[next(iter(self._loops))]


def step_feeds(work: LocalWork) -> Iterator[Arrays]:
    """What each step of a training is fed: the batch and the numbers drawn for it, by input."""
    training, graph = work.plan.manifest.training, work.plan.manifest.graph("train")
    if training.private is not None:
        yield from private_feeds(work)
        return
    seed = work.task.seed
    limit = min((n for n in (training.max_steps, work.options.max_steps) if n is not None), default=None)
    batch_inputs, drawn = graph.from_source("batch"), graph.from_source("random")
    sizes = [math.prod(t.shape) for t in drawn]
    batches = Batches(work.rows, batch_size=training.batch_size, seed=seed, epochs=training.epochs, order=batch_order)
    for step, batch in enumerate(islice(batches, limit)):
        feeds: Arrays = {t.name: batch[t.key] for t in batch_inputs}
        parts = np.split(random_inputs(seed, step, sum(sizes)), np.cumsum(sizes)[:-1]) if sizes else []
        yield feeds | {t.name: part.reshape(t.shape) for t, part in zip(drawn, parts, strict=True)}
