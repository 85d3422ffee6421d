"""One node of a tree of aggregators: updates and accumulators in, one accumulator out.

Sums are associative, so what an edge aggregator adds up need not travel on its own: the accumulator of a reducer that
needs sums only is merged further up as if its updates had come there one by one. It is a file like any update, all in
float64: weighted sums where the plan says weighted mean, plain sums elsewhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from coterie import errors
from coterie.aggregation.aggregate import Rejection
from coterie.aggregation.plan.manifest import METRICS, Manifest
from coterie.aggregation.reducers import Accumulator, Reducer, Vector, reducer
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.files import make_folder
from coterie.protocol.metrics import MetricSums
from coterie.protocol.sections import SectionSpec
from coterie.protocol.update import Update, UpdateLimits, encode_update, read_update, write_update

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


def tree_reducer(text: str) -> Reducer:
    """The reducer of that text, for a tree.

    Raises errors.ExperimentError: ``reducer_in_tree`` for one that needs single updates, or what `reducer` raises.
    """
    rule = reducer(text)
    if rule.needs != "sums":
        raise errors.ExperimentError(
            f"The reducer {text[:64]!r} needs every single update, and an edge aggregator sends sums.",
            hint="Choose one that needs sums only, such as mean, or let the devices join the coordinator itself.",
            code="reducer_in_tree",
        )
    return rule


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
    means = tuple(spec for spec in manifest.sections if spec.reduction == "weighted_mean")
    sums = tuple(spec for spec in manifest.sections if spec.reduction == "sum")
    mean, total = rule.init(_length(means)), plain.init(_length(sums))
    taken: dict[str, Update] = {}
    rejected: list[Rejection] = []
    for path in updates:
        name = path.name
        try:
            update = _read(manifest, answer, path, weight_cap)
            name = update.header.task
            if name in taken:
                raise errors.UpdateRefused(f"Task {name} has more than one update.", code="duplicate_task")
            taken[name] = update
        except (errors.UpdateRefused, errors.StorageError) as error:
            rejected.append(Rejection(name, error.reason, error.message))
    for _, update in sorted(taken.items()):
        mean = take(rule, mean, update, means, weight_cap)
        total = take(plain, total, update, sums, weight_cap)
    clients = sum(update.header.clients for update in taken.values())
    _check_clients(answer, clients, len(updates), rejected)
    if mean.weight <= 0:
        raise errors.UpdateRefused(
            f"{len(taken)} updates carry no weight, so there is nothing to send on.", code="zero_weight"
        )
    values = {**_split(means, mean), **_split(sums, total)}
    data = encode_update(
        task=answer.task,
        plan=manifest.id,
        base=answer.base,
        weight=int(mean.weight),
        steps=sum(update.header.steps for update in taken.values()),
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


def take(
    rule: Reducer, total: Accumulator, update: Update, specs: Sequence[SectionSpec], weight_cap: int | None
) -> Accumulator:
    """The accumulator after one more file: an update is added, an accumulator merged. Consumes ``total``.

    specs: the sections that the rule reduces, as one vector in their order.
    """
    header = update.header
    if header.kind == "accumulator":
        return rule.merge(total, read_accumulator(update, specs))
    weight = header.weight if weight_cap is None else min(header.weight, weight_cap)
    return rule.add(total, joined(update, specs), float(weight))


def read_accumulator(update: Update, specs: Sequence[SectionSpec]) -> Accumulator:
    """What a file of the kind ``accumulator`` holds of these sections, as one vector in their order."""
    total = reducer("sum").init(_length(specs)).total
    for start, values in joined(update, specs):
        total[start : start + values.size] = values
    return Accumulator(total, float(update.header.weight), update.header.clients)


def joined(update: Update, specs: Sequence[SectionSpec]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """The elements of these sections as those of one vector: ``(start, elements)``, covering it once."""

    at = 0
    for spec in specs:
        for start, values in update.chunks(spec.name):
            yield at + start, values
        at += spec.length


def _read(manifest: Manifest, answer: Answer, path: Path, weight_cap: int | None) -> Update:
    limits = UpdateLimits(kinds=frozenset({"update", "accumulator"}))
    update = read_update(path, manifest.sections, plan=manifest.id, base=answer.base, limits=limits)
    header = update.header
    if header.kind == "accumulator" and weight_cap is not None and header.weight > weight_cap * header.clients:
        raise errors.UpdateRefused(
            f"The accumulator of {header.clients} clients weighs {header.weight}, more than {weight_cap} each.",
            code="bad_weight",
        )
    update.check_finite()
    return update


def _check_clients(answer: Answer, clients: int, files: int, rejected: Sequence[Rejection]) -> None:
    if not clients:
        why = f"; the first: {rejected[0].message}" if rejected else "."
        raise errors.UpdateRefused(f"None of the {files} updates can be used{why}", code="nothing_usable")
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


def _split(specs: Sequence[SectionSpec], accumulator: Accumulator) -> dict[str, Vector]:
    ends = 0
    parts: dict[str, Vector] = {}
    for spec in specs:
        parts[spec.name] = accumulator.total[ends : ends + spec.length]
        ends += spec.length
    return parts


def _length(specs: Sequence[SectionSpec]) -> int:
    return sum(spec.length for spec in specs)
