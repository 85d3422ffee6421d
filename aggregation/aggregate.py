"""The numeric job of a round: update files in, a model version out. Run by the coordinator's workers and by simulation.

One process, no database, no network; memory is a few times one model however many updates there are. The same inputs
give the same bytes, so a job may be repeated after a restart.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie import errors
from coterie.aggregation.horizontal import algorithm
from coterie.aggregation.plan.manifest import METRICS, Manifest
from coterie.aggregation.reducers import Accumulator, Vector, reducer
from coterie.aggregation.server_optimizers import ServerOptimizer, State
from coterie.protocol.files import storage_error
from coterie.protocol.metrics import MetricSums
from coterie.protocol.sections import SectionSpec
from coterie.protocol.tensors import TensorLimits, read_file, write_file
from coterie.protocol.update import Update, UpdateLimits, read_update

WEIGHTS_FILE = "weights.safetensors"
STATE_FILE = "state.safetensors"
_REDUCERS = {"weighted_mean": "mean", "sum": "sum"}
_OPTIMIZER, _METHOD = "optimizer/", "method/"


@dataclass(frozen=True)
class Rejection:
    """An update that could not be used, by its task (its file's name when unreadable) and why."""

    task: str
    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class AggregateResult:
    """What a job made. version: SHA-256 of the weights file, which is the model version's id. state: the server's
    state for
    the next round, None when the rules keep none. accepted: tasks, sorted; weight: the sum of their weights; metrics:
    the training sums; step_norm: Euclidean length of the change.
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
    weight_cap: int | None = None,
) -> AggregateResult:
    """Aggregate the updates and write the next model version into the folder ``out``.

    base: the version's file that the round began with. server_state: the state file of the round before, None at first.
    weight_cap: the most that one update may weigh; a larger claim counts as the cap.
    Guarantees: the order of ``updates`` does not matter; an unusable file is skipped and reported, never half added; a
    slice that no update covers keeps the base's weights and the optimizer's state; the files are whole or absent.
    Raises errors.UpdateRefused: ``nothing_usable``, ``zero_weight``, ``not_finite`` (the new weights overflow).
    """
    layout = manifest.layout
    usable, rejected = _read(manifest, _digest(base), updates)
    if not usable:
        why = f"; the first: {rejected[0].message}" if rejected else "."
        raise errors.UpdateRefused(f"None of the {len(updates)} updates can be used{why}", code="nothing_usable")
    accumulated = {spec.name: _reduce(spec, usable, weight_cap) for spec in manifest.sections}
    aggregates = {
        spec.name: reducer(_REDUCERS[spec.reduction]).result(accumulated[spec.name]) for spec in manifest.sections
    }
    method = algorithm(manifest.algorithm.name, manifest.algorithm.parameters)
    state = _read_state(server_state)
    optimizer_state = _part(state, _OPTIMIZER) or server.init(layout.size)
    step, optimizer_state, method_state = _step(
        manifest, aggregates, server, optimizer_state, _part(state, _METHOD) or method.server.init(layout)
    )
    weights = layout.flatten(read_file(base, _limits(manifest)))
    with np.errstate(over="ignore"):
        new = (weights + step).astype(np.float32)
    if not np.isfinite(new).all():
        raise errors.UpdateRefused(
            f"The new weights are not finite at element {int(np.argmin(np.isfinite(new)))}.",
            hint="The training diverged: lower the clients' or the server's learning rate.",
            code="not_finite",
        )
    out.mkdir(parents=True, exist_ok=True)
    write_file(out / WEIGHTS_FILE, layout.unflatten(new))
    kept = {_OPTIMIZER + n: v for n, v in optimizer_state.items()} | {_METHOD + n: v for n, v in method_state.items()}
    if kept:
        write_file(out / STATE_FILE, kept)
    return AggregateResult(
        version=_digest(out / WEIGHTS_FILE),
        weights=str(out / WEIGHTS_FILE),
        state=str(out / STATE_FILE) if kept else None,
        accepted=tuple(update.header.task for update in usable),
        rejected=rejected,
        weight=float(sum(_weight(update, weight_cap) for update in usable)),
        metrics=MetricSums.from_vector(manifest.metrics, aggregates[METRICS]).sums,
        step_norm=float(np.linalg.norm(step)),
    )


def _read(manifest: Manifest, base: str, paths: Sequence[Path]) -> tuple[tuple[Update, ...], tuple[Rejection, ...]]:
    """The updates that can be used, by task, and why the others cannot."""
    usable: dict[str, Update] = {}
    rejected: list[Rejection] = []
    for path in sorted(paths):
        task = path.name
        try:
            update = read_update(path, manifest.sections, plan=manifest.id, base=base, limits=UpdateLimits())
            task = update.header.task
            update.check_finite()
            if task in usable:
                raise errors.UpdateRefused(f"Task {task} has more than one update.", code="duplicate_task")
            usable[task] = update
        except (errors.UpdateRefused, errors.TensorFileError, errors.StorageError) as error:
            rejected.append(Rejection(task, error.reason, error.message))
    return tuple(usable[task] for task in sorted(usable)), tuple(rejected)


def _reduce(spec: SectionSpec, updates: Sequence[Update], weight_cap: int | None) -> Accumulator:
    rule = reducer(_REDUCERS[spec.reduction])
    accumulated = rule.init(spec.length)
    for update in updates:
        accumulated = rule.add(accumulated, update.chunks(spec.name), _weight(update, weight_cap))
    return accumulated


def _weight(update: Update, cap: int | None) -> float:
    return float(update.header.weight if cap is None else min(update.header.weight, cap))


def _step(
    manifest: Manifest, aggregates: Mapping[str, Vector], server: ServerOptimizer, optimizer: State, method: State
) -> tuple[Vector, State, State]:
    """The change of the weights and the new states; nothing changes where no section covers the layout."""
    size = manifest.layout.size
    uncovered = np.ones(size, np.bool_)
    placed = dict(aggregates)
    for spec in manifest.sections:
        if spec.slices:
            vector, at = np.zeros(size, np.float64), 0
            for start, stop in spec.slices:
                vector[start:stop] = aggregates[spec.name][at : at + stop - start]
                uncovered[start:stop] = False
                at += stop - start
            placed[spec.name] = vector
    states = [optimizer]

    def optimize(delta: Vector) -> Vector:
        change, after = server.update(delta, states[-1])
        states.append({name: np.where(uncovered, states[-1][name], value) for name, value in after.items()})
        return change

    rule = algorithm(manifest.algorithm.name, manifest.algorithm.parameters).server
    step, after = rule.apply(placed, method, optimize)
    return np.where(uncovered, 0.0, step), states[-1], after


def _part(state: State, prefix: str) -> State:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _read_state(path: Path | None) -> State:
    return {} if path is None else read_file(path)


def _limits(manifest: Manifest) -> TensorLimits:
    return TensorLimits(max_bytes=manifest.layout.size * 4 + (1 << 20), dtypes=frozenset({"F32"}))


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise storage_error(path, error) from error
