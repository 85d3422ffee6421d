"""The numeric job of a round: update files in, a model version out. Run by the coordinator's workers and by
simulation.

One process, no database, no network; memory is a few times one model however many updates there are. The same inputs
give the same bytes, so a job may be repeated after a restart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.fold.choose import open_fold
from coterie.aggregation.fold.fold import at_once
from coterie.aggregation.fold.usable import count_terms, nothing_usable, usable
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.central import CentralNoise
from coterie.aggregation.reducers import reducer
from coterie.aggregation.server_optimizers import ServerOptimizer
from coterie.aggregation.staleness import NO_LAG, Lags
from coterie.aggregation.update_files import UpdateFile, bytes_of, in_order
from coterie.aggregation.version import version_of
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.files import make_folder
from coterie.protocol.tensors import TensorLimits, decode_tensors, read_file, write_file

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
    """What a job made.

    version: SHA-256 of the weights file, which is the model version's id.
    state: the server's state for the next round, None when the rules keep none.
    accepted: tasks, sorted.
    weight: the sum of their weights.
    metrics: the training sums.
    step_norm: Euclidean length of the change.
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
    base: Path | bytes,
    updates: Sequence[Path | UpdateFile],
    server: ServerOptimizer,
    server_state: Path | bytes | None,
    out: Path,
    rule: str = "mean",
    trusted: str | None = None,
    weight_cap: int | None = None,
    lags: Lags = NO_LAG,
    central: CentralNoise | None = None,
) -> AggregateResult:
    """Aggregate the updates and write the next model version into the folder ``out``.

    base: the version that the round began with, a file or its bytes.
    server_state: the state of the round before, a file or its bytes; None at first.
    rule: the text of the reducer of all sections that are means, which it sees as one vector; sections that are sums
        are always summed. A rule that needs every single update cannot use an accumulator, and counts updates alike
        whatever their weight or lag.
    trusted: the task of the update that fltrust judges the others by, and which is none of them.
    weight_cap: the most that one update may weigh; a larger claim counts as the cap.
    lags: of the updates that were trained on an older version.
    central: the noise that makes the result differentially private; all updates then count alike, the training sums are
        not released, no usable update is as good as any number of them, and one whose values cannot be used counts as
        zeros and is not told from the others (see `private.central`).
    Guarantees: the order of ``updates`` does not matter; an unusable file is skipped and reported, never half added; a
    slice that no update covers keeps the base's weights and the optimizer's state; buffers (running statistics) move by
    the weighted mean of their changes, whatever the server optimizer; the files are whole or absent.
    Raises errors.UpdateRefused: ``nothing_usable``, ``zero_weight``, ``not_finite`` (the new weights overflow),
    ``trusted_missing``, or what the rule raises (``too_few_updates``: 2f ≥ n); errors.ExperimentError as `reducer`
    does; errors.StorageError.
    """
    layout, chosen = manifest.layout, reducer(rule)
    data = bytes_of(base)
    digest = sha256_hex(data)
    before: ArraysByName = {} if server_state is None else decode_tensors(bytes_of(server_state))
    terms = count_terms(chosen, weight_cap=weight_cap, exponent=lags.exponent, hidden=central is not None)
    fold = open_fold(manifest, chosen, trusted=trusted, central=central, server=before)
    older = {path: sha256_hex(bytes_of(path)) for path in set(lags.bases.values())}
    state, accepted, rejected = fold.init(), list[str](), list[Rejection]()
    for file in in_order(updates):
        task = file.task
        try:
            update = file.read(manifest, keep=terms.keep)
            task = update.header.task
            lagging = older[lags.bases[task]] if task in lags.bases else None
            update.require_base(lagging or digest)
            part = usable(update, terms, lag=lags.versions.get(task, 0), base=lagging)
            state = fold.add(state, (part,), at_once)
            accepted.append(task)
        except (errors.UpdateRefused, errors.StorageError) as error:
            rejected.append(Rejection(task, error.reason, error.message))
    if not accepted and central is None:
        raise nothing_usable(len(updates), [entry.message for entry in rejected])
    folded = fold.result(state, before, at_once)
    by_digest = {name: path for path, name in older.items()}

    def version(name: str) -> npt.NDArray[np.float32]:
        return layout.flatten(read_file(by_digest[name], _limits(manifest)))

    weights = layout.flatten(decode_tensors(data, _limits(manifest)))
    after = version_of(manifest, folded, weights, server, before, version)
    make_folder(out)
    write_file(out / WEIGHTS_FILE, layout.unflatten(after.weights))
    if after.state:
        write_file(out / STATE_FILE, after.state)
    return AggregateResult(
        version=sha256_hex(bytes_of(out / WEIGHTS_FILE)),
        weights=str(out / WEIGHTS_FILE),
        state=str(out / STATE_FILE) if after.state else None,
        accepted=tuple(sorted(accepted)),
        rejected=tuple(rejected),
        weight=folded.weight,
        metrics=folded.metrics,
        step_norm=after.step_norm,
    )


def _limits(manifest: Manifest) -> TensorLimits:
    return TensorLimits(max_bytes=manifest.layout.size * 4 + (1 << 20), dtypes=frozenset({"F32"}))
