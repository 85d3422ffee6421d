"""The numeric job of an edge aggregator: updates and accumulators in, one accumulator out.

One process, no database, no network; memory is a few times one model however many files there are. The same inputs give
the same bytes, so a job may be repeated after a restart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie import errors
from coterie.aggregation.accumulator import tree_reducer
from coterie.aggregation.aggregate import Rejection
from coterie.aggregation.fold.coverage import Coverage
from coterie.aggregation.fold.fold import at_once
from coterie.aggregation.fold.part import Slices
from coterie.aggregation.fold.sums import sums_fold
from coterie.aggregation.fold.usable import count_terms, nothing_usable, usable
from coterie.aggregation.plan.manifest import METRICS, Manifest
from coterie.aggregation.update_files import UpdateFile, in_order
from coterie.aggregation.update_sections import means_of, split, sums_of
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.files import make_folder
from coterie.protocol.metrics import MetricSums
from coterie.protocol.sections import SectionSpec
from coterie.protocol.update import encode_update, write_update

ACCUMULATOR_FILE = "accumulator.update"


@dataclass(frozen=True, kw_only=True)
class AccumulateResult:
    """What a node made.

    path, sha256, size: of the accumulator's file.
    clients: of how many clients it is.
    weight: the sum of their weights.
    metrics: their training sums.
    accepted: tasks, sorted.
    """

    path: str
    sha256: str
    size: int
    accepted: tuple[str, ...]
    rejected: tuple[Rejection, ...]
    clients: int
    weight: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class AccumulatorHeader:
    """What the accumulator answers: the task of the coordinator above, the SHA-256 of the version trained from, the
    text of the reducer, and of how many clients it must and may be.
    """

    task: str
    base: str
    reducer: str
    min_clients: int = 1
    max_clients: int = 1 << 31


def accumulate_updates(
    manifest: Manifest,
    answer: AccumulatorHeader,
    *,
    updates: Sequence[Path | UpdateFile],
    out: Path,
    weight_cap: int | None = None,
) -> AccumulateResult:
    """Add up the updates, and merge the accumulators, of a round; write the accumulator into the folder ``out``.

    weight_cap: the most that one client may weigh; a larger claim of an update counts as the cap.
    Guarantees: the same files give the same bytes in any order; an unusable file is skipped and reported, never half
    added; a tree of such nodes, its root merging their accumulators, gives what one node gives, to 1 ulp of float32.
    Raises errors.UpdateRefused: ``nothing_usable``, ``zero_weight``, ``too_few_clients``, ``too_many_clients``; what
    `tree_reducer` raises; errors.StorageError.
    """
    rule = tree_reducer(answer.reducer)
    terms, fold = count_terms(rule, weight_cap=weight_cap, in_tree=True), sums_fold(manifest, rule)
    state, rejected = fold.init(), list[Rejection]()
    for file in in_order(updates):
        task = file.task
        try:
            update = file.read(manifest, keep=True)
            task = update.header.task
            update.require_base(answer.base)
            state = fold.add(state, (usable(update, terms),), at_once)
        except (errors.UpdateRefused, errors.StorageError) as error:
            rejected.append(Rejection(task, error.reason, error.message))
    tally = state.tally
    _check_clients(answer, tally.clients, len(updates), rejected)
    means, sums = means_of(manifest.sections), sums_of(manifest.sections)
    values = {**split(means, state.means.total), **split(sums, state.sums)}
    data = encode_update(
        task=answer.task,
        plan=manifest.id,
        base=answer.base,
        weight=int(tally.weight),
        steps=tally.steps,
        specs=manifest.sections,
        sections=values,
        kind="accumulator",
        clients=tally.clients,
        coverage=_coverage(state.coverage, means),
    ).data
    make_folder(out)
    path = out / ACCUMULATOR_FILE
    write_update(path, data)
    return AccumulateResult(
        path=str(path),
        sha256=sha256_hex(data),
        size=len(data),
        accepted=tuple(sorted(tally.tasks)),
        rejected=tuple(rejected),
        clients=tally.clients,
        weight=int(tally.weight),
        metrics=MetricSums.from_vector(manifest.metrics, values[METRICS]).sums,
    )


def _coverage(coverage: Coverage, means: Sequence[SectionSpec]) -> dict[str, dict[Slices, int]]:
    """By section, the weights of those that cover some of it only. At an edge weights are whole: nothing lags."""
    found: dict[str, dict[Slices, int]] = {}
    at = 0
    for spec in means:
        parts = coverage.of(at, at + spec.length)
        at += spec.length
        if parts:
            found[spec.name] = {slices: int(weight) for slices, weight in parts.items()}
    return found


def _check_clients(answer: AccumulatorHeader, clients: int, files: int, rejected: Sequence[Rejection]) -> None:
    if not clients:
        raise nothing_usable(files, [entry.message for entry in rejected])
    if clients < answer.min_clients:
        raise errors.UpdateRefused(
            f"The usable updates are of {clients} clients; an accumulator must be of at least {answer.min_clients}.",
            hint="Let more devices join this edge aggregator, or raise its cohort.",
            code="too_few_clients",
        )
    if clients > answer.max_clients:
        raise errors.UpdateRefused(
            f"The usable updates are of {clients} clients; this edge aggregator may speak for {answer.max_clients}.",
            hint="Lower its cohort, or enrol it with a token that allows more.",
            code="too_many_clients",
        )
