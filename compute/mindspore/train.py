"""``Model``: a network, its loss and its optimizer, trained and evaluated in whole passes by coterie's ``Trainer``."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, cast, final

from coterie.compute import data, optim
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.mindspore.cell import Cell
from coterie.compute.mindspore.dataset import Dataset
from coterie.compute.mindspore.module import arguments_of, as_loss, as_module, scheduled
from coterie.compute.mindspore.nn.metrics import BY_NAME, Metric
from coterie.compute.mindspore.nn.optimizers import Optimizer
from coterie.compute.training.trainer import Trainer
from coterie.errors import ArgumentTypeError, ArgumentValueError, InputError

Metrics: TypeAlias = Mapping[str, Metric | Callable[[Array, Array], Array]] | Collection[str] | None


class Callback(ABC):
    """What is told how a training goes."""

    @abstractmethod
    def epoch_end(self, epoch: int, losses: NDArray) -> None:
        """An epoch, counted from 1, is over; the loss of each of its steps, [steps]."""


@final
class LossMonitor(Callback):
    """Prints the loss of every so-many-th step of an epoch."""

    def __init__(self, per_print_times: int = 1) -> None:
        if per_print_times < 1:
            raise ArgumentValueError(f"LossMonitor: per_print_times must be at least 1, got {per_print_times}.")
        self._every = per_print_times

    def epoch_end(self, epoch: int, losses: NDArray) -> None:
        for step in range(self._every, len(losses) + 1, self._every):
            print(f"epoch: {epoch} step: {step}, loss is {float(losses[step - 1]):.6f}")


def _require_dataset(dataset: object) -> None:
    if not isinstance(dataset, Dataset):
        raise ArgumentTypeError(
            f"Model: the data are a Dataset of mindspore.dataset, not a {type(dataset).__name__}.",
            hint='For example GeneratorDataset(rows, ["data", "label"]).batch(32).',
        )


@final
class Model:
    """A network with what it needs to learn. ``train`` moves the Parameters of the network; every step is one graph.

    metrics: names ("accuracy", "mse", "mae", "loss"), or metrics by name. The optimizer goes on where the ``train``
    before it stopped, unless Parameters were written in between: then it begins anew, with those. Raises what
    :func:`~coterie.compute.mindspore.as_module` and ``as_optimizer`` raise; a learning rate may change from step to
    step. Raises ArgumentValueError for a metric that does not exist.
    """

    def __init__(
        self,
        network: Cell,
        loss_fn: Callable[[Any, Any], Any] | None = None,
        optimizer: Optimizer | None = None,
        metrics: Metrics = None,
    ) -> None:
        self._network, self._loss_fn, self._optimizer = network, loss_fn, optimizer
        self._metrics = _metrics(metrics)
        self._trainers: dict[tuple[str, ...], tuple[Trainer, dict[str, NDArray]]] = {}

    @property
    def train_network(self) -> Cell:
        """The network."""
        return self._network

    def train(
        self,
        epoch: int,
        train_dataset: Dataset,
        callbacks: Callback | Sequence[Callback] | None = None,
        dataset_sink_mode: bool = False,
        sink_size: int = -1,
    ) -> list[float]:
        """Train over the dataset so many times; the mean loss of each. The last column is the label.

        dataset_sink_mode: run ``sink_size`` steps, or an epoch, in one call of the runtime.
        """
        listed = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or ())
        for each in listed:
            if not isinstance(cast(object, each), Callback):
                raise ArgumentTypeError(
                    f"Model.train: a callback is a Callback, not a {type(each).__name__}.",
                    hint="Define epoch_end(self, epoch, losses) in a subclass of Callback; LossMonitor is one.",
                )
        _require_dataset(train_dataset)
        if self._optimizer is None:
            raise InputError("Model.train: the model has no optimizer.", hint="Model(network, loss_fn, optimizer).")
        sunk = (train_dataset.get_dataset_size() if sink_size == -1 else sink_size) if dataset_sink_mode else 1
        trainer, rows, key = self._trainer(train_dataset, sunk)
        means: list[float] = []
        for number in range(1, epoch + 1):
            losses = trainer.fit(rows, train_dataset.times).losses
            means.append(float(losses.mean()))
            for each in listed:
                each.epoch_end(number, losses)
        self._write(trainer)
        self._trainers[key] = trainer, self._values()
        return means

    def eval(self, valid_dataset: Dataset) -> dict[str, float]:
        """The metrics over the dataset, in the network's evaluation mode."""
        trainer, rows, _ = self._trainer(valid_dataset, 1, training=False)
        told = trainer.evaluate(rows)
        return {name: told["loss" if wanted is None else name] for name, wanted in self._metrics.items()}

    def predict(self, *inputs: Any) -> Any:
        """The output of the network for these inputs, in its evaluation mode."""
        before = self._network.training
        self._network.set_train(False)
        try:
            return self._network(*inputs)
        finally:
            self._network.set_train(before)

    def _trainer(self, dataset: Dataset, sunk: int, *, training: bool = True) -> tuple[Trainer, Any, tuple[str, ...]]:
        """The trainer for such a dataset, and the dataset as it takes it."""
        if self._loss_fn is None:
            raise InputError("Model: the model has no loss.", hint="Model(network, loss_fn, optimizer).")
        _require_dataset(dataset)
        if dataset.batch_size is None:
            raise InputError("Model: the dataset has no batches.", hint="dataset.batch(32)")
        rows, label = _named(dataset, self._network)
        batches = rows.batch(dataset.batch_size, drop_remainder=dataset.drops and training)
        key = (str(dataset.batch_size), str(sunk), *rows.columns)
        known = self._trainers.get(key)
        if known is not None and training and _same(known[1], self._values()):
            return known[0], batches, key
        rule, schedules = scheduled(self._optimizer, self._network) if self._optimizer else (optim.sgd(1.0), None)
        trainer = Trainer(
            as_module(self._network),
            as_loss(self._loss_fn),
            rule,
            metrics={
                name: each.by_row if isinstance(each, Metric) else each
                for name, each in self._metrics.items()
                if each is not None
            },
            label=label,
            batch_size=dataset.batch_size,
            schedules=schedules,
            sink_size=sunk,
        )
        return trainer, batches, key

    def _values(self) -> dict[str, NDArray]:
        return {name: parameter.numpy() for name, parameter in self._network.parameters_and_names()}

    def _write(self, trainer: Trainer) -> None:
        named = self._network.parameters_dict()
        for name, value in trainer.params.items():
            named[name].set_data(value.astype(named[name].dtype))


def _named(dataset: Dataset, network: Cell) -> tuple[data.Dataset, str]:
    """The rows with their columns named as construct takes them, and the name of the last one, the label."""
    columns, names = list(dataset.rows.columns), arguments_of(network)
    if len(columns) == 2:  # one input needs no name
        return dataset.rows, columns[-1]
    least = sum(names.values())
    if not least <= len(columns) - 1 <= len(names):
        raise InputError(
            f"Model: the dataset has the columns {', '.join(columns)}; construct of {type(network).__name__} takes "
            f"{', '.join(names)}, and the label comes last.",
            hint="project(...) chooses columns.",
        )
    label = columns[-1]
    while label in names:
        label += "_"
    renamed = dict(zip(columns, (*list(names)[: len(columns) - 1], label), strict=True))
    return dataset.rows.rename(**{old: new for old, new in renamed.items() if old != new}), label


def _same(before: Mapping[str, NDArray], now: Mapping[str, NDArray]) -> bool:
    return before.keys() == now.keys() and all(now[name] is value for name, value in before.items())


def _metrics(given: Metrics) -> dict[str, Metric | Callable[[Array, Array], Array] | None]:
    """By name; None for the loss itself."""
    if isinstance(given, Mapping):
        named = cast("Mapping[str, Any]", given)
        return {name: None if each == "loss" else each for name, each in named.items()}
    found: dict[str, Metric | Callable[[Array, Array], Array] | None] = {}
    for name in given or ():
        if name != "loss" and name not in BY_NAME:
            raise ArgumentValueError(f"There is no metric {name!r}.", hint=f"There are loss, {', '.join(BY_NAME)}.")
        found[name] = None if name == "loss" else BY_NAME[name]()
    return found
