"""Bring your own trainer: a function ``fit`` in whatever framework, the rest (difference, codec, upload) by the SDK.

def fit(params, task):
    ...                                    # train on task.rows from params
    return new_params, weight, steps, {"loss": 0.3, "accuracy": 0.9}
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.manifest import DELTA, METRICS
from coterie.aggregation.plan.stage import TaskName
from coterie.client_sdk.device.trainers.base import LocalResult, LocalWork, require_arrays
from coterie.compute.data.supply import Arrays
from coterie.errors import DataError, PlanRefused
from coterie.protocol.finite import all_finite
from coterie.protocol.layout import Slice, join_slices
from coterie.protocol.metrics import EXAMPLES, MetricSums


@dataclass(frozen=True, kw_only=True)
class FitTask:
    """What a ``fit`` or ``evaluate`` of one's own is told.

    client: the device's id; in a simulation the client's number, by which a function that serves them all may tell them
        apart.
    rows: the rows to work on, by feature and label name, as the schema says (raw values: normalisation is the
        function's business).
    hyper: the task's hyper-parameters over the plan's defaults.
    seed: for everything random. The others are the plan's wishes.
    """

    rows: Arrays
    experiment: str
    round: int
    seed: int
    hyper: Mapping[str, float]
    batch_size: int
    epochs: int
    max_steps: int | None
    client: str = ""


Params: TypeAlias = dict[str, NDArray[np.float32]]
FitResult: TypeAlias = tuple[Mapping[str, NDArray[Any]], int, int, Mapping[str, float]]
"""(new parameters, weight, steps, metrics): weight is how many examples count; metrics are means over the examples
trained on.
"""
Fit: TypeAlias = Callable[[Params, FitTask], FitResult]
EvaluateResult: TypeAlias = tuple[int, Mapping[str, float]]
"""(examples, metrics): metrics are means over the examples."""
Evaluate: TypeAlias = Callable[[Params, FitTask], EvaluateResult]


class ExternalTrainer:
    """A trainer around ``fit`` and, where there is one, ``evaluate``.

    fit gets copies, in the order of the plan's layout, which it may change in place. The update is ``new parameters -
    params``, computed in float32. fit may return some of the parameters only, and masked arrays: what is absent or
    masked was not trained, and every number of the next version is the mean over those who trained it.
    Metrics: every metric that the plan names (``loss`` among them), or an empty mapping for none; others are ignored.
    Raises DataError naming the parameter or the metric when what comes back does not fit the plan.
    """

    def __init__(self, fit: Fit, evaluate: Evaluate | None = None) -> None:
        self._fit = fit
        self._evaluate = evaluate

    def check(self, plan: Plan, task: TaskName, threads: int = 1) -> None:
        """Refuse plans that bring their own step (``plan_trainer``), and evaluations that nobody gave a function for
        (``cannot_evaluate``).
        """
        if task == "train" and plan.manifest.trainer != "external":
            raise PlanRefused(
                f"Plan {plan.manifest.name!r} brings its own training step; a trainer of one's own cannot replace it.",
                hint="Join without a trainer, or ask the researcher for an external plan.",
                code="plan_trainer",
            )
        if task == "evaluate" and self._evaluate is None:
            raise _cannot_evaluate()

    def train(self, work: LocalWork) -> LocalResult:
        """Call ``fit`` and take the difference. The weight is at most the task's cap. Raises as `check` does."""
        self.check(work.plan, "train")
        manifest = work.plan.manifest
        params, weight, steps, metrics = self._fit(_copies(work), _fit_task(work))
        _check_names(params, manifest.layout.names, whole=work.whole)
        delta, finite, trained = np.empty(manifest.layout.size, np.float32), True, list[Slice]()
        for name, (start, stop) in manifest.layout.slices.items():
            if name not in params:
                continue
            base = work.weights[name]
            new = _parameter(name, params, base.shape)
            with np.errstate(over="ignore", invalid="ignore"):
                np.subtract(new, base, out=delta[start:stop].reshape(new.shape))
            runs = [(start + low, start + high) for low, high in _trained(name, params[name], whole=work.whole)]
            if not all(all_finite(delta[low:high]) for low, high in runs):
                _require_finite(name, new)
                finite = False
            trained += runs
        covered = join_slices(trained)
        part = covered != ((0, delta.size),)
        if part:
            delta = np.concatenate([delta[low:high] for low, high in covered])
        count = min(_whole("weight", weight), work.task.weight_cap)
        work.options.on_step(_whole("steps", steps))
        return LocalResult(
            sections={DELTA: delta, METRICS: _sums(manifest.metrics, count, metrics).to_vector(manifest.metrics)},
            weight=count,
            steps=int(steps),
            client_state={},
            finite=frozenset({DELTA} if finite else ()),
            slices={DELTA: covered} if part else {},
        )

    def evaluate(self, work: LocalWork) -> MetricSums:
        """Call ``evaluate``. Raises as `check` does."""
        if self._evaluate is None:
            raise _cannot_evaluate()
        examples, metrics = self._evaluate(_copies(work), _fit_task(work))
        return _sums(work.plan.manifest.metrics, _whole("examples", examples), metrics)


def _cannot_evaluate() -> PlanRefused:
    return PlanRefused(
        "This trainer has no evaluate function.", hint="Give ExternalTrainer one.", code="cannot_evaluate"
    )


def _copies(work: LocalWork) -> Params:
    """Copies in the layout's order, which is the order of lists of arrays."""
    return {name: np.array(work.weights[name], np.float32) for name in work.plan.manifest.layout.names}


def _fit_task(work: LocalWork) -> FitTask:
    task, manifest = work.task, work.plan.manifest
    training = manifest.training
    limits = [n for n in (training.max_steps, work.options.max_steps) if n is not None]
    return FitTask(
        rows=require_arrays(work.rows, "A trainer of one's own"),
        experiment=task.experiment,
        round=task.round,
        seed=task.seed,
        hyper={**manifest.hyper, **task.hyper},
        batch_size=training.batch_size,
        epochs=training.epochs,
        max_steps=min(limits, default=None),
        client=task.client,
    )


def _check_names(params: Mapping[str, NDArray[Any]], names: tuple[str, ...], *, whole: bool) -> None:
    """Some parameters may be missing, where updates may cover a part; none may be misspelt."""
    missing = [name for name in names if name not in params]
    if missing and (whole or len(missing) == len(names) or any(name not in names for name in params)):
        raise DataError(
            f"fit returned no parameter {missing[0]!r}.",
            hint=f"It returned {', '.join(params) or 'none'}. Under secure aggregation and differential privacy it "
            "must return all of them; elsewhere some, and no others.",
            code="fit_result",
        )


def _trained(name: str, value: NDArray[Any], *, whole: bool) -> list[Slice]:
    """The runs of a parameter's elements that were trained: all of it, but for a masked array what it shows."""
    if not isinstance(value, np.ma.MaskedArray):
        return [(0, value.size)]
    hidden = np.ma.getmaskarray(cast(Any, value)).reshape(-1)
    if hidden.any() and whole:
        raise DataError(
            f"fit returned {name!r} with masked elements.",
            hint="Under secure aggregation and differential privacy every client trains the whole model.",
            code="fit_result",
        )
    edges = np.flatnonzero(np.diff(np.concatenate([[1], hidden.astype(np.int8), [1]])))
    return [(int(low), int(high)) for low, high in edges.reshape(-1, 2)]


def _parameter(name: str, params: Mapping[str, NDArray[Any]], shape: tuple[int, ...]) -> NDArray[np.float32]:
    value = np.asarray(params[name], np.float32)
    if value.shape != shape:
        raise DataError(
            f"fit returned {name!r} with shape {list(value.shape)}; it was {list(shape)}.", code="fit_result"
        )
    return value


def _require_finite(name: str, value: NDArray[np.float32]) -> None:
    if not np.isfinite(value).all():
        raise DataError(
            f"fit returned {name!r} with values that are not finite.",
            hint="Lower the learning rate.",
            code="not_finite",
        )


def _whole(what: str, value: float) -> int:
    if int(value) != value or value < 0:
        raise DataError(f"The {what} must be a whole number of at least 0, got {value!r}.", code="fit_result")
    return int(value)


def _sums(names: tuple[str, ...], examples: int, means: Mapping[str, float]) -> MetricSums:
    if not means:
        return MetricSums()
    missing = [name for name in names if name != EXAMPLES and name not in means]
    if missing:
        raise DataError(
            f"The metric {missing[0]!r} is missing; there are {', '.join(means)}.",
            hint=f"Return all of {', '.join(name for name in names if name != EXAMPLES)}, or no metric at all.",
            code="fit_result",
        )
    return MetricSums(
        {EXAMPLES: examples, **{name: float(means[name]) * examples for name in names if name != EXAMPLES}}
    )
