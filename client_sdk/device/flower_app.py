"""An adapter for clients written as a Flower ``ClientApp``, with functions under ``@app.train()`` and
``@app.evaluate()`` that take a message and a context.

Flower is the user's: whoever has such an app has it installed, and it is loaded with the first task.
"""

import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

import numpy as np

from coterie.client_sdk.device.trainers.external import EvaluateResult, ExternalTrainer, FitResult, FitTask, Params
from coterie.errors import ConfigurationError, DataError

EXAMPLES: Final = "num-examples"
"""The metric by which Flower's own strategies weigh, unless told otherwise."""
LIFETIME_S: Final = 86_400.0
ClientApp = Callable[[Any, Any], Any]
"""Flower's ``ClientApp``: an object that is called with a message and a context, and returns a message."""


def flower_app_trainer(
    app: ClientApp,
    *,
    node_config: Mapping[str, Any] | None = None,
    run_config: Mapping[str, Any] | None = None,
    examples: str = EXAMPLES,
) -> ExternalTrainer:
    """A trainer that sends a ``ClientApp`` its messages, of the types ``train`` and ``evaluate``.

    node_config, run_config: of the context; a task's batch size, epochs and hyper-parameters come over the latter and
        in the message's ConfigRecord.
    examples: the metric that says how many rows the app worked on.

    A message holds the round's weights as the ArrayRecord ``arrays``, by the names that the experiment's
    ``ExternalModel`` gives them. The answer holds one ArrayRecord, by those names or in their order, and one
    MetricRecord; a metric ``train_loss`` or ``eval_loss`` is also the ``loss``, and so for others. The app reads its
    own rows, as in Flower; what it keeps in ``context.state`` lives as long as the process.

    Raises ConfigurationError (``flower_missing``) with the first task where Flower cannot be imported, and DataError
    (``fit_result``) for an answer that is an error, or lacks one of these records.
    """
    bridge = _Bridge(app, dict(node_config or {}), dict(run_config or {}), examples)
    return ExternalTrainer(bridge.fit, bridge.evaluate)


class _Bridge:
    """One app, and the context that it is called with from task to task."""

    def __init__(self, app: ClientApp, node_config: dict[str, Any], run_config: dict[str, Any], examples: str) -> None:
        self._app = app
        self._node_config = node_config
        self._run_config = run_config
        self._examples = examples
        self._state: Any = None

    def fit(self, params: Params, task: FitTask) -> FitResult:
        content = self._ask_app("train", params, task)
        arrays = _arrays(content, params)
        count, metrics = self._rows_and_metrics(content, "train_")
        return arrays, count, task.epochs * -(-count // task.batch_size), metrics if "loss" in metrics else {}

    def evaluate(self, params: Params, task: FitTask) -> EvaluateResult:
        return self._rows_and_metrics(self._ask_app("evaluate", params, task), "eval_")

    def _ask_app(self, kind: str, params: Params, task: FitTask) -> Any:
        """The content of the app's answer."""
        flwr = _flower()
        if self._state is None:
            self._state = flwr.RecordDict()
        # A hyper-parameter of a task takes the place of nothing that the owner or this adapter says.
        own = {"server-round": task.round, "local-epochs": task.epochs, "batch-size": task.batch_size}
        arrays = flwr.ArrayRecord({name: flwr.Array(value) for name, value in params.items()})
        metadata = flwr.Metadata(
            run_id=1,
            message_id=f"{task.experiment}-{task.round}-{kind}",
            src_node_id=0,
            dst_node_id=1,
            reply_to_message_id="",
            group_id=str(task.round),
            created_at=time.time(),
            ttl=LIFETIME_S,
            message_type=kind,
        )
        message = flwr.Message(
            content=flwr.RecordDict({"arrays": arrays, "config": flwr.ConfigRecord({**task.hyper, **own})}),
            metadata=metadata,
        )
        context = flwr.Context(
            run_id=1,
            node_id=1,
            node_config=self._node_config,
            state=self._state,
            run_config={**task.hyper, **self._run_config, **own},
        )
        answer = self._app(message, context)
        self._state = context.state
        if answer.has_error():
            raise _unusable(f"answered with an error: {answer.error.reason}")
        return answer.content

    def _rows_and_metrics(self, content: Any, prefix: str) -> tuple[int, dict[str, float]]:
        """How many rows the app worked on, and its metrics."""
        told = dict(_single_record(content.metric_records, "MetricRecord"))
        if self._examples not in told:
            raise _unusable(f"has no metric {self._examples!r}, which says how many rows it is of")
        numbers = {name: float(value) for name, value in told.items() if isinstance(value, int | float)}
        plain = {name.removeprefix(prefix): value for name, value in numbers.items()}
        return int(told[self._examples]), {**plain, **numbers}


def _flower() -> Any:
    try:
        return import_module("flwr.app")
    except ImportError as error:
        raise ConfigurationError(
            "A Flower ClientApp needs Flower, which cannot be imported here.",
            hint="pip install flwr",
            code="flower_missing",
        ) from error


def _arrays(content: Any, params: Params) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an answer, by the names of the layout."""
    record = _single_record(content.array_records, "ArrayRecord")
    found = {name: array.numpy() for name, array in record.items()}
    if len(found) != len(params):
        raise _unusable(f"has {len(found)} arrays; the layout has {len(params)}: {', '.join(params)}")
    return found if found.keys() == params.keys() else dict(zip(params, found.values(), strict=True))


def _single_record(records: Mapping[str, Any], kind: str) -> Any:
    if len(records) != 1:
        raise _unusable(f"has {len(records)} records of the kind {kind}, where one is expected")
    return next(iter(records.values()))


def _unusable(why: str) -> DataError:
    return DataError(f"The answer of the ClientApp {why}.", code="fit_result")
