"""Many clients in one graph: the train graph mapped over clients, as `compute.vmap` maps it over examples, so that one
call of the runtime steps all of them.

What a step of a small model costs is mostly the calls, not the arithmetic; here a call serves a whole group. Clients
with about as many batches step together; one that is done has ``active = 0``, which leaves its state as it is, bit for
bit. Before and after its steps each client is on its own, as everywhere else.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.compiling.graphs import GraphBuilder
from coterie.aggregation.plan.stage import Stage
from coterie.client_sdk.device.trainers.plan import PlanTrainer, StartedTraining, step_feeds, stepped
from coterie.compute.batching import batch_graph
from coterie.compute.ir import Graph
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.step_loop import StepLoop
from coterie.errors import ConfigurationError
from coterie.protocol.arrays import ArrayDict, FloatArrays
from coterie.simulation.assignment import Assignment
from coterie.simulation.engines.engine import Setting
from coterie.simulation.engines.naming import PLAN_TRAINER
from coterie.simulation.engines.threads import Threads
from coterie.simulation.population import Client
from coterie.simulation.work import ClientEvaluation, Trained, Workplace

LANES = 8
"""Clients in one graph where the name does not say how many."""

_ALIKE = frozenset(("model", "frozen", "hyper"))


class Batched:
    """``batched`` or ``batched:16``: so many clients in one graph call, which may use ``workers`` threads.

    Guarantees: what each client sends differs from what it sends elsewhere by rounding only: sums of products may be
    taken in another order (see docs/simulation.md for how much). The same arguments give the same bits again.
    Updates come group by group, those of fewest batches first. Evaluation is that of ``threads``.
    Raises ConfigurationError: ``batched_trainer`` for a trainer of one's own, ``unknown_engine`` for a number that is
    none.
    """

    def __init__(self, setting: Setting) -> None:
        if setting.trainer != PLAN_TRAINER:
            raise ConfigurationError(
                "The engine 'batched' maps the plan's own train graph over clients; your own trainer has none.",
                hint='Use engine="threads" or "processes".',
                code="batched_trainer",
            )
        # No round has more clients than its cohort, and lanes without a client cost what others cost.
        self._lanes = min(_lanes(setting.name), setting.experiment.rounds.cohort)
        self._trainer = PlanTrainer()
        self._workplace = Workplace(setting.plan, setting.frozen, self._trainer)
        self._alone = Threads(setting)
        self._stage = stepped(setting.plan.manifest)
        self._active = frozenset(tensor.name for tensor in self._stage.from_source("active"))
        graph = GraphBuilder.of(setting.experiment).build()[self._stage.name]
        mapped = map_clients(graph, self._stage, self._lanes)
        self._executable = Executable(to_onnx(mapped, name=self._stage.name), threads=setting.workers)
        self._loop: StepLoop | None = None

    def train(self, clients: Sequence[Client], weights: FloatArrays, assignment: Assignment) -> Iterator[Trained]:
        """See `Engine`."""
        batch = self._workplace.plan.manifest.training.batch_size
        ordered = sorted(clients, key=lambda client: (-(-client.shard().examples // batch), client.number))
        for first in range(0, len(ordered), self._lanes):
            yield from self._group(ordered[first : first + self._lanes], weights, assignment)

    def evaluate(
        self, clients: Sequence[Client], weights: FloatArrays, assignment: Assignment
    ) -> Iterator[ClientEvaluation]:
        """See `Engine`."""
        return self._alone.evaluate(clients, weights, assignment)

    def close(self) -> None:
        """End the threads of evaluation."""
        self._alone.close()

    def _group(self, clients: Sequence[Client], weights: FloatArrays, assignment: Assignment) -> Iterator[Trained]:
        seats = [self._seat(client, weights, assignment) for client in clients]
        loop = self._load_lanes([seat.begun.filled() for seat in seats])
        feeds = {info.name: np.zeros(info.shape, info.dtype) for info in loop.feeds}
        while True:
            active = np.zeros(self._lanes, np.float32)
            for lane, seat in enumerate(seats):
                fed = next(seat.feeds, None)
                if fed is None:
                    continue
                active[lane] = 1
                seat.steps += 1
                for name, value in fed.items():
                    feeds[name][lane] = value
            if not active.any():
                break
            for name in self._active:
                feeds[name][:] = active.reshape(feeds[name].shape)
            # Idle lanes compute on what lies there: zeros, or the last batch.
            loop.step(feeds)
        ended = loop.state()
        for lane, seat in enumerate(seats):
            own = {name: stacked[lane] for name, stacked in ended.items()}
            result = self._trainer.finish(seat.begun, own, seat.steps)
            yield self._workplace.outgoing(seat.client.number, result, seat.client.state, assignment)

    def _seat(self, client: Client, weights: FloatArrays, assignment: Assignment) -> "_Seat":
        work = self._workplace.training(client.number, client.shard().train, client.state, weights, assignment)
        return _Seat(client, self._trainer.begin(work), step_feeds(work))

    def _load_lanes(self, filled: Sequence[Mapping[str, NDArray[Any]]]) -> StepLoop:
        """The step loop with these clients in its lanes; lanes without a client repeat the first and stay idle."""
        carried = frozenset(self._stage.carry.values())
        padded = [*filled, *[filled[0]] * (self._lanes - len(filled))]
        alike = {t.name for t in self._stage.inputs if t.source in _ALIKE}
        values = {
            name: padded[0][name] if name in alike else np.stack([one[name] for one in padded])
            for name in filled[0]
            if name not in self._active
        }
        state = {name: value for name, value in values.items() if name in carried}
        constants = {name: value for name, value in values.items() if name not in carried}
        if self._loop is None:
            carry = self._stage.carry
            self._loop = StepLoop(self._executable, carry=carry, constants=constants, state=state, in_place=True)
        else:
            self._loop.load(state, constants=constants)
        return self._loop


@dataclass
class _Seat:
    """A client of a group: what it is fed next, and how many steps it has taken."""

    client: Client
    begun: StartedTraining
    feeds: Iterator[ArrayDict]
    steps: int = 0


def map_clients(graph: Graph, stage: Stage, lanes: int) -> Graph:
    """The train graph of so many clients. What is alike for all of them (the version, frozen tensors, hyper-parameters)
    stays as it is; everything else gets a first axis of clients. Names stay.
    """
    sources = {tensor.name: tensor.source for tensor in stage.inputs}
    mapped = [sources[name] not in _ALIKE for name in graph.inputs]
    wide, _ = batch_graph(graph, mapped, lanes, [True] * len(graph.outputs))
    inputs = dict(zip(graph.inputs, wide.inputs.values(), strict=True))
    outputs = dict(zip(graph.outputs, wide.outputs.values(), strict=True))
    bare = tuple(replace(node, source="") for node in wide.nodes)
    return optimise(Graph(inputs, bare, outputs))


def _lanes(name: str) -> int:
    _, colon, number = name.partition(":")
    if not colon:
        return LANES
    if number.isdecimal() and int(number) >= 1:
        return int(number)
    raise ConfigurationError(
        f"The engine {name[:64]!r} has no number of clients after the colon.",
        hint="Write batched or, for example, batched:16.",
        code="unknown_engine",
    )
