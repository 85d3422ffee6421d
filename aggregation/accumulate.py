"""The numeric job of an edge aggregator: updates and accumulators in, one accumulator out.

One process, no database, no network; memory is a few times one model however many files there are. The same inputs give
the same bytes, so a job may be repeated after a restart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie import errors
from coterie.aggregation.accumulator import EITHER, counted_weight, take, tree_reducer
from coterie.aggregation.aggregate import Rejection
from coterie.aggregation.plan.manifest import METRICS, Manifest
from coterie.aggregation.reducers import reducer
from coterie.aggregation.update_sections import length_of, means_of, nothing_usable, split, sums_of
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.files import make_folder
from coterie.protocol.metrics import MetricSums
from coterie.protocol.update import Update, encode_update, read_update, write_update

ACCUMULATOR_FILE = "accumulator.update"


@dataclass(frozen=True, kw_only=True)
class AccumulateResult:
    """What a node made. path, sha256, size: of the accumulator's file. clients: of how many clients it is; weight:
    the sum of their weights; metrics: their training sums. accepted: tasks, sorted.
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
class Answer:
    """What the accumulator answers: the task of the coordinator above, the SHA-256 of the version trained from, the
    text of the reducer, and of how many clients it must and may be.
    """

    task: str
    base: str
    reducer: str
    min_clients: int = 1
    max_clients: int = 1 << 31


def accumulate_updates(
    manifest: Manifest, answer: Answer, *, updates: Sequence[Path], out: Path, weight_cap: int | None = None
) -> AccumulateResult:
    """Add up the updates, and merge the accumulators, of a round; write the accumulator into the folder ``out``.

    weight_cap: the most that one client may weigh; a larger claim of an update counts as the cap.
    Guarantees: the same files give the same bytes in any order; an unusable file is skipped and reported, never half
    added; a tree of such nodes, its root merging their accumulators, gives what one node gives, to 1 ulp of float32.
    Raises errors.UpdateRefused: ``nothing_usable``, ``zero_weight``, ``too_few_clients``, ``too_many_clients``; what
    `tree_reducer` raises; errors.StorageError.
    """
    rule, plain = tree_reducer(answer.reducer), reducer("sum")
    means, sums = means_of(manifest.sections), sums_of(manifest.sections)
    mean, total = rule.init(length_of(means)), plain.init(length_of(sums))
    taken: dict[str, tuple[Update, float]] = {}
    rejected: list[Rejection] = []
    for path in updates:
        name = path.name
        try:
            update = read_update(path, manifest.sections, plan=manifest.id, base=answer.base, limits=EITHER)
            name = update.header.task
            weight = counted_weight(update.header, weight_cap)
            update.check_finite()
            if name in taken:
                raise errors.UpdateRefused(f"Task {name} has more than one update.", code="duplicate_task")
            taken[name] = update, weight
        except (errors.UpdateRefused, errors.StorageError) as error:
            rejected.append(Rejection(name, error.reason, error.message))
    for name in sorted(taken):
        update, weight = taken[name]
        mean = take(rule, mean, update, means, weight)
        total = take(plain, total, update, sums, weight)
    headers = [update.header for update, _ in taken.values()]
    clients = sum(header.clients for header in headers)
    _check_clients(answer, clients, len(updates), rejected)
    if mean.weight <= 0:
        raise errors.UpdateRefused(
            f"{len(taken)} updates carry no weight, so there is nothing to send on.", code="zero_weight"
        )
    values = {**split(means, mean.total), **split(sums, total.total)}
    data = encode_update(
        task=answer.task,
        plan=manifest.id,
        base=answer.base,
        weight=int(mean.weight),
        steps=sum(header.steps for header in headers),
        specs=manifest.sections,
        sections=values,
        kind="accumulator",
        clients=clients,
    ).data
    make_folder(out)
    path = out / ACCUMULATOR_FILE
    write_update(path, data)
    return AccumulateResult(
        path=str(path),
        sha256=sha256_hex(data),
        size=len(data),
        accepted=tuple(sorted(taken)),
        rejected=tuple(rejected),
        clients=clients,
        weight=int(mean.weight),
        metrics=MetricSums.from_vector(manifest.metrics, values[METRICS]).sums,
    )


def _check_clients(answer: Answer, clients: int, files: int, rejected: Sequence[Rejection]) -> None:
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
