"""Measuring a model version on rows: by the coordinator on its own data, and by a device on its held-out rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.plan.graph import GraphManifest
from coterie.aggregation.plan.manifest import Manifest
from coterie.compute.data.batches import Batches
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.step_loop import StepLoop
from coterie.protocol.metrics import MetricSums

Arrays = Mapping[str, npt.NDArray[Any]]


def evaluate(
    graph: bytes | Executable,
    manifest: Manifest,
    weights: Arrays,
    arrays: Arrays,
    *,
    frozen: Arrays | None = None,
    threads: int = 1,
) -> MetricSums:
    """Metric sums of a model version over all rows.

    graph: the plan's eval graph, or one loaded already. weights: the version's tensors; frozen: the frozen blob's.
    arrays: one array per feature, and the labels, as ``DataSchema.check`` returns them; ``[rows, …]``.
    Guarantees: padding rows weigh nothing; batches are summed in float64; no rows give ``MetricSums()``.
    Raises errors.InputError for tensors that do not fit, or sums that are not finite (``metric_invalid``).
    """
    executable = graph if isinstance(graph, Executable) else Executable(graph, threads=threads)
    description = manifest.graph("eval")
    sums = {tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in description.from_source("zeros")}
    loop = StepLoop(
        executable, carry=description.carry, constants=_constants(description, weights, frozen or {}), state=sums
    )
    total = MetricSums()
    if not next(iter(arrays.values())).shape[0]:
        return total
    feeds = {tensor.key: tensor.name for tensor in description.from_source("batch")}
    for batch in Batches(arrays, batch_size=manifest.training.batch_size, shuffle=False):
        loop.load(sums)
        loop.step({name: batch[key] for key, name in feeds.items()})
        state = loop.state()
        total = total.add({name: float(state[f"metric/{name}"][0]) for name in manifest.metrics})
    return total


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


def _constants(graph: GraphManifest, weights: Arrays, frozen: Arrays) -> dict[str, npt.NDArray[Any]]:
    sources = {"model": weights, "frozen": frozen}
    constants: dict[str, npt.NDArray[Any]] = {}
    for tensor in graph.inputs:
        if tensor.source in sources:
            if tensor.key not in sources[tensor.source]:
                raise errors.InputError(
                    f"Tensor {tensor.key!r} is absent from the {tensor.source}.", code="layout_mismatch"
                )
            constants[tensor.name] = sources[tensor.source][tensor.key]
    return constants
