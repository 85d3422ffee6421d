"""The numeric job of a round: update files in, a model version out. Run by the coordinator's workers and by
simulation.

One process, no database, no network; memory is a few times one model however many updates there are. The same inputs
give the same bytes, so a job may be repeated after a restart.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.accumulator import EITHER, counted_weight, joined, take
from coterie.aggregation.going_on import going_on, judging, to_go_on
from coterie.aggregation.plan.manifest import METRICS, Manifest
from coterie.aggregation.private.central import COUNT_AS_ZEROS, CentralNoise, State, noised_mean
from coterie.aggregation.reducers import Reducer, Vector, reducer
from coterie.aggregation.server_optimizers import ServerOptimizer
from coterie.aggregation.staleness import NO_LAG, Lags
from coterie.aggregation.update_files import UpdateFiles
from coterie.aggregation.update_sections import (
    drift_of,
    length_of,
    means_of,
    nothing_usable,
    reads_drift,
    split,
    sums_of,
)
from coterie.aggregation.version import next_version
from coterie.protocol.files import make_folder, storage_error
from coterie.protocol.metrics import MetricSums
from coterie.protocol.sections import SectionSpec
from coterie.protocol.tensors import TensorLimits, read_file, write_file
from coterie.protocol.update import Update, read_update

WEIGHTS_FILE = "weights.safetensors"
STATE_FILE = "state.safetensors"


@dataclass(frozen=True)
class Rejection:
    """An update that could not be used, by its task (its file's name when unreadable) and why."""

    task: str
    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class AggregateResult:
    """What a job made. version: SHA-256 of the weights file, which is the model version's id. state: the server's
    state for the next round, None when the rules keep none. accepted: tasks, sorted; weight: the sum of their
    weights; metrics: the training sums; step_norm: Euclidean length of the change.
    """

    version: str
    weights: str
    state: str | None
    accepted: tuple[str, ...]
    rejected: tuple[Rejection, ...]
    weight: float
    metrics: Mapping[str, float]
    step_norm: float

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


def aggregate_updates(
    manifest: Manifest,
    *,
    base: Path,
    updates: Sequence[Path],
    server: ServerOptimizer,
    server_state: Path | None,
    out: Path,
    rule: str = "mean",
    trusted: str | None = None,
    weight_cap: int | None = None,
    lags: Lags = NO_LAG,
    central: CentralNoise | None = None,
) -> AggregateResult:
    """Aggregate the updates and write the next model version into the folder ``out``.

    base: the version's file that the round began with. server_state: the state file of the round before, None at
    first.
    rule: the text of the reducer of all sections that are means, which it sees as one vector; sections that are sums
    are always summed. A rule that needs every single update cannot use an accumulator, and counts updates alike
    whatever their weight or lag. trusted: the task of the update that fltrust judges the others by, and which is none
    of them. weight_cap: the most that one update may weigh; a larger claim counts as the cap.
    lags: of the updates that were trained on an older version.
    central: the noise that makes the result differentially private; all updates then count alike, the training sums are
    not released, no usable update is as good as any number of them, and one whose values cannot be used counts as zeros
    and is not told from the others (see `private.central`).
    Guarantees: the order of ``updates`` does not matter; an unusable file is skipped and reported, never half added;
    a slice that no update covers keeps the base's weights and the optimizer's state; buffers (running statistics) move
    by the weighted mean of their changes, whatever the server optimizer; the files are whole or absent.
    Raises errors.UpdateRefused: ``nothing_usable``, ``zero_weight``, ``not_finite`` (the new weights overflow),
    ``trusted_missing``, or what the rule raises (``too_few_updates``: 2f ≥ n); errors.ExperimentError as `reducer`
    does; errors.StorageError.
    """
    layout, chosen = manifest.layout, reducer(rule)
    usable, rejected = _check(manifest, base, updates, weight_cap, lags, chosen, one_by_one=central is not None)
    if not usable and central is None:
        raise nothing_usable(len(updates), [entry.message for entry in rejected])
    weights = layout.flatten(read_file(base, _limits(manifest)))
    before: State = {} if server_state is None else read_file(server_state)
    if central is None:
        sections, beside = _reduce(manifest, usable, going_on(chosen, before), trusted)
        whole, clients = sum(entry.weight for entry in usable), sum(entry.clients for entry in usable if entry.weight)
    else:
        sections, beside = _noised(manifest, usable, central, before)
        whole, clients = float(central.expected), central.expected
    after = next_version(
        manifest,
        base=weights,
        sections=sections,
        clients=clients,
        weight=whole,
        server=server,
        state=before,
        freshness=sum(entry.effective for entry in usable) / whole if whole and central is None else 1.0,
        drift=_drift(manifest, usable, weights, lags) if central is None else None,
    )
    state = {**after.state, **beside}
    make_folder(out)
    write_file(out / WEIGHTS_FILE, layout.unflatten(after.weights))
    if state:
        write_file(out / STATE_FILE, state)
    return AggregateResult(
        version=_digest(out / WEIGHTS_FILE),
        weights=str(out / WEIGHTS_FILE),
        state=str(out / STATE_FILE) if state else None,
        accepted=tuple(entry.task for entry in usable),
        rejected=rejected,
        weight=whole,
        metrics={} if central else MetricSums.from_vector(manifest.metrics, sections[METRICS]).sums,
        step_norm=after.step_norm,
    )


@dataclass(frozen=True)
class _Usable:
    """An update that passed. Only this is kept of it, so that memory does not grow with the number of updates.

    effective: its weight times its freshness. clients: of how many it is, more than one for an accumulator. silent:
    whether its values cannot be used, so that it counts as zeros.
    """

    task: str
    path: Path
    weight: float
    effective: float
    clients: int
    silent: bool = False


def _check(
    manifest: Manifest,
    base: Path,
    paths: Sequence[Path],
    cap: int | None,
    lags: Lags,
    rule: Reducer,
    *,
    one_by_one: bool,
) -> tuple[tuple[_Usable, ...], tuple[Rejection, ...]]:
    """The updates that can be used, by task, and why the others cannot. one_by_one: whether noise is made for what one
    device moves, so that each must be a device's own.
    """
    digests = {path: _digest(path) for path in {base, *lags.bases.values()}}
    usable: dict[str, _Usable] = {}
    rejected: list[Rejection] = []
    for path in sorted(paths):
        task = path.name
        try:
            task = read_update(path, manifest.sections, plan=manifest.id, limits=EITHER).header.task
            update = read_update(path, manifest.sections, base=digests[lags.bases.get(task, base)], limits=EITHER)
            if (one_by_one or rule.needs == "updates") and update.header.kind == "accumulator":
                needy = "Differential privacy" if one_by_one else rule.name
                raise errors.UpdateRefused(
                    f"{needy} needs every single update, and this is a sum of them.", code="wrong_kind"
                )
            silent = _silent(update, one_by_one=one_by_one)
            if task in usable:
                raise errors.UpdateRefused(f"Task {task} has more than one update.", code="duplicate_task")
            weight = counted_weight(update.header, cap)
            usable[task] = _Usable(task, path, weight, weight * lags.freshness(task), update.header.clients, silent)
        except (errors.UpdateRefused, errors.StorageError) as error:
            rejected.append(Rejection(task, error.reason, error.message))
    return tuple(usable[task] for task in sorted(usable)), tuple(rejected)


def _silent(update: Update, *, one_by_one: bool) -> bool:
    """Whether an update has values that cannot be used. Raises errors.UpdateRefused for them where nothing hides it."""
    try:
        update.check_finite()
    except errors.UpdateRefused as error:
        if not (one_by_one and error.reason in COUNT_AS_ZEROS):
            raise
        return True
    return False


def _reduce(
    manifest: Manifest, usable: Sequence[_Usable], rule: Reducer, trusted: str | None
) -> tuple[Mapping[str, Vector], State]:
    """The aggregate of every section, the means as one vector by the rule, and the sums; what the next round's rule
    needs of it.
    """
    means, sums = means_of(manifest.sections), sums_of(manifest.sections)
    counted = [entry for entry in usable if entry.weight]
    root = next((entry for entry in counted if entry.task == trusted), None)
    if rule.reference == "trusted":
        rule = judging(rule, None if root is None else _vector(manifest, root, means))
        counted = [entry for entry in counted if entry is not root]
    plain = reducer("sum")
    together, total = rule.init(length_of(means)), plain.init(length_of(sums))
    for entry in usable:
        update = read_update(entry.path, manifest.sections, limits=EITHER)
        total = take(plain, total, update, sums, entry.weight)
        if entry is not root and (rule.over is None or not counted):
            freshness = entry.effective / entry.weight if entry.weight else 1.0
            together = take(rule, together, update, means, entry.weight, freshness)
    if rule.over is None or not counted or not means:
        mean = rule.result(together) if means else together.total
    else:
        mean = rule.over(UpdateFiles(tuple(entry.path for entry in counted), manifest.sections, means))
    return split(means, mean) | split(sums, plain.result(total)), to_go_on(rule, mean)


def _vector(manifest: Manifest, entry: _Usable, means: Sequence[SectionSpec]) -> Vector:
    """The means' sections of an update as one vector."""
    vector = np.zeros(length_of(means), np.float64)
    for start, values in joined(read_update(entry.path, manifest.sections, limits=EITHER), means):
        vector[start : start + values.size] = values
    return vector


def _noised(
    manifest: Manifest, usable: Sequence[_Usable], central: CentralNoise, state: State
) -> tuple[Mapping[str, Vector], State]:
    """The noised mean of every section that is one, and what the noise of later rounds needs. Sums are not released."""
    means = means_of(manifest.sections)
    length = length_of(means)

    def vectors() -> Iterator[Vector]:
        for entry in usable:
            yield np.zeros(length) if entry.silent else _vector(manifest, entry, means)

    found = noised_mean(vectors(), length, central, state)
    sums = {spec.name: np.zeros(spec.length) for spec in sums_of(manifest.sections)}
    return split(means, found.mean) | sums, found.state


def _drift(
    manifest: Manifest, usable: Sequence[_Usable], weights: npt.NDArray[np.float32], lags: Lags
) -> Vector | None:
    """The mean of base − weights by effective weight, where a base is what an update was trained on."""
    shares: dict[Path, float] = {}
    for entry in usable:
        if entry.task in lags.bases:
            base = lags.bases[entry.task]
            shares[base] = shares.get(base, 0.0) + entry.effective
    if not shares or not reads_drift(manifest):
        return None
    whole = sum(entry.effective for entry in usable)
    bases = ((manifest.layout.flatten(read_file(base, _limits(manifest))), shares[base] / whole) for base in shares)
    return drift_of(weights, bases)


def _limits(manifest: Manifest) -> TensorLimits:
    return TensorLimits(max_bytes=manifest.layout.size * 4 + (1 << 20), dtypes=frozenset({"F32"}))


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise storage_error(path, error) from error
