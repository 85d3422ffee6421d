"""Metrics of :class:`~coterie.compute.mindspore.train.Model`, under MindSpore's names."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from coterie.compute.array import Array, as_array
from coterie.compute.mindspore.tensor import Tensor
from coterie.compute.nn import metrics
from coterie.errors import InputError


class Metric(ABC):
    """A mean over rows: ``clear()``, ``update(predictions, labels)`` and ``eval()``, and a value of each row for what
    trains and evaluates as a graph.
    """

    def __init__(self) -> None:
        self.clear()

    @abstractmethod
    def by_row(self, prediction: Array, label: Array) -> Array:
        """One value per row, [B]."""

    def clear(self) -> None:
        """Begin anew."""
        self._total, self._rows = 0.0, 0

    def update(self, *inputs: Tensor) -> None:
        """Add a batch: predictions and labels."""
        prediction, label = (as_array(each).alias() for each in inputs)
        values = self.by_row(prediction, label).numpy()
        self._total += float(np.sum(values, dtype=np.float64))
        self._rows += len(values)

    def eval(self) -> float:
        """The mean over all rows. Raises InputError before any batch."""
        if not self._rows:
            raise InputError(
                f"{type(self).__name__} has seen no batch.", hint="Call update(predictions, labels) first."
            )
        return self._total / self._rows


class Accuracy(Metric):
    """The share of rows whose greatest logit is that of the label."""

    def by_row(self, prediction: Array, label: Array) -> Array:
        return metrics.accuracy(prediction, label)


class MSE(Metric):
    """The mean squared error."""

    def by_row(self, prediction: Array, label: Array) -> Array:
        return metrics.squared_error(prediction, label)


class MAE(Metric):
    """The mean absolute error of one output."""

    def by_row(self, prediction: Array, label: Array) -> Array:
        return metrics.absolute_error(prediction, label)


BY_NAME: dict[str, Callable[[], Metric]] = {"accuracy": Accuracy, "acc": Accuracy, "mse": MSE, "mae": MAE}
