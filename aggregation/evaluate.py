"""Measuring a model version on rows: by the coordinator on its own data, and by a device on its held-out rows."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.plan.graph import GraphManifest, GraphName
from coterie.aggregation.plan.manifest import METRICS, Manifest
from coterie.aggregation.whole_metrics import whole_metrics
from coterie.compute.data.batches import Batches
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.step_loop import StepLoop
from coterie.protocol import spread
from coterie.protocol.metrics import MetricSums
from coterie.protocol.update import Update

Arrays = Mapping[str, npt.NDArray[Any]]


def evaluate(
    graph: bytes | Executable,
    manifest: Manifest,
    weights: Arrays,
    arrays: Arrays,
    *,
    frozen: Arrays | None = None,
    probe: bytes | Executable | None = None,
    threads: int = 1,
) -> MetricSums:
    """Metric sums of a model version over all rows.

    graph: the plan's eval graph, or one loaded already; probe: its probe graph, needed where eval reads the probe's
    sums. weights: the version's tensors; frozen: the frozen blob's.
    arrays: one array per feature, and the labels, as ``DataSchema.check`` returns them; ``[rows, …]``.
    Guarantees: padding rows weigh nothing; batches are summed in float64; no rows give ``MetricSums()``.
    Raises errors.InputError for tensors that do not fit, or sums that are not finite (``metric_invalid``).
    """
    if not next(iter(arrays.values())).shape[0]:
        return MetricSums()
    sources = {"model": weights, "frozen": frozen or {}}
    if manifest.graph("eval").from_source("probe") and probe is not None:
        sources["probe"] = run_probe(_loaded(probe, threads), manifest, weights, arrays, frozen=frozen)
    found = _pass(_loaded(graph, threads), manifest, "eval", sources, arrays)
    return MetricSums({name: found[f"metric/{name}"] for name in manifest.metrics})


def predictions(
    graph: bytes | Executable,
    manifest: Manifest,
    weights: Arrays,
    arrays: Arrays,
    *,
    frozen: Arrays | None = None,
    threads: int = 1,
) -> npt.NDArray[Any]:
    """What a model version says of each row, ``[rows, …]``, in the order of the rows.

    graph: the plan's infer graph, or one loaded already. weights, arrays, frozen: as for `evaluate`, but no label is
    needed. Raises errors.ExperimentError (``experiment_combination``) for a method that keeps several models.
    """
    if manifest.chooses:
        raise errors.ExperimentError(
            f"Method {manifest.algorithm.name!r} keeps several models, so there is no one prediction for a row.",
            hint="Take the model file, whose output holds the prediction of each: Simulation.infer().",
            code="experiment_combination",
        )
    executable, described = _loaded(graph, threads), manifest.graph("infer")
    constants = _constants(described, {"model": weights, "frozen": frozen or {}})
    feeds = {tensor.key: tensor.name for tensor in described.from_source("batch")}
    features = {feature.name: arrays[feature.name] for feature in manifest.schema.features}
    found = [
        executable.run({**constants, **{name: batch[key] for key, name in feeds.items()}})["output"]
        for batch in Batches(features, batch_size=manifest.batch_rows("infer"), shuffle=False)
    ]
    return np.concatenate(found)[: len(next(iter(features.values())))]


def with_whole(
    sums: MetricSums, names: tuple[str, ...], predict: Callable[[], npt.NDArray[Any]], label: npt.NDArray[Any]
) -> MetricSums:
    """The sums, with metrics of the whole set beside them, each times the examples, so that its mean is its value."""
    if not names or not sums.examples:
        return sums
    found = whole_metrics(names, predict(), label)
    return sums.add({name: value * sums.examples for name, value in found.items()})


def run_probe(
    executable: Executable,
    manifest: Manifest,
    weights: Arrays,
    arrays: Arrays,
    *,
    frozen: Arrays | None = None,
    on_batch: Callable[[], None] = lambda: None,
) -> dict[str, npt.NDArray[np.float32]]:
    """What a plan's probe sums to over all rows, ``[1]`` by name, as inputs from the source ``probe`` take it.

    on_batch: called after each batch; what it raises ends the pass. Raises errors.InputError as `evaluate` does.
    """
    sources = {"model": weights, "frozen": frozen or {}}
    found = _pass(executable, manifest, "probe", sources, arrays, on_batch)
    return {name.removeprefix("probe/"): np.array([value], np.float32) for name, value in found.items()}


def _pass(
    executable: Executable,
    manifest: Manifest,
    name: GraphName,
    sources: Mapping[str, Arrays],
    arrays: Arrays,
    on_batch: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """The carried sums of a graph after one pass over the rows: of each batch in float32, of all in float64."""
    description = manifest.graph(name)
    zeros = {tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in description.from_source("zeros")}
    loop = StepLoop(executable, carry=description.carry, constants=_constants(description, sources), state=zeros)
    feeds = {tensor.key: tensor.name for tensor in description.from_source("batch")}
    total = dict.fromkeys(zeros, 0.0)
    for batch in Batches(arrays, batch_size=manifest.batch_rows(name), shuffle=False):
        loop.load(zeros)
        loop.step({name: batch[key] for key, name in feeds.items()})
        state = loop.state()
        total = {name: value + float(state[name][0]) for name, value in total.items()}
        on_batch()
    return total


def _loaded(graph: bytes | Executable, threads: int) -> Executable:
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
    return bounded.merge(spread.counted(manifest.metrics, update.decode(spread.SECTION), clients=clients))


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


def _constants(graph: GraphManifest, sources: Mapping[str, Arrays]) -> dict[str, npt.NDArray[Any]]:
    constants: dict[str, npt.NDArray[Any]] = {}
    for tensor in graph.inputs:
        if tensor.source not in ("model", "frozen", "probe"):
            continue
        if tensor.key not in sources.get(tensor.source, {}):
            raise errors.InputError(
                f"Tensor {tensor.key!r} is absent from the {tensor.source}.", code="layout_mismatch"
            )
        constants[tensor.name] = sources[tensor.source][tensor.key]
    return constants
