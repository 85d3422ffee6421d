"""The host of the round machine in a simulation: performs its effects in memory and in one folder."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation import engine
from coterie.aggregation.aggregate import aggregate_updates
from coterie.aggregation.evaluate import check_metrics
from coterie.aggregation.experiment import Experiment, ExternalModel
from coterie.aggregation.history import History, RoundRecord
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.compile import compile_plan
from coterie.aggregation.progress import Progress, StartRound, after_round, configure, first_round
from coterie.client_sdk.device.data import DataSource
from coterie.client_sdk.device.trainers.base import LocalTask, Trainer, TrainOptions
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.errors import ExperimentError, InternalError, UpdateRefused
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.files import write_durably
from coterie.protocol.tensors import read_file
from coterie.simulation.clients import Answer, Assignment, VirtualClient, evaluate, make_clients, train

Tensors = dict[str, NDArray[Any]]
Result = TypeVar("Result")


@dataclass
class Traffic:
    """Bytes that would have crossed the wire in one round: updates up; weights, and a plan to each newcomer, down."""

    up: int = 0
    down: int = 0


@dataclass
class Rounds:
    """A simulation under way. Made by `of`, run once by `run`."""

    experiment: Experiment
    plan: Plan
    frozen: Tensors
    clients: list[VirtualClient]
    trainer: Trainer
    threads: int
    folder: Path
    scratch: Path
    progress: Progress
    rows: Mapping[str, NDArray[Any]] | None
    server_state: Path | None = None
    pending: dict[int, Answer] = field(default_factory=dict[int, Answer])
    informed: set[int] = field(default_factory=set[int])
    traffic: Traffic = field(default_factory=Traffic)

    @staticmethod
    def of(
        experiment: Experiment,
        clients: Sequence[DataSource],
        *,
        trainer: Trainer | None,
        threads: int,
        folder: Path,
        scratch: Path,
    ) -> "Rounds":
        """Compile the plan and check everything before the first round."""
        if isinstance(experiment.model, ExternalModel) and trainer is None:
            raise ExperimentError(
                f"Experiment {experiment.name!r} has an ExternalModel, so its clients need a trainer.",
                hint="Give simulate(..., trainer=ExternalTrainer(fit)).",
                code="trainer_missing",
            )
        compiled = compile_plan(experiment)
        made = make_clients(experiment.schema, clients, compiled.plan.manifest.training.holdout)
        if len(made) < experiment.rounds.min_updates:
            raise ExperimentError(
                f"Every round needs {experiment.rounds.min_updates} updates, but there are only {len(made)} clients.",
                hint="Lower cohort and min_updates in the round policy, or give more clients.",
                code="too_few_clients",
            )
        initial = compiled.initial_bytes
        digest = sha256_hex(initial)
        write_durably(folder / f"{digest}.safetensors", initial)
        return Rounds(
            experiment=experiment,
            plan=compiled.plan,
            frozen=dict(compiled.frozen),
            clients=made,
            trainer=trainer or PlanTrainer(),
            threads=threads,
            folder=folder,
            scratch=scratch,
            progress=Progress(current=digest),
            rows=experiment.evaluation_rows(),
        )

    def run(self, on_round: Callable[[RoundRecord], None]) -> History:
        """All rounds."""
        records: list[RoundRecord] = []
        policy = self.experiment.rounds
        self.progress, action = first_round(self.progress, policy)
        with ThreadPoolExecutor(self.threads) as pool:
            while isinstance(action, StartRound):
                begun, self.traffic = time.monotonic(), Traffic()
                ended = self._round(action, pool)
                self.progress, action = after_round(self.progress, ended, policy)
                seconds = time.monotonic() - begun
                record = RoundRecord.of(ended, bytes_up=self.traffic.up, bytes_down=self.traffic.down, seconds=seconds)
                records.append(record)
                on_round(record)
        return History(tuple(records), action.reason.value, self.progress.kept)

    def version(self, digest: str) -> Tensors:
        """The weights of a version."""
        return read_file(self._path(digest))

    def _round(self, action: StartRound, pool: ThreadPoolExecutor) -> engine.Round:
        config = configure(self.experiment.rounds, action.number, central=self.rows is not None)
        round, effects = engine.start(action.number, action.base, config)
        todo = deque(effects)
        while todo:
            for event in self._perform(round, todo.popleft(), action, pool):
                if round.phase.final:
                    break
                round, more = engine.step(round, event)
                todo.extend(more)
        if not round.phase.final:
            raise InternalError(f"Round {round.number} stands still in {round.phase.value}.")
        self._settle(round)
        return round

    def _perform(
        self, round: engine.Round, effect: engine.Effect, action: StartRound, pool: ThreadPoolExecutor
    ) -> list[engine.Event]:
        """What happens when an effect is performed."""
        match effect:
            case engine.OfferTasks(kind="train") if not round.leased and not round.accepted:
                return self._train(round, self._assignment(round, action), pool)
            case engine.OfferTasks(kind="evaluate") if not round.evaluation_leased and not round.evaluated:
                return self._survey(round, self._assignment(round, action), pool)
            case engine.Aggregate():
                return [self._aggregate(round)]
            case engine.EvaluateCentrally(version=version):
                return [self._evaluate(version, action)]
            case engine.Commit():
                return [engine.Committed()]
            case _:
                # Deadlines, closed tasks and offers that are repeated mean nothing where everybody answers at once.
                return []

    def _assignment(self, round: engine.Round, action: StartRound) -> Assignment:
        base = round.version or round.base
        return Assignment(
            experiment=self.experiment.name,
            round=round.number,
            base=base,
            weights=self.version(base),
            frozen=self.frozen,
            hyper=action.hyper,
            seed=self.experiment.seed,
            weight_cap=self.experiment.rounds.weight_cap,
        )

    def _train(self, round: engine.Round, assignment: Assignment, pool: ThreadPoolExecutor) -> list[engine.Event]:
        chosen = self._choose(self.clients, round.config.cohort, round.number, "train")
        folder = self.scratch / "updates"
        folder.mkdir(exist_ok=True)
        answers = _together(pool, lambda c: train(c, self.plan, self.trainer, assignment, folder), chosen)
        self.pending = {client.number: answer for client, answer in zip(chosen, answers, strict=True)}
        self.traffic.up += sum(answer.size for answer in answers)
        self._count_down(chosen, assignment)
        events: list[engine.Event] = [engine.TaskLeased() for _ in chosen]
        events += [engine.UpdateAccepted() for _ in chosen]
        return events if len(chosen) == round.config.cohort else [*events, engine.DeadlinePassed("train")]

    def _survey(self, round: engine.Round, assignment: Assignment, pool: ThreadPoolExecutor) -> list[engine.Event]:
        able = [client for client in self.clients if client.can_evaluate]
        chosen = self._choose(able, round.config.evaluation_cohort, round.number, "evaluate")
        found = _together(pool, lambda c: evaluate(c, self.plan, self.trainer, assignment), chosen)
        self.traffic.up += sum(size for _, size in found)
        self._count_down(chosen, assignment)
        events: list[engine.Event] = [engine.EvaluationLeased() for _ in chosen]
        cap = self.experiment.rounds.weight_cap
        for sums, _ in found:
            try:
                events.append(engine.EvaluationAccepted(check_metrics(self.plan.manifest, sums, weight_cap=cap).sums))
            except UpdateRefused:
                events.append(engine.EvaluationFailed())
        return events if len(chosen) == round.config.evaluation_cohort else [*events, engine.DeadlinePassed("evaluate")]

    def _aggregate(self, round: engine.Round) -> engine.Event:
        out = self.scratch / "result"
        try:
            result = aggregate_updates(
                self.plan.manifest,
                base=self._path(round.base),
                updates=[answer.path for answer in self.pending.values()],
                server=self.experiment.server_optimizer,
                server_state=self.server_state,
                out=out,
                weight_cap=self.experiment.rounds.weight_cap,
            )
        except UpdateRefused as error:
            return engine.AggregateFailed(f"{error.reason}: {error.message}")
        Path(result.weights).replace(self._path(result.version))
        if result.state is not None:
            self._next_state.unlink(missing_ok=True)
            Path(result.state).replace(self._next_state)
        return engine.AggregateReady(result.version, result.metrics, len(result.rejected))

    def _evaluate(self, version: str, action: StartRound) -> engine.Event:
        if self.rows is None:
            raise InternalError("There are no rows to evaluate on.")
        task = LocalTask(experiment=self.experiment.name, round=action.number, seed=self.experiment.seed)
        options = TrainOptions(threads=self.threads)
        sums = self.trainer.evaluate(self.plan, self.version(version), self.frozen, task, self.rows, options)
        return engine.Evaluated(sums.sums)

    def _settle(self, round: engine.Round) -> None:
        """Client and server state become what a committed round made of them; an abandoned round changes neither."""
        if round.phase is engine.Phase.COMMITTED:
            for number, answer in self.pending.items():
                self.clients[number] = self.clients[number].with_state(answer.state)
            if self._next_state.exists():
                self._next_state.replace(self.scratch / "server_state.safetensors")
                self.server_state = self.scratch / "server_state.safetensors"
        for answer in self.pending.values():
            answer.path.unlink(missing_ok=True)
        self.pending = {}

    def _choose(self, clients: list[VirtualClient], count: int, number: int, what: str) -> list[VirtualClient]:
        text = f"{self.experiment.seed}/{what}/{number}"
        generator = np.random.Generator(np.random.PCG64(int(sha256_hex(text.encode()), 16)))
        places = generator.permutation(len(clients))[: min(count, len(clients))]
        return [clients[place] for place in sorted(places.tolist())]

    def _count_down(self, chosen: Sequence[VirtualClient], assignment: Assignment) -> None:
        plan = len(self.plan.manifest.data) + sum(len(graph) for graph in self.plan.graphs.values())
        newcomers = {client.number for client in chosen} - self.informed
        self.informed |= newcomers
        self.traffic.down += len(chosen) * self._path(assignment.base).stat().st_size + len(newcomers) * plan

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}.safetensors"

    @property
    def _next_state(self) -> Path:
        return self.scratch / "next_state.safetensors"


def _together(
    pool: ThreadPoolExecutor, work: Callable[[VirtualClient], Result], clients: Sequence[VirtualClient]
) -> list[Result]:
    """The results in the order of the clients, whatever order they were made in."""
    return list(pool.map(work, clients))
