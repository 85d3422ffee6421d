"""`simulate`: an experiment over virtual clients, on this machine or a cluster.

The round machine, the numeric job, the trainers, the codecs and the checks of data are those of a coordinator and its
devices; what is missing is the network, the clock and faults: every client that is chosen answers.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.deploy import inference_file, save_inference
from coterie.aggregation.evaluate import predictions
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.history import History
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.progress import ExperimentProgress
from coterie.aggregation.record import RoundRecord
from coterie.aggregation.run_files import write_run
from coterie.client_sdk.device.trainers.base import Trainer
from coterie.client_sdk.rows.loading import DataSource, load_evaluation
from coterie.errors import ConfigurationError, ExperimentError
from coterie.protocol.arrays import FloatArrays
from coterie.protocol.checked_rows import CheckedRows
from coterie.protocol.files import make_folder, write_durably
from coterie.protocol.frames import Frame, as_columns
from coterie.protocol.schema import DataSchema, Label
from coterie.protocol.tensors import encode_tensors
from coterie.protocol.update import of_plan
from coterie.simulation.checkpoint import CheckpointFolder, identity
from coterie.simulation.engines.engine import Setting, open_engine
from coterie.simulation.engines.naming import PLAN_TRAINER, resolve_trainer
from coterie.simulation.population import Population
from coterie.simulation.progress import shown_by_default
from coterie.simulation.rounds import ProgressWatch, SimulationState
from coterie.simulation.shares import WorkShares
from coterie.simulation.spending import SimulatedSpending
from coterie.simulation.versions import Versions

SimulationListener = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A finished simulation: its history, its plan, the newest version's weights and the best one's.

    states: what each client has committed, by its number; clients without state are absent.
    clients: how many there are.
    """

    history: History
    plan: Plan
    weights: FloatArrays
    best: FloatArrays
    frozen: FloatArrays
    states: Mapping[int, FloatArrays]
    clients: int

    def infer(self, *, client: int | None = None, best: bool = True) -> bytes:
        """An ONNX file of the model with its weights inside.

        client: whose model, where each client's is its own; its state is the one that it committed last, whatever
            version is taken.
        Raises PlanRefused (``plan_stage_absent``) for an external plan, ExperimentError (``personal_model``) where a
        client must be named, ConfigurationError (``client_unknown``).
        """
        return inference_file(
            self.plan.manifest,
            self.plan.graphs.get("infer", b""),
            self.best if best else self.weights,
            frozen=self.frozen,
            client_state=self._state(client),
        )

    def predict(
        self, rows: Mapping[str, NDArray[Any]] | Frame, *, client: int | None = None, best: bool = True
    ) -> NDArray[Any]:
        """What the model says of each row, ``[rows, …]``.

        rows: as the experiment takes them, with or without the label; classes that its schema leaves out are kept.
        client: as for `infer`.
        Raises DataError naming the column, and what `infer` raises.
        """
        manifest = self.plan.manifest
        manifest.stage("infer")
        weights = self.best if best else self.weights
        checked = features_of(manifest.schema, as_columns(rows, "rows"))
        state = self._state(client)
        return predictions(self.plan.graphs, manifest, weights, checked, frozen=self.frozen, client_state=state)

    def _state(self, client: int | None) -> FloatArrays | None:
        if client is None:
            return None
        if not 0 <= client < self.clients:
            raise ConfigurationError(
                f"There is no client {client}: the clients of the simulation are 0 to {self.clients - 1}.",
                code="client_unknown",
            )
        return of_plan(self.states.get(client, {}))

    def save_infer(self, path: str | Path, *, client: int | None = None, best: bool = True) -> Path:
        """Write `infer` to a file, whole or not at all, and return its path; above 2 GiB with its weights in a file
        beside it.
        """
        save_inference(
            Path(path),
            self.plan.manifest,
            self.plan.graphs.get("infer", b""),
            self.best if best else self.weights,
            frozen=self.frozen,
            client_state=self._state(client),
        )
        return Path(path)

    def save_weights(self, path: str | Path, *, best: bool = True) -> Path:
        """Write the version's weights as a safetensors file, whole or not at all, and return its path."""
        return _write_file(Path(path), encode_tensors(self.best if best else self.weights))


def _write_file(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, data)
    return path


def features_of(schema: DataSchema, rows: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    """The features of rows, checked; a label is neither needed nor read. Raises DataError."""
    if isinstance(rows, CheckedRows) and rows.schema == schema.digest:
        return schema.check(rows, "rows")
    read = {column for feature in schema.features for column in (feature.name, *feature.columns)}
    labels = {schema.label.name, *schema.label.sources} - read
    unlabelled = replace(schema, label=Label(name=schema.label.name, constant=0))
    return unlabelled.check({name: array for name, array in rows.items() if name not in labels}, "rows")


def simulate(
    experiment: Experiment,
    clients: Sequence[DataSource],
    *,
    engine: str = "threads",
    workers: int = 1,
    trainer: Trainer | str | None = None,
    on_event: SimulationListener | None = None,
    watch: ProgressWatch = lambda round, kind, done, total: None,
    folder: str | Path | None = None,
    resume: bool = False,
) -> History:
    """The history of an experiment over these clients; see `simulate_full`, which also returns the model."""
    return simulate_full(
        experiment,
        clients,
        engine=engine,
        workers=workers,
        trainer=trainer,
        on_event=on_event,
        watch=watch,
        folder=folder,
        resume=resume,
    ).history


def simulate_full(
    experiment: Experiment,
    clients: Sequence[DataSource],
    *,
    engine: str = "threads",
    workers: int = 1,
    trainer: Trainer | str | None = None,
    on_event: SimulationListener | None = None,
    watch: ProgressWatch = lambda round, kind, done, total: None,
    folder: str | Path | None = None,
    resume: bool = False,
) -> Simulation:
    """Run an experiment over virtual clients.

    clients: each client's rows: arrays by feature and label name, or whatever else a device takes as its data (a file,
        a folder, a function, a data set; see `load_rows`); `VirtualClients` makes them when they are chosen.
    engine: where clients work: ``threads`` or ``processes`` (see docs/simulation.md).
    workers: clients that work at once, each on one thread of its own; the result does not depend on it.
    trainer: needed for an ``ExternalModel``; a value, or its name ``module:attribute``, which engines with processes
        need; None runs the plan's graphs.
    on_event: gets one ``round`` event per round; without one, a line of progress is kept on a terminal.
    watch: told how many clients of a round are done.
    folder: where model versions (``<sha256>.safetensors``) and, after every round, a checkpoint and the run's files
        (``rounds.jsonl``, ``rounds.csv``, ``rounds.svg``; see `write_run`) are kept; None for nowhere.
    resume: continue from the folder's checkpoint, if it has one.

    Each round takes ``cohort`` clients, by the policy's selection from the experiment's seed and the round's number,
    all of them when there are fewer. Deadlines and over-selection do not matter here: nobody is late.
    Guarantees: the same experiment, clients and trainer give the same weights bit for bit on one machine, with threads
    and processes alike, and whether or not the run was killed and resumed.
    Raises ExperimentError (too few clients for ``min_updates``), DataError naming the client, ConfigurationError for an
    engine that there is not, and what a trainer raises.
    """
    if not isinstance(cast(object, experiment), Experiment):
        raise ExperimentError(
            f"simulate(...) takes an Experiment first, not a {type(experiment).__name__}.", code="experiment_invalid"
        )
    if not isinstance(cast(object, workers), int) or isinstance(workers, bool) or workers < 1:
        raise ConfigurationError(f"workers must be a whole number of at least 1, got {workers!r}.", code="workers")
    told = shown_by_default() if on_event is None else on_event
    for name, given in (("on_event", told), ("watch", watch)):
        if not callable(given):
            raise ConfigurationError(f"{name} must be a function, not {given!r}; leave it out for none.")
    if isinstance(experiment.model, ExternalModel) and trainer is None:
        raise ExperimentError(
            f"Experiment {experiment.name!r} has an ExternalModel, so its clients need a trainer.",
            hint="Give simulate(..., trainer=ExternalTrainer(fit)), or --trainer MODULE:NAME on the command line.",
            code="trainer_missing",
        )
    begun = time.monotonic()
    compiled = compile_plan(experiment)
    population = Population(experiment.schema, clients, compiled.plan.manifest.training.holdout)
    if len(population) < experiment.rounds.min_updates:
        raise ExperimentError(
            f"Every round needs {experiment.rounds.min_updates} updates; the number of clients is {len(population)}.",
            hint="Lower cohort and min_updates in the round policy, or give more clients.",
            code="too_few_clients",
        )
    trusted = experiment.rounds.trusted
    if trusted is not None and not (trusted.isdecimal() and int(trusted) < len(population)):
        raise ExperimentError(
            f"The trusted client {trusted!r} is not in the simulation, whose clients are 0 to {len(population) - 1}.",
            hint="Name a client by its number: RoundPolicy(trusted='3').",
            code="trusted_unknown",
        )
    if not isinstance(cast(object, folder), str | Path | None) or "\0" in str(folder):
        raise ConfigurationError(f"folder must be a path, got {folder!r}; leave it out to keep nothing.")
    place = None if folder is None else Path(folder)
    if place is not None:
        make_folder(place)
    versions = Versions(compiled.plan.manifest.layout, place)
    shares = WorkShares(workers)
    setting = Setting(
        name=str(engine),
        experiment=experiment,
        plan=compiled.plan,
        frozen=compiled.frozen,
        trainer=trainer or PLAN_TRAINER,
        workers=workers,
        threads=1,
        shares=shares,
    )
    initial = versions.add_tensors(compiled.initial)
    kept = None if place is None else _checkpoints(place, experiment, compiled.plan, initial, len(population))
    if resume and kept is None:
        raise ConfigurationError("Only a run with a folder can be resumed.", code="resume_without_folder")
    found = kept.load() if resume and kept is not None else None
    with closing(shares), closing(open_engine(setting)) as opened:
        if kept is not None and found is None:
            kept.clear()
        rounds = SimulationState(
            experiment=experiment,
            plan=compiled.plan,
            frozen=compiled.frozen,
            population=population,
            runner=opened,
            trainer=resolve_trainer(setting.trainer),
            versions=versions,
            progress=ExperimentProgress(current=initial),
            rows=load_evaluation(experiment.evaluation, experiment.schema),
            spending=SimulatedSpending(
                experiment, compiled.plan.manifest.layout.size, compiled.plan.manifest.training.draws()
            ),
            shares=shares,
            watch=watch,
        )
        if found is not None:
            rounds.restore(found)

        def write_history(history: History) -> History:
            if place is not None:
                write_run(place, experiment.name, history)
            return history

        def after_round(record: RoundRecord) -> None:
            if kept is not None:
                kept.save(rounds.checkpoint())
            write_history(History(tuple(rounds.records)))
            told(record.to_dict())

        history = write_history(rounds.run(after_round))
        told({"event": "finished", "reason": history.reason, "best": history.best, "seconds": time.monotonic() - begun})
        return Simulation(
            history=history,
            plan=compiled.plan,
            weights=versions.read(rounds.progress.current),
            best=versions.read(rounds.progress.result_version),
            frozen=compiled.frozen,
            states=dict(population.states),
            clients=len(population),
        )


def _checkpoints(folder: Path, experiment: Experiment, plan: Plan, initial: str, clients: int) -> CheckpointFolder:
    return CheckpointFolder(folder, identity(experiment, plan, initial, clients), experiment.rounds)
