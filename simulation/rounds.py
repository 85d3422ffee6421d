"""The host of the round machine in a simulation: does in memory what is due."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation import engine
from coterie.aggregation.eligibility import choose, may_try, measures
from coterie.aggregation.evaluate import read_evaluation
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.history import History
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.private.local_noise import local_terms
from coterie.aggregation.private.secure_aggregation import coordinator_noises
from coterie.aggregation.progress import ExperimentProgress, StartRound, after_round, configure, first_round
from coterie.aggregation.record import RoundRecord
from coterie.aggregation.server_optimizers import OptimizerState
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork, Trainer, TrainOptions
from coterie.errors import InternalError, UpdateRefused
from coterie.protocol.arrays import FloatArrays
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.conversion import from_json, from_text, to_json, to_text
from coterie.protocol.secagg import SecureTerms
from coterie.protocol.update import read_update
from coterie.simulation.assignment import Assignment
from coterie.simulation.central import evaluated
from coterie.simulation.checkpoint import Checkpoint, between_rounds, go_on
from coterie.simulation.collect import Lag
from coterie.simulation.collected_round import CollectedRound
from coterie.simulation.engines.engine import Engine
from coterie.simulation.population import Population, name_of
from coterie.simulation.ring import RingSum, RingSurvey
from coterie.simulation.secrecy import collector, with_terms
from coterie.simulation.shares import WorkShares
from coterie.simulation.spending import SimulatedSpending
from coterie.simulation.versions import Versions
from coterie.simulation.virtual_time import Air

ProgressWatch = Callable[[int, Literal["train", "evaluate"], int, int], None]
"""(round, what clients do, how many have done it, of how many)."""


def _is_awaited(entry: engine.Due) -> bool:
    return isinstance(entry, engine.Do) or (isinstance(entry, engine.Ask) and entry.deadline_s is not None)


@dataclass
class SimulationState:
    """A simulation under way. The mutable fields are what a checkpoint keeps, and what the open round has so far."""

    experiment: Experiment
    plan: Plan
    frozen: FloatArrays
    population: Population
    runner: Engine
    trainer: Trainer
    versions: Versions
    progress: ExperimentProgress
    rows: Mapping[str, NDArray[Any]] | None
    spending: SimulatedSpending
    shares: WorkShares
    threads: int = 1
    watch: ProgressWatch = lambda round, kind, done, total: None
    server_state: OptimizerState = field(default_factory=dict[str, NDArray[Any]])
    informed: set[int] = field(default_factory=set[int])
    records: list[RoundRecord] = field(default_factory=list[RoundRecord])
    air: Air = field(default_factory=Air)
    before: engine.Round | None = None
    _open: CollectedRound = field(default_factory=CollectedRound)

    def run(self, on_round: Callable[[RoundRecord], None]) -> History:
        """The rounds that are left.

        on_round: called after each.
        """
        policy = self.experiment.rounds
        if self.progress.finished is not None:
            return History(tuple(self.records), self.progress.finished.value, self.progress.result_version)
        self.progress, action = first_round(self.progress, policy)
        while isinstance(action, StartRound):
            begun = time.monotonic()
            self._open = CollectedRound(
                named=self.experiment.privacy is None, with_losses=self.experiment.secure is None
            )
            ended = self._round(action)
            self.progress, action = after_round(self.progress, ended, policy)
            bases = [flight.base for flight in self.air.flights]
            self.versions.retain((self.progress.current, self.progress.result_version, *bases))
            record = RoundRecord.of(
                ended,
                bytes_up=self._open.bytes_up,
                bytes_down=self._open.bytes_down,
                seconds=time.monotonic() - begun,
                diverged=self._open.diverged,
                participants=self._open.participants(),
            )
            record = self.spending.counted(record)
            self.records.append(record)
            on_round(record)
        return History(tuple(self.records), action.reason.value, self.progress.result_version)

    def checkpoint(self) -> Checkpoint:
        """This value between two rounds."""
        return Checkpoint(
            progress=between_rounds(self.progress),
            records=tuple(self.records),
            clients=dict(self.population.states),
            server=self.server_state,
            participation=dict(self.population.participation),
            informed=frozenset(self.informed),
            air=to_json(self.air) if self.experiment.rounds.buffered else None,
            before=None if self.before is None else to_text(self.before),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint, with as many rounds as the experiment has now. Raises StorageError
        (``checkpoint_damaged``) when a version that is still needed cannot be read.
        """
        self.progress = go_on(checkpoint.progress, self.experiment.rounds.rounds)
        self.records = [self.spending.counted(record) for record in checkpoint.records]
        self.population.states = dict(checkpoint.clients)
        self.population.participation = dict(checkpoint.participation)
        self.server_state = checkpoint.server
        self.informed = set(checkpoint.informed)
        self.air = Air() if checkpoint.air is None else from_json(Air, checkpoint.air, code="checkpoint_damaged")
        self.before = None if checkpoint.before is None else from_text(engine.Round, checkpoint.before)
        for flight in (*self.air.flights, *self.air.landed):
            self.versions.vector(flight.base)
        for digest in (self.progress.current, self.progress.result_version):
            self.versions.vector(digest)

    def _round(self, action: StartRound) -> engine.Round:
        config = configure(
            self.experiment.rounds,
            action.number,
            central=self.rows is not None,
            secure=self.experiment.secure is not None,
            noised=coordinator_noises(self.experiment.privacy),
        )
        round = engine.start(action.number, action.base, config, place=action.place, before=self.before)
        last = engine.oldest(round)
        if last is not None:
            self.air.close(last)
        while not round.cleaned:
            events = self._perform_next(round, action)
            if not events:
                raise InternalError(f"Round {round.number} is stuck in {round.phase.value}.")
            for event in events:
                round = engine.step(round, event)
        self.before = round if config.buffered else None
        return round

    def _take_back(self, round: engine.Round) -> None:
        if engine.Close("train") in engine.due(round):
            self.air.close()

    def _perform_next(self, round: engine.Round, action: StartRound) -> list[engine.RoundEvent]:
        """Do the first of what is due, and say what happened. Deadlines pass at once, since everybody has answered.

        Devices are asked for what the round waits for alone: a buffered round may let others train while it is
        evaluated, and here nobody starts on a version that is about to be replaced.
        """
        self._take_back(round)
        match next(entry for entry in engine.due(round) if _is_awaited(entry)):
            case engine.Do(engine.Work.AGGREGATE | engine.Work.SUM, noised=noised):
                self._train_landed(round, noised=noised)
                return [self._aggregate()]
            case engine.Do(engine.Work.EVALUATE, str(version)):
                return [self._evaluate(version, action)]
            case engine.Do(engine.Work.SUM_EVALUATIONS):
                return [self._sum_evaluations()]
            case engine.Do(engine.Work.COMMIT):
                return [engine.Committed()]
            case engine.Do(engine.Work.CLEAN):
                self._settle(round)
                return [engine.Cleaned()]
            case engine.Ask(kind="train", slots=slots) if round.config.buffered:
                return self._run_buffered(round, slots)
            case engine.Ask(kind="train", noised=noised):
                return self._train(round, self._assignment_of(round, action), noised=noised)
            case engine.Ask(kind="evaluate"):
                return self._survey(round, self._assignment_of(round, action))
            case _:
                return []

    def _assignment_of(self, round: engine.Round, action: StartRound) -> Assignment:
        return self._assignment(round.number, round.version or round.base, action.hyper)

    def _assignment(self, number: int, base: str, hyper: Mapping[str, float]) -> Assignment:
        local = local_terms(self.experiment.privacy)
        return Assignment(
            experiment=self.experiment.name,
            round=number,
            base=base,
            hyper=hyper,
            seed=self.experiment.seed,
            weight_cap=self.experiment.rounds.weight_cap,
            threads=self.threads,
            local=None if local is None else local.model_dump_json(),
            promised=self.experiment.privacy is not None,
        )

    def _train(self, round: engine.Round, assignment: Assignment, *, noised: bool) -> list[engine.RoundEvent]:
        chosen = self._choose(round.config.cohort, round.number)
        clients = [self.population.client(number) for number in chosen]
        manifest, state = self.plan.manifest, self.server_state
        assignment = with_terms(self.experiment, manifest, assignment, "train", state)
        order = self._random_order(f"groups/{assignment.round}", chosen)
        into = collector(self.experiment, manifest, assignment, order, state, self.shares, noised=noised)
        self.watch(round.number, "train", 0, len(clients))
        weights = self.versions.read(assignment.base)
        for done, trained in enumerate(self.runner.train(clients, weights, assignment), 1):
            self._open.add(trained, into)
            self.watch(round.number, "train", done, len(clients))
        self._open.collector = into
        self._count_down(chosen, assignment)
        events: list[engine.RoundEvent] = [engine.TaskLeased() for _ in chosen]
        events += [engine.UpdateAccepted() for _ in chosen]
        return events if len(chosen) == round.config.cohort else [*events, engine.DeadlinePassed("train")]

    def _run_buffered(self, round: engine.Round, count: int) -> list[engine.RoundEvent]:
        """Keep the clients of a buffered round at work, and let the one come back that is done first.

        Nobody starts on a version that is about to be replaced: making one takes no time here.
        """
        policy, privacy = self.experiment.rounds, self.experiment.privacy
        busy, landed = self.air.busy, {flight.number for flight in self.air.landed}
        rested = (int(one.id) for one in self.population.candidates(policy, round.number, privacy))
        free = [
            number
            for number in rested
            if number not in busy and may_try((), "train", privacy, in_buffer=number in landed)
        ]
        started = self.air.start(
            free, count, round=round.number, place=round.place, base=round.base, seed=self.experiment.seed
        )
        events: list[engine.RoundEvent] = [engine.TaskLeased()] * started
        flight = self.air.land()
        if flight is None:
            return [*events, engine.DeadlinePassed("train")]
        return [*events, engine.UpdateAccepted(flight.place)]

    def _train_landed(self, round: engine.Round, *, noised: bool) -> None:
        """Let the clients of a full buffer work, those on one version together: only the order of their return had to
        be known before.
        """
        if not round.config.buffered:
            return
        opened = self._assignment(round.number, round.base, self.experiment.rounds.hyper(round.number))
        manifest = self.plan.manifest
        into = collector(self.experiment, manifest, opened, (), self.server_state, self.shares, noised=noised)
        done = 0
        self.watch(round.number, "train", 0, len(self.air.landed))
        groups: dict[tuple[int, str, int], list[int]] = {}
        for flight in self.air.landed:
            groups.setdefault((flight.place, flight.base, flight.round), []).append(flight.number)
        for (place, base, number), clients in sorted(groups.items()):
            assignment = self._assignment(number, base, self.experiment.rounds.hyper(number))
            lag = Lag(round.place - place, base)
            workers = [self.population.client(one) for one in sorted(clients)]
            for trained in self.runner.train(workers, self.versions.read(base), assignment):
                done += 1
                self._open.add(trained, into, lag)
                self.watch(round.number, "train", done, len(self.air.landed))
            into.flush()
            self._count_down(sorted(clients), assignment)
        self._open.collector = into

    def _survey(self, round: engine.Round, assignment: Assignment) -> list[engine.RoundEvent]:
        wanted = round.config.evaluation_cohort
        chosen = self._choose_evaluators(wanted, round.number)
        clients = [self.population.client(number) for number in chosen]
        events: list[engine.RoundEvent] = [engine.EvaluationLeased() for _ in chosen]
        assignment = with_terms(self.experiment, self.plan.manifest, assignment, "evaluate", self.server_state)
        manifest, cap = self.plan.manifest, self.experiment.rounds.weight_cap
        if assignment.secure is not None:
            running = RingSum(SecureTerms.model_validate_json(assignment.secure))
            self._open.survey = RingSurvey(manifest, assignment.base, running)
        specs = manifest.sections_for("evaluate")
        self.watch(round.number, "evaluate", 0, len(clients))
        weights = self.versions.read(assignment.base)
        for done, measured in enumerate(self.runner.evaluate(clients, weights, assignment), 1):
            try:
                if measured.refused is not None:
                    events.append(engine.EvaluationFailed())
                elif self._open.survey is None:
                    sums = read_evaluation(manifest, read_update(measured.update, specs), weight_cap=cap)
                    events.append(engine.EvaluationAccepted(sums.sums))
                else:
                    usable = self._open.survey.add(measured)
                    events.append(engine.EvaluationAccepted() if usable else engine.EvaluationFailed())
            except UpdateRefused:
                events.append(engine.EvaluationFailed())
            self._open.bytes_up += measured.size
            self.watch(round.number, "evaluate", done, len(clients))
        self._count_down(chosen, assignment)
        accepted = sum(isinstance(event, engine.EvaluationAccepted) for event in events)
        return events if accepted == wanted else [*events, engine.DeadlinePassed("evaluate")]

    def _aggregate(self) -> engine.RoundEvent:
        if self._open.collector is None:
            raise InternalError("There are no updates to aggregate.")
        try:
            made = self._open.collector.result(self.versions, self.experiment.server_optimizer, self.server_state)
        except UpdateRefused as error:
            return engine.AggregateFailed(f"{error.reason}: {error.message}", error.reason)
        self._open.server_state = made.state
        return engine.AggregateReady(made.version, made.metrics, made.rejected, made.clipped)

    def _sum_evaluations(self) -> engine.RoundEvent:
        if self._open.survey is None:
            raise InternalError("There are no evaluations to sum.")
        try:
            return engine.EvaluationSummed(self._open.survey.result().sums)
        except UpdateRefused as error:
            return engine.EvaluationSummed(None, f"{error.reason}: {error.message}")

    def _evaluate(self, version: str, action: StartRound) -> engine.RoundEvent:
        if self.rows is None:
            raise InternalError("There are no rows to evaluate on.")
        work = LocalWork(
            plan=self.plan,
            task=LocalTask(experiment=self.experiment.name, round=action.number, seed=self.experiment.seed),
            weights=self.versions.read(version),
            frozen=self.frozen,
            rows=self.rows,
            options=TrainOptions(threads=self.threads),
        )
        return evaluated(self.trainer, work, self.experiment.evaluation_metrics)

    def _settle(self, round: engine.Round) -> None:
        """Client and server state become what a committed round made of them; an abandoned round changes neither."""
        if round.phase is engine.RoundPhase.COMMITTED:
            for number, (state, loss) in self._open.client_states.items():
                self.population.keep(number, state, round.number, loss)
            if self._open.server_state is not None:
                self.server_state = self._open.server_state
        if not round.waiting:
            self.air.landed.clear()

    def _choose(self, count: int, round: int) -> list[int]:
        """The clients that train in a round, by the policy's selection."""
        policy = self.experiment.rounds
        trusted = None if policy.trusted is None else name_of(int(policy.trusted))
        candidates = self.population.candidates(policy, round, self.experiment.privacy)
        chosen = choose(policy, candidates, count, round=round, seed=self.experiment.seed, trusted=trusted)
        return sorted(int(name) for name in chosen)

    def _choose_evaluators(self, count: int, round: int) -> list[int]:
        """The first in an order drawn by lot that have rows to evaluate on: of all, to measure what training made; of
        those who are eligible, where the experiment only evaluates.
        """
        policy = self.experiment.rounds
        asked = range(len(self.population))
        if not measures(policy, "evaluate"):
            asked = [int(one.id) for one in self.population.candidates(policy, round, self.experiment.privacy)]
        order = self._random_order(f"evaluate/{round}", asked)
        return sorted(islice((number for number in order if self.population.facts(number).can_evaluate), count))

    def _random_order(self, purpose: str, numbers: Sequence[int]) -> list[int]:
        """The numbers in an order drawn by lot, from the experiment's seed."""
        text = f"{self.experiment.seed}/{purpose}"
        generator = np.random.Generator(np.random.PCG64(int(sha256_hex(text.encode()), 16)))
        return [numbers[place] for place in generator.permutation(len(numbers)).tolist()]

    def _count_down(self, chosen: Sequence[int], assignment: Assignment) -> None:
        plan = len(self.plan.manifest.data) + sum(stage.size for stage in self.plan.manifest.stages)
        newcomers = set(chosen) - self.informed
        self.informed |= newcomers
        self._open.bytes_down += len(chosen) * self.versions.size(assignment.base) + len(newcomers) * plan
