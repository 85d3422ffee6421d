"""Measuring a model version on rows: by the coordinator on its own data, and by a device on its held-out rows."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.plan.manifest import METRICS, Manifest
from coterie.aggregation.plan.stage import PREDICTION, TaskName
from coterie.aggregation.walk import Supply, run
from coterie.aggregation.whole_metrics import whole_metrics
from coterie.compute.runtime.executable import Executable
from coterie.protocol import spread
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.metrics import MetricSums
from coterie.protocol.update import Update

Graphs = Mapping[str, bytes | Executable]
"""Of a plan's stages by name: as files, or loaded already."""


def evaluate(
    graphs: Graphs,
    manifest: Manifest,
    weights: ArraysByName,
    rows: ArraysByName,
    *,
    frozen: ArraysByName | None = None,
    client_state: ArraysByName | None = None,
    threads: int = 1,
) -> MetricSums:
    """Metric sums of a model version over all rows.

    graphs: at least those of the stages of an evaluation.
    weights: the version's tensors.
    frozen: the frozen blob's.
    rows: one array per feature, and the labels, as ``DataSchema.check`` returns them; ``[rows, …]``.
    client_state: of the client whose model is measured.
    Guarantees: padding rows weigh nothing; batches are summed in float64; no rows give ``MetricSums()``.
    Raises errors.InputError for tensors that do not fit, or sums that are not finite (``metric_invalid``);
    errors.ExperimentError (``personal_model``) without client state where each client's model is its own.
    """
    if not next(iter(rows.values())).shape[0]:
        return MetricSums()
    return metric_sums(
        manifest, _run_stages("evaluate", graphs, manifest, weights, rows, frozen, client_state, threads)
    )


def metric_sums(manifest: Manifest, measured: Supply) -> MetricSums:
    """The sums that the stages of an evaluation have put."""
    found = measured.at("metric")
    return MetricSums({name: float(found[name][0]) for name in manifest.metrics})


def predictions(
    graphs: Graphs,
    manifest: Manifest,
    weights: ArraysByName,
    rows: ArraysByName,
    *,
    frozen: ArraysByName | None = None,
    client_state: ArraysByName | None = None,
    threads: int = 1,
) -> npt.NDArray[Any]:
    """What a model version says of each row, ``[rows, …]``, in the order of the rows.

    graphs: at least those of the stages of a prediction. The others as for `evaluate`, but no label is needed.
    Raises errors.ExperimentError: ``experiment_combination`` for a method that keeps several models, ``personal_model``
    without client state where each client's model is its own.
    """
    if manifest.chooses:
        raise errors.ExperimentError(
            f"Method {manifest.algorithm.name!r} keeps several models, so a row has no single prediction.",
            hint="Take the model file, whose output holds the prediction of each: Simulation.infer().",
            code="experiment_combination",
        )
    found = _run_stages("predict", graphs, manifest, weights, rows, frozen, client_state, threads)
    return found.at("prediction")[PREDICTION]


def require_client(manifest: Manifest, task: TaskName, client_state: ArraysByName | None) -> ArraysByName:
    """The client state that a task is done with, empty where it reads none. Raises errors.ExperimentError
    (``personal_model``).
    """
    if client_state is None and manifest.personal(task):
        raise errors.ExperimentError(
            f"With {manifest.algorithm.name!r} each client has its own model, part of which never leaves the "
            "client, so there is no model without a client.",
            hint="On a device: coterie client export. In a simulation: predict(rows, client=0), infer(client=0).",
            code="personal_model",
        )
    return client_state or {}


def _run_stages(
    task: TaskName,
    graphs: Graphs,
    manifest: Manifest,
    weights: ArraysByName,
    rows: ArraysByName,
    frozen: ArraysByName | None,
    client_state: ArraysByName | None,
    threads: int,
) -> Supply:
    state = require_client(manifest, task, client_state)
    supply = Supply(model=weights, frozen=frozen or {}, client_state=state)
    for stage in manifest.stages_of(task):
        supply = run(stage, _executable_of(graphs[stage.name], threads), supply, rows)
    return supply


def with_whole(
    sums: MetricSums, names: tuple[str, ...], predict: Callable[[], npt.NDArray[Any]], label: npt.NDArray[Any]
) -> MetricSums:
    """The sums, with metrics of the whole set beside them, each times the examples, so that its mean is its value."""
    if not names or not sums.examples:
        return sums
    found = whole_metrics(names, predict(), label)
    return sums.add({name: value * sums.examples for name, value in found.items()})


def _executable_of(graph: bytes | Executable, threads: int) -> Executable:
    return graph if isinstance(graph, Executable) else Executable(graph, threads=threads)


def evaluation_sections(manifest: Manifest, sums: MetricSums) -> dict[str, npt.NDArray[Any]]:
    """What the update of an evaluation holds: the client's metric sums, and where its means lie among the clients'."""
    return {METRICS: sums.to_vector(manifest.metrics), spread.SECTION: spread.histogram(manifest.metrics, sums)}


def read_evaluation(manifest: Manifest, update: Update, *, weight_cap: int) -> MetricSums:
    """The sums of an evaluation's update, with a bounded say: metrics as `check_metrics` bounds them, counts of clients
    under names of their own (see `coterie.protocol.spread`). An accumulator may say as much as its clients together.

    Raises errors.UpdateRefused (``metric_invalid``).
    """
    clients = update.header.clients
    sums = MetricSums.from_vector(manifest.metrics, np.asarray(update.decode(METRICS), np.float64))
    bounded = check_metrics(manifest, sums, weight_cap=weight_cap * clients)
    return bounded.merge(spread.count_sums(manifest.metrics, update.decode(spread.SECTION), clients=clients))


def check_metrics(manifest: Manifest, sums: MetricSums, *, weight_cap: int) -> MetricSums:
    """The sums that a device reports, with a bounded say.

    Raises errors.UpdateRefused (``metric_invalid``) for other names than the manifest's or a number of examples that
    is not positive. Beyond ``weight_cap`` examples all sums are scaled down to the cap, which keeps the means.
    """
    if set(sums.sums) != set(manifest.metrics) or sums.examples <= 0:
        raise errors.UpdateRefused(
            f"An evaluation must report {', '.join(manifest.metrics)} over at least one example.", code="metric_invalid"
        )
    scale = min(1.0, weight_cap / sums.examples)
    return MetricSums({name: value * scale for name, value in sums.sums.items()})
