"""What a trainer is, and the values that go in and come out."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.fold.part import Slices
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.manifest import METRICS
from coterie.aggregation.plan.stage import TaskName
from coterie.compute.data.streamed_rows import StreamedRows
from coterie.compute.data.supply import AnyRows, Arrays
from coterie.errors import CoterieError, PolicyRefused
from coterie.privacy.entropy import Entropy
from coterie.protocol.arrays import FloatArrays
from coterie.protocol.metrics import MetricSums

Rows: TypeAlias = AnyRows


class Stopped(CoterieError):
    """The work was given up before it was done."""

    code = "stopped"


@dataclass(frozen=True, kw_only=True)
class LocalTask:
    """What a trainer must know of a task.

    client: the device's id; in a simulation the client's number.
    hyper: overrides of the plan's defaults.
    weight_cap: the most that ``weight`` may claim.

    seed: of shuffling and dropout; the same seed, weights and rows give the same update, unless rows are private (see
    `TrainOptions.entropy`).
    """

    experiment: str
    round: int
    seed: int
    hyper: Mapping[str, float] = field(default_factory=dict[str, float])
    weight_cap: int = 2**31 - 1
    client: str = ""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How a device wants to work, none of which is a task's business.

    threads: of one graph run.
    max_steps: never more steps than this.
    on_step: called after each step with the number of steps done, and with 0 after each batch of a probe; what it
        raises ends the training.
    entropy: where private noise and private draws of rows come from; never the task's seed, which others know.
    """

    threads: int = 1
    max_steps: int | None = None
    on_step: Callable[[int], None] = lambda steps: None
    entropy: Entropy = os.urandom


@dataclass(frozen=True, kw_only=True)
class LocalWork:
    """A task, and everything that it is done with.

    weights: the model version, by tensor name.
    frozen: tensors that nobody trains, by name.
    rows: the rows to work on, by feature and label name, or a stream of them; hold-out rows are not among those of a
        training and are the only ones of an evaluation.
    client_state: what the experiment's last counted training returned; empty before it.
    whole: whether an update must cover every tensor: where only sums are seen, or noise is added.
    read: how many rows there were before the schema dropped those of other classes, where those are more than ``rows``.
    """

    plan: Plan
    task: LocalTask
    weights: FloatArrays
    rows: Rows
    frozen: FloatArrays = field(default_factory=dict[str, NDArray[np.float32]])
    client_state: FloatArrays = field(default_factory=dict[str, NDArray[np.float32]])
    options: TrainOptions = field(default_factory=TrainOptions)
    whole: bool = False
    read: int = 0


@dataclass(frozen=True, kw_only=True)
class LocalResult:
    """A finished task.

    sections: one flat vector per section of the plan, in clear and not yet encoded.

    weight: examples that count, capped.
    steps: local steps.
    client_state: by tensor name, empty for a plan without any.
    finite: sections in which the trainer has looked at every number and found it finite, so that nobody looks again.
    slices: of sections of which it covers a part only, the (start, stop) that their vectors hold.
    """

    sections: Mapping[str, NDArray[Any]]
    weight: int
    steps: int
    client_state: FloatArrays
    finite: frozenset[str] = frozenset()
    slices: Mapping[str, Slices] = field(default_factory=dict[str, Slices])

    def metrics(self, plan: Plan) -> MetricSums:
        """The metric sums of the training steps."""
        return MetricSums.from_vector(plan.manifest.metrics, np.asarray(self.sections[METRICS], np.float64))


def require_arrays(rows: Rows, what: str) -> Arrays:
    """The rows, if they are all in memory. Raises PolicyRefused (``data_streamed``) for a stream.

    what: who needs that, for the message.
    """
    if isinstance(rows, StreamedRows):
        raise PolicyRefused(
            f"{what} needs all rows at hand, and this data set is a stream of batches.",
            hint="Give the rows of one pass: data=dataset.arrays().",
            code="data_streamed",
        )
    return rows


class Trainer(Protocol):
    """Trains and evaluates on rows that never leave the device."""

    def check(self, plan: Plan, task: TaskName, threads: int = 1) -> None:
        """Return only if this trainer can do such a task of the plan, whatever its rows. Devices ask before they look
        at one: what fails later may have to do with rows, and nobody else hears of it then.

        Raises PlanRefused, GraphRefused.
        """
        ...

    def train(self, work: LocalWork) -> LocalResult:
        """Weights and rows to an update."""
        ...

    def evaluate(self, work: LocalWork) -> MetricSums:
        """The metric sums of a model version over rows."""
        ...
