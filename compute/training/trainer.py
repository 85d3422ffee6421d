"""A small trainer: one graph for a step, one for an evaluation, and what is needed to stop and go on."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from coterie.compute.data.batches import WEIGHT
from coterie.compute.data.supply import Arrays, Batch, Place, PlacedSupply
from coterie.compute.ir import Graph, NDArray
from coterie.compute.nn.foreign import as_module, require_logits
from coterie.compute.nn.module import Module, Role
from coterie.compute.onnx.importer.model import ImportedModel
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.optim.optimizer import Optimizer, check_whole
from coterie.compute.optim.packing import packed
from coterie.compute.optim.schedules import Schedule
from coterie.compute.primitives.rules import carried
from coterie.compute.runtime.devices import Provider
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.hybrid_loop import Trunk
from coterie.compute.runtime.loop import Loop
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.spread.asked import ALONE, read_parallel
from coterie.compute.runtime.steady import Fallback, SteadyExecutable
from coterie.compute.runtime.tensors import TensorInfo
from coterie.compute.step.precision import Precision
from coterie.compute.step.step import first_state, optimizer_for
from coterie.compute.trace import TensorSpec
from coterie.compute.training.checkpoints import Fact, read_checkpoint, write_checkpoint
from coterie.compute.training.checks import check_arguments, check_callable, check_initial, check_labels
from coterie.compute.training.diverged import check_losses
from coterie.compute.training.feeding import Feeder, rows_of
from coterie.compute.training.graphs import NEXT, PerExample, Recipe, Specs
from coterie.compute.training.loops import LoopOptions, is_over, loaded, made_loop, name_of
from coterie.compute.training.sink import require_loops
from coterie.compute.training.supply import Data, trainer_supply
from coterie.errors import InputError

_GROUPS: tuple[Role, ...] = ("shared", "frozen", "buffer")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What a call of ``fit`` did. losses: the mean loss of each step, float32 [steps]. epochs: the mean of the losses
    of each epoch that it touched. host_calls: how often the runtime was called. fallbacks: providers that failed in
    between, so that the CPU went on.
    """

    losses: NDArray
    epochs: tuple[float, ...]
    host_calls: int
    fallbacks: tuple[Fallback, ...] = ()


class Trainer:
    """Fits a module to arrays, or to what a pipeline gives.

    model, loss, optimizer: as in an experiment; loss(prediction, label) gives one value per example. metrics: more such
    functions, by name, for ``evaluate``. label: the array that the loss compares with; every other array of the data is
    a feature, in its own dtype (float64 makes the model compute in float64), and several reach the model as a dict.
    batch_size, seed: the batches, and with them their order; the seed also starts the weights and draws the numbers of
    dropout. schedules: hyper-parameters as functions of the number of the step. precision: see Precision. sink_size:
    steps per host call, for providers with loops. provider: a name, or a Provider of a package; threads: see
    Executable. parallel: ``data(n)`` for n processes that share the rows of each step on the CPU, each with so many
    threads; ``pipeline(n)`` for n that share the layers; ``auto`` for as many as the cores allow to share the rows, if
    the first step turns out quicker so. trunk: run the frozen
    front of the model elsewhere than the rest, which then runs on the CPU (see Trunk). initial: weights to begin with,
    by the model's names; what it leaves out starts as the model says.

    Guarantees: a step is one run of one ONNX graph, its state bound and not copied; the same arguments, data and calls
    give the same losses bit for bit, and so does a trainer that ``load``\\ s what another one ``save``\\ d, at whatever
    step; with ``sink_size`` k there is one host call for k steps, and the last one of a ``fit`` is filled up by
    inactive steps. Where a provider fails, the CPU goes on from the state before that step, for good: a RuntimeWarning
    and ``Fit.fallbacks`` say so. Raises InputError for arguments and data that do not fit, GraphRefused for a trunk
    where the model has no frozen front; ``fit`` raises InputError (``not_spreadable``) for a step that processes cannot
    share, and ProcessLost when one of them ends, which leaves the trainer where it was.
    """

    def __init__(
        self,
        model: Module | ImportedModel,
        loss: PerExample,
        optimizer: Optimizer,
        *,
        metrics: Mapping[str, PerExample] | None = None,
        label: str = "y",
        batch_size: int = 32,
        seed: int = 0,
        schedules: Mapping[str, Schedule] | None = None,
        precision: Precision | None = None,
        sink_size: int = 1,
        provider: str | Provider = CPU,
        threads: int = 1,
        parallel: str = ALONE,
        trunk: Trunk | None = None,
        initial: Data | None = None,
    ) -> None:
        if not isinstance(cast(object, metrics), Mapping | None):
            raise InputError(
                f"Trainer: the metrics must be functions by name, got a {type(metrics).__name__}.",
                hint='Give a dictionary: {"accuracy": nn.metrics.accuracy}.',
            )
        model = cast(Module, as_module(model))
        check_arguments(model, loss, optimizer, precision, dict(metrics or {}))
        require_logits(model, loss)
        check_whole("Trainer", batch_size=batch_size, sink_size=sink_size)
        check_whole("Trainer", None, seed=seed)
        for name, schedule in (schedules or {}).items():
            check_callable(f"schedule {name!r}", schedule, "of a step's number, such as optim.constant(0.1)")
        self._model, self._loss, self._metrics, self._label = model, loss, dict(metrics or {}), label
        self._optimizer, self._precision = packed(optimizer), precision
        self._batch_size, self._seed, self._sink_size = batch_size, seed, sink_size
        self._schedules = dict(schedules or {})
        self._provider, self._threads = provider, threads
        if sink_size > 1:
            require_loops(name_of(provider))
        self._parallel = read_parallel(parallel, threads)
        if self._parallel.processes > 1 and (sink_size > 1 or trunk is not None or name_of(provider) != CPU):
            raise InputError(
                "Trainer: processes share steps on the CPU, one step a call.",
                hint="Leave out provider, sink_size and trunk, or leave out parallel.",
            )
        if trunk is not None and (sink_size > 1 or name_of(provider) != CPU):
            raise InputError(
                "Trainer: a step with a trunk elsewhere runs its head on the CPU, one step a call.",
                hint="Leave out provider and sink_size, and say the accelerator as Trunk(provider=...).",
            )
        self._trunk, self._fallbacks = trunk, list[Fallback]()
        if unknown := sorted(self._schedules.keys() - self._optimizer.hyper.keys()):
            raise InputError(
                f"Trainer: {optimizer.name} has no hyper-parameter {', '.join(unknown)}; it has "
                f"{', '.join(self._optimizer.hyper)}."
            )
        self._loops: dict[Any, Loop] = {}
        self._classes: dict[Any, int | None] = {}
        self._evaluations: dict[Any, SteadyExecutable] = {}
        self._place = Place()
        self.steps = 0
        roles = {name: spec.role for name, spec in model.specs().items()}
        weights = model.init(seed) | check_initial(model.specs(), initial or {})
        weights = {f"{roles[name]}/{name}": value for name, value in weights.items()}
        trained = {name.removeprefix("shared/"): value for name, value in weights.items() if name.startswith("shared/")}
        started = first_state(optimizer_for(self._optimizer, precision), trained)
        shared = {f"shared/{name}": value.numpy() for name, value in started["params"].items()}
        state = {f"optimizer/{name}": value.numpy() for name, value in started["optimizer"].items()}
        first: dict[str, NDArray] = {**weights, **shared, **state}
        self._shapes = {name: value.shape for name, value in first.items()}
        self._state = {name: value.reshape(carried(value.shape)) for name, value in first.items()}

    @property
    def params(self) -> dict[str, NDArray]:
        """Copies of all parameters and buffers as they are now, by the model's names."""
        groups = tuple(f"{group}/" for group in _GROUPS)
        return {
            name.partition("/")[2]: value.copy().reshape(self._shapes[name])
            for name, value in self._state.items()
            if name.startswith(groups)
        }

    def fit(
        self, data: Data, epochs: int = 1, *, steps: int | None = None, sample_weight: NDArray | None = None
    ) -> Fit:
        """Train over the data, ``epochs`` times: from where the trainer stands to the end of that many epochs, of which
        the one that it stands in is the first. steps: stop after so many, also in the middle of an epoch. A loss that
        is not finite ends it and leaves the trainer where it was (InputError ``training_diverged``, or DataError
        ``data_cell`` where it comes of the data); with a scaled loss it is left in ``Fit.losses``.

        data: arrays [N, ...] by name, the label among them, whose rows are shuffled anew each epoch; or a pipeline of
        compute.data, which gives its own order (its passes are the epochs).

        sample_weight: [N], how much each row of the arrays counts: 2 as if it were twice in its batch, 0 as if it were
        not there. The loss of a step is the sum of weight times loss over the sum of weights; of a batch where all
        weights are 0 it is 0, and so is its gradient. The statistics of BatchNorm are weighted by the same.
        """
        check_whole("fit", epochs=epochs, **({} if steps is None else {"steps": steps}))
        supply = self._supply(data, sample_weight)
        before = len(self._fallbacks)
        loop = self._loop(supply)
        end, places = self._place.epoch + epochs, list[Place]()
        with supply.open(self._place, end) as batches:
            losses, calls = self._run(loop, _noting(islice(batches, steps), places))
        # Only now: a training that is interrupted leaves the trainer where it was.
        self.steps += len(losses)
        places = places[: len(losses)]
        # Where a filter decides, only the end of the stream says that an epoch is over.
        self._place = Place(end) if steps is None else places[-1] if places else self._place
        self._state |= loop.state()
        numbers = np.array([place.last_epoch for place in places])
        epoch_means = tuple(float(losses[numbers == number].mean()) for number in np.unique(numbers))
        fallbacks = tuple(self._fallbacks[before:])
        return Fit(losses=losses, epochs=epoch_means, host_calls=calls, fallbacks=fallbacks)

    def evaluate(self, data: Data, *, sample_weight: NDArray | None = None) -> dict[str, float]:
        """The mean loss and metrics over the data, with the model in its evaluation mode; weighted by
        ``sample_weight``, [N], where it is given.
        """
        supply = self._supply(data, sample_weight)
        sample = supply.sample
        key = _signature(sample)
        if key not in self._evaluations:
            graph = self._recipe(sample).evaluate()
            self._evaluations[key] = SteadyExecutable(self._executable(graph, "evaluate"), told=self._fell_back)
        steady = self._evaluations[key]
        inputs, outputs = steady.executable.input, steady.executable.output
        weights = {name: value for name, value in self._state.items() if name in inputs}
        totals: dict[str, float] = dict.fromkeys(outputs, 0.0)
        for batch in supply.once():
            sums = steady.run(weights | rows_of(batch, inputs))
            totals = {name: total + float(sums[name][0]) for name, total in totals.items()}
        examples = totals.pop("examples")
        return {name: total / examples for name, total in totals.items()}

    def save(self, path: str | Path) -> None:
        """Write everything that a training needs to go on into one file (NumPy's ``.npz``, no pickle)."""
        write_checkpoint(path, self._state, self._facts())

    def load(self, path: str | Path) -> None:
        """Go on from a file that a trainer of the same model, optimizer, batch size and seed saved. Raises InputError
        for another file, and leaves the trainer as it is.
        """
        arrays, facts = read_checkpoint(path)
        facts = {"stream": "", **facts}  # which older files do not say
        mine = {name: (value.shape, value.dtype.name) for name, value in self._state.items()}
        theirs = {name: (value.shape, value.dtype.name) for name, value in arrays.items()}
        if differing := sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name)):
            raise InputError(f"{path} is of another model or optimizer: {', '.join(differing[:5])} do not agree.")
        numbers = {name: fact for name, fact in facts.items() if isinstance(fact, int)}
        wanted = self._facts()
        if facts.keys() != wanted.keys() or {type(facts[name]) is type(fact) for name, fact in wanted.items()} != {
            True
        }:
            raise InputError(f"{path} does not say where its training stopped.")
        if min(numbers[name] for name in ("steps", "epoch", "batch", "rows")) < 0:
            raise InputError(f"{path} does not say where its training stopped.")
        if facts["optimizer"] != wanted["optimizer"]:
            raise InputError(
                f"{path} was trained with the optimizer {facts['optimizer']!r}, this trainer has "
                f"{wanted['optimizer']!r}."
            )
        if (facts["seed"], facts["batch_size"]) != (self._seed, self._batch_size):
            raise InputError(
                f"{path} was trained with seed {facts['seed']} and batch_size {facts['batch_size']}, this trainer has "
                f"{self._seed} and {self._batch_size}, so the batches would not go on where they stopped."
            )
        self._state, self.steps = arrays, numbers["steps"]
        if self._trunk is not None:
            self._loops.clear()  # the frozen tensors of the file lie in the trunk
        self._place = Place(numbers["epoch"], numbers["batch"], numbers["rows"], str(facts["stream"]))

    def _facts(self) -> dict[str, Fact]:
        """What a checkpoint tells besides its arrays."""
        told = {"steps": self.steps, "seed": self._seed, "batch_size": self._batch_size, **asdict(self._place)}
        return {"optimizer": self._optimizer.name, **told}

    def _supply(self, data: Data, weights: NDArray | None) -> PlacedSupply:
        supply = trainer_supply(data, self._label, self._batch_size, self._seed, weights)
        sample = supply.sample
        key = _signature(sample)
        if key not in self._classes:
            self._classes[key] = self._recipe(sample).classes()
        classes = self._classes[key]
        if classes is None:
            return supply
        return supply.checked(lambda rows: check_labels(self._label, rows[self._label], classes))

    def _fell_back(self, fallback: Fallback) -> None:
        """Remember and say it; no graph is loaded for that provider again."""
        self._fallbacks.append(fallback)
        self._provider = CPU
        warnings.warn(
            f"{fallback.reason} The CPU goes on from the state before that step, number {fallback.steps} of this loop.",
            RuntimeWarning,
            stacklevel=2,
        )

    def _run(self, loop: Loop, batches: Iterator[dict[str, NDArray]]) -> tuple[NDArray, int]:
        feeder = self._feeder()
        losses: list[NDArray] = []
        calls = 0
        for fed, count in feeder.feeds(batches, loop.feeds, self.steps):
            loop.step(fed)
            losses.append(loop.read(["loss"])["loss"].reshape(-1)[:count])
            if self._precision is None:  # a scaled loss may overflow once: that step is left out and the scale halved
                check_losses(losses[-1], fed, self.steps + sum(map(len, losses[:-1])))
            calls += 1
        return np.concatenate(losses) if losses else np.zeros(0, np.float32), calls

    def _feeder(self) -> Feeder:
        return Feeder(self._seed, self._optimizer.hyper, self._schedules, self._sink_size)

    # The graphs.

    def _loop(self, supply: PlacedSupply) -> Loop:
        sample = supply.sample
        key = _signature(sample)
        constants = {name: value for name, value in self._state.items() if name.startswith("frozen/")}
        if key not in self._loops or is_over(self._loops[key]):
            graph = self._recipe(sample).train()
            carry = {name: name.removeprefix(NEXT) for name in graph.outputs if name.startswith(NEXT)}
            held = {name: value for name, value in constants.items() if name in graph.inputs}
            state = {name: self._state[name] for name in carry.values()}
            options = LoopOptions(
                provider=self._provider,
                threads=self._threads,
                sink_size=self._sink_size,
                trunk=self._trunk,
                told=self._fell_back,
                parallel=self._parallel,
            )

            def first(wanted: Sequence[TensorInfo]) -> Mapping[str, NDArray]:
                return next(self._feeder().feeds(iter(supply.once()), wanted, self.steps))[0]

            self._loops[key] = made_loop(
                graph, options, carry=carry, constants=held, state=state, first=first, shown=self._shown(supply)
            )
            return self._loops[key]
        loop = self._loops[key]
        loop.load(
            {name: self._state[name] for name in loop.state()},
            constants={name: value for name, value in constants.items() if name in loop.input},
        )
        return loop

    def _shown(self, supply: PlacedSupply) -> list[dict[str, NDArray]]:
        """The batches that a trunk is quantised by: the first ones in the data's own order."""
        if self._trunk is None or self._trunk.quantise is None:
            return []
        return [
            {f"batch/{name}": rows for name, rows in batch.items()}
            for batch in islice(supply.once(), self._trunk.calibration)
        ]

    def _executable(self, graph: Graph, name: str) -> Executable:
        return loaded(to_onnx(graph, name=name), self._provider, self._threads)

    def _recipe(self, data: Arrays) -> Recipe:
        rows = {
            name: TensorSpec((self._batch_size, *value.shape[1:]), value.dtype.name) for name, value in data.items()
        }
        return Recipe(
            model=self._model,
            loss=self._loss,
            metrics=self._metrics,
            optimizer=self._optimizer,
            precision=self._precision,
            shared=self._specs("shared"),
            frozen=self._specs("frozen"),
            buffers=self._specs("buffer"),
            state=self._specs("optimizer"),
            batch=rows | {WEIGHT: TensorSpec((self._batch_size,))},
            label=self._label,
        )

    def _specs(self, group: str) -> Specs:
        prefix = f"{group}/"
        return {
            name[len(prefix) :]: TensorSpec(shape) for name, shape in self._shapes.items() if name.startswith(prefix)
        }


def _noting(batches: Iterator[tuple[Batch, Place]], places: list[Place]) -> Iterator[Batch]:
    """The batches; the place behind each is added to the list."""
    for batch, place in batches:
        places.append(place)
        yield batch


def _signature(data: Arrays) -> Any:
    return tuple(sorted((name, value.shape[1:], value.dtype.name) for name, value in data.items()))
