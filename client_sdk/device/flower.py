"""An adapter for clients written as a Flower-style ``NumPyClient``; nothing of Flower is imported or needed.

Such a client has ``get_parameters(config)``, ``fit(parameters, config)`` and ``evaluate(parameters, config)``, where
parameters are a list of arrays. The list's order is that of the plan's layout: the order in which the experiment's
``ExternalModel`` names them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from coterie.client_sdk.device.trainers.external import EvaluateResult, ExternalTrainer, FitResult, FitTask, Params
from coterie.errors import DataError

Scalar: TypeAlias = bool | bytes | float | int | str
ArrayList: TypeAlias = Sequence[NDArray[Any]]


class NumPyClient(Protocol):
    """The methods that the adapter calls.

    ``get_parameters`` is not needed: a device starts from the round's weights.
    """

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Scalar]
    ) -> tuple[ArrayList, int, Mapping[str, Scalar]]: ...

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Scalar]
    ) -> tuple[float, int, Mapping[str, Scalar]]: ...


Factory: TypeAlias = Callable[[FitTask], NumPyClient]


def flower_trainer(client: NumPyClient | Factory) -> ExternalTrainer:
    """A trainer that drives a ``NumPyClient``.

    client: the object itself, which then brings its own rows, or a function that makes one for a task from
    ``task.rows``: the rows to train on for ``fit``, the held-out rows for ``evaluate``. A loss and metrics among what
    the client returns become the round's metrics. config holds ``server_round``, ``local_epochs``, ``batch_size``,
    ``seed`` and the hyper-parameters.

    The number of examples that the client returns is the update's weight; steps are counted as epochs of full batches
    over it, since such a client does not tell. Raises DataError when a list does not have the layout's length.
    """

    def make_client(task: FitTask) -> NumPyClient:
        return cast(NumPyClient, client) if hasattr(client, "fit") else cast(Factory, client)(task)

    def fit(params: Params, task: FitTask) -> FitResult:
        returned, examples, metrics = make_client(task).fit(list(params.values()), _config(task))
        if len(returned) != len(params):
            raise DataError(
                f"The client's fit returned {len(returned)} arrays; the layout has {len(params)}: {', '.join(params)}.",
                code="fit_result",
            )
        steps = task.epochs * -(-examples // task.batch_size)
        return (
            {name: np.asarray(value) for name, value in zip(params, returned, strict=True)},
            examples,
            steps,
            _numbers(metrics),
        )

    def evaluate(params: Params, task: FitTask) -> EvaluateResult:
        loss, examples, metrics = make_client(task).evaluate(list(params.values()), _config(task))
        return examples, {"loss": float(loss)} | _numbers({**metrics, "loss": float(loss)})

    return ExternalTrainer(fit, evaluate)


def _config(task: FitTask) -> dict[str, Scalar]:
    # A hyper-parameter of one of these names would take its place: a seed that the coordinator chose, for one.
    return {
        **task.hyper,
        "server_round": task.round,
        "local_epochs": task.epochs,
        "batch_size": task.batch_size,
        "seed": task.seed,
    }


def _numbers(metrics: Mapping[str, Scalar]) -> dict[str, float]:
    numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
    # Without a training loss the metrics are incomplete, and an incomplete set counts as none.
    return numbers if "loss" in numbers else {}
