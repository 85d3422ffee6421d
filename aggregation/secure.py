"""From the secret sums of a round to the next model version, and to what devices measured together.

The sums come from attempts of secure aggregation, all masks gone: one of all clients, or one for each group. Nothing
else about a round is known here. Simulation, which needs no masks, and the coordinator's worker both end here.

Pure but for `secure_aggregate`, the numeric job: one process, no database, no network; the same inputs give the same
bytes, so it may be repeated after a restart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.aggregate import STATE_FILE, WEIGHTS_FILE
from coterie.aggregation.going_on import going_on, to_go_on
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.central import CLIP, CentralNoise, State, noised_groups, noised_sum
from coterie.aggregation.private.secure_aggregation import fewest_of_group, mode_for
from coterie.aggregation.private.shared_noise import shared_noise
from coterie.aggregation.reducers import Vector, reducer
from coterie.aggregation.server_optimizers import ServerOptimizer
from coterie.aggregation.update_sections import join, length_of, means_of, split, sums_of
from coterie.aggregation.version import NextVersion, next_version
from coterie.privacy.dp.local import reach
from coterie.privacy.secagg.decoding import Decoded, decode
from coterie.privacy.secagg.encoding import Binding, rounding
from coterie.privacy.secagg.parameters import FEWEST_CLIENTS
from coterie.privacy.secagg.ring import RingVector
from coterie.privacy.secagg.ring_sections import ring_sections
from coterie.protocol import spread
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.files import make_folder
from coterie.protocol.metrics import EXAMPLES, METRICS, MetricSums
from coterie.protocol.noise import NoiseTerms
from coterie.protocol.privacy import DISTRIBUTED, LocalLevel, Privacy, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secagg import SecureTerms
from coterie.protocol.sections import SectionSpec
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.secure_sections import SecureSection
from coterie.protocol.tensors import TensorLimits, read_file, write_file


@dataclass(frozen=True)
class Summed:
    """The sum of one attempt, modulo each section's ring, and of how many clients it is."""

    total: RingVector = field(repr=False)
    survivors: int


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What the sums of a round say. sections: the aggregate of each section of the plan. clients, weight: how many it
    is of, and the sum of their weights. metrics: the training sums, empty where they are not released. clipped, held:
    how many clients were shortened to the public norm, or had a sum held to its public range; None where that is not
    released. state: what the noise and the rule of later rounds need.
    """

    sections: Mapping[str, Vector] = field(repr=False)
    clients: int
    weight: float
    metrics: Mapping[str, float]
    clipped: int | None
    held: int | None
    state: State = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class SecureResult:
    """What the job made. version, weights, state, step_norm: see `AggregateResult`; the others: see `Opened`."""

    version: str
    weights: str
    state: str | None
    clients: int
    weight: float
    metrics: Mapping[str, float]
    clipped: int | None
    held: int | None
    step_norm: float


def specs_of(
    manifest: Manifest, kind: Literal["train", "evaluate"], privacy: Privacy | None
) -> tuple[SectionSpec, ...]:
    """The plan's sections that go into the sum. Under user-level and local privacy no sums of metrics do: they have no
    noise.
    """
    specs = manifest.sections_for(kind)
    return means_of(specs) if isinstance(privacy, UserLevel | LocalLevel) else specs


def secure_terms(
    manifest: Manifest,
    kind: Literal["train", "evaluate"],
    *,
    attempt: str,
    secure: SecureAggregation,
    privacy: Privacy | None,
    rounds: RoundPolicy,
    round: int = 1,
    clip: float | None = None,
) -> SecureTerms:
    """What every task of an attempt says of it.

    round: its number, which noise depends on. clip: the clipping norm of this round, where quantiles move it.
    Raises errors.ExperimentError (``secure_range``, ``noise_range``, ``privacy_invalid``) where the sums do not fit a
    ring.
    """
    clients = rounds.cohort if kind == "train" else rounds.evaluators()
    # Of evaluations too: a device whose floor takes a round's training then takes its evaluation as well.
    fewest = max(rounds.min_updates, FEWEST_CLIENTS)
    if kind == "train" and secure.groups is not None:
        fewest = fewest_of_group(clients, secure)
        clients = -(-clients // secure.groups)
    sections, noise = _sections(manifest, kind, secure, privacy, rounds, clients=clients, round=round, clip=clip)
    return SecureTerms(
        attempt=attempt,
        mode=mode_for(secure, privacy),
        corrupt=secure.corrupt,
        dropout=secure.dropout,
        min_clients=min(fewest, clients),
        max_clients=clients,
        weight_cap=rounds.weight_cap,
        sections=sections,
        noise=noise,
        phase_ms=int(secure.phase_s * 1000),
    )


def opened(
    manifest: Manifest,
    terms: SecureTerms,
    sums: Sequence[Summed],
    *,
    base: str,
    expected: int,
    state: State,
    rule: str = "mean",
    central: CentralNoise | None = None,
) -> Opened:
    """What the sums of a round's groups say together; of one group without groups.

    base: SHA-256 of the version trained from. expected: the public number of clients that noised sums are divided by.
    state: the server's, of which the coordinator's noise and the rule read their parts. rule: the text of the reducer
    of the groups' means, which count alike; a group without weight is left out, unless its sum is noised.
    Raises errors.UpdateRefused: ``nothing_usable`` without sums, ``zero_weight``, what the rule raises, and what
    `decode` raises for a sum that honest clients cannot have.
    """
    if not sums:
        raise errors.UpdateRefused("No group of this round has a sum.", code="nothing_usable")
    specs, binding = manifest.sections, Binding(manifest.id, base)
    found = [
        decode(
            terms.sections,
            specs,
            group.total,
            survivors=group.survivors,
            weight_cap=terms.weight_cap,
            binding=binding,
            noise=terms.noise,
        )
        for group in sums
    ]
    means, added = means_of(specs), sums_of(specs)
    weight = float(sum(group.weight for group in found))
    clients = sum(group.clients for group in found)
    totals = {spec.name: np.sum([group.sections[spec.name] for group in found], axis=0) for spec in added}
    metrics = _metrics(manifest, totals[METRICS], sum(group.examples for group in found))
    if central is not None or terms.noise is not None:
        whole = np.sum([join(means, group.sections) for group in found], axis=0)
        bits = clients / 2 - sum(group.clipped for group in found)
        kept: State = {}
        if central is None:
            whole /= expected
        elif central.groups > 1:
            each = noised_groups([join(means, group.sections) for group in found], central, state)
            whole, kept = _ruled(rule, length_of(means), each, state)
        else:
            noised = noised_sum(whole, bits, central, state)
            whole, kept = noised.mean, noised.state
        return Opened(
            sections=split(means, whole) | totals,
            clients=expected,
            weight=float(expected),
            metrics={},
            clipped=None,
            held=None,
            state=kept,
        )
    mean, kept = _mean(found, means, rule, state)
    return Opened(
        sections=split(means, mean) | totals,
        clients=clients,
        weight=weight,
        metrics=metrics,
        clipped=sum(group.clipped for group in found),
        held=sum(group.held for group in found),
        state=kept,
    )


def version_of(
    manifest: Manifest,
    summed: Opened,
    base: npt.NDArray[np.float32],
    server: ServerOptimizer,
    state: State,
) -> NextVersion:
    """The version after ``base``. state: the server's; what comes back is that for the next round."""
    after = next_version(
        manifest,
        base=base,
        sections=summed.sections,
        clients=summed.clients,
        weight=summed.weight,
        server=server,
        state=state,
    )
    return replace(after, state={**after.state, **summed.state})


def secure_aggregate(
    manifest: Manifest,
    *,
    terms: SecureTerms,
    base: Path,
    sums: Sequence[Summed],
    expected: int,
    server: ServerOptimizer,
    server_state: Path | None,
    out: Path,
    rule: str = "mean",
    central: CentralNoise | None = None,
) -> SecureResult:
    """Write the next model version, made of a round's sums, into the folder ``out``. The arguments: see `opened`.

    Guarantees: the files are whole or absent. Raises errors.UpdateRefused as `opened` does, and ``not_finite``;
    errors.StorageError.
    """
    data = base.read_bytes()
    before: State = {} if server_state is None else read_file(server_state)
    summed = opened(
        manifest,
        terms,
        sums,
        base=sha256_hex(data),
        expected=expected,
        state=before,
        rule=rule,
        central=central,
    )
    limits = TensorLimits(max_bytes=manifest.layout.size * 4 + (1 << 20), dtypes=frozenset({"F32"}))
    after = version_of(manifest, summed, manifest.layout.flatten(read_file(base, limits)), server, before)
    make_folder(out)
    weights, state = out / WEIGHTS_FILE, out / STATE_FILE
    write_file(weights, manifest.layout.unflatten(after.weights))
    if after.state:
        write_file(state, after.state)
    return SecureResult(
        version=sha256_hex(weights.read_bytes()),
        weights=str(weights),
        state=str(state) if after.state else None,
        clients=summed.clients,
        weight=summed.weight,
        metrics=summed.metrics,
        clipped=summed.clipped,
        held=summed.held,
        step_norm=after.step_norm,
    )


def secure_evaluation(
    manifest: Manifest, *, terms: SecureTerms, base: str, total: RingVector, survivors: int
) -> MetricSums:
    """What the clients of an attempt measured, together, of the version ``base`` (its SHA-256).

    A client that could measure nothing counts nowhere. Raises errors.UpdateRefused as `decode` does, and
    ``metric_invalid`` where the clients do not count themselves once for each metric.
    """
    found = decode(
        terms.sections,
        manifest.sections_for("evaluate"),
        total,
        survivors=survivors,
        weight_cap=terms.weight_cap,
        binding=Binding(manifest.id, base),
    )
    if not found.examples:
        raise errors.UpdateRefused("The evaluations run over no examples.", code="metric_invalid")
    sums = MetricSums(_metrics(manifest, found.sections[METRICS], found.examples))
    counts = found.sections[spread.SECTION].astype(np.float32)
    return sums.merge(spread.counted(manifest.metrics, counts, clients=min(spread.clients(counts), survivors)))


def _sections(
    manifest: Manifest,
    kind: Literal["train", "evaluate"],
    secure: SecureAggregation,
    privacy: Privacy | None,
    rounds: RoundPolicy,
    *,
    clients: int,
    round: int,
    clip: float | None,
) -> tuple[tuple[SecureSection, ...], NoiseTerms | None]:
    specs = specs_of(manifest, kind, privacy)
    if not isinstance(privacy, UserLevel):
        # What devices have noised by themselves has a norm that is known, and nothing to do with what trained.
        norm = reach(privacy, length_of(specs)) if isinstance(privacy, LocalLevel) else secure.norm
        made = ring_sections(specs, clients=clients, weight_cap=rounds.weight_cap, norm=norm, bits=secure.bits)
        return made, None
    if privacy.mechanism in DISTRIBUTED:
        shared = shared_noise(privacy, secure, rounds, length=length_of(specs), round=round)
        counts = ring_sections((), clients=clients, weight_cap=rounds.weight_cap, norm=secure.norm)
        noised = SecureSection(
            name=specs[0].name,
            encoding="noised",
            values=shared.padded,
            bits=shared.bits,
            top=(1 << shared.bits) - 1,
            norm=shared.clip,
        )
        return (*counts, noised), shared.message
    bound = privacy.clip if clip is None else clip
    made = ring_sections(specs, clients=clients, weight_cap=rounds.weight_cap, norm=bound, bits=secure.bits)
    # Rounding may lengthen a vector: shortened to this, it stays within the clip that the noise is made for.
    return tuple(
        section.model_copy(update={"norm": bound / (1 + rounding(section, specs))})
        if section.encoding == "grid"
        else section
        for section in made
    ), None


def _mean(found: Sequence[Decoded], means: Sequence[SectionSpec], rule: str, state: State) -> tuple[Vector, State]:
    """One group's mean, or the rule over the means of several; what the next round's rule needs of it."""
    weighing = [group for group in found if group.weight]
    if not weighing:
        raise errors.UpdateRefused(
            "The updates carry no weight, so they have no mean.",
            hint="No client's training gave numbers that can be used. If it diverged, lower the learning rate.",
            code="zero_weight",
        )
    vectors = [join(means, group.sections) / group.weight for group in weighing]
    if len(vectors) == 1 and rule == "mean":
        return vectors[0], {}
    return _ruled(rule, length_of(means), vectors, state)


def _ruled(rule: str, length: int, vectors: Sequence[Vector], state: State) -> tuple[Vector, State]:
    """The rule over vectors that count alike; what the next round's rule needs of it. state: the server's."""
    chosen = going_on(reducer(rule), state)
    together = chosen.init(length)
    for vector in vectors:
        together = chosen.add(together, [(0, vector)], 1.0)
    whole = chosen.result(together)
    return whole, to_go_on(chosen, whole)


def _metrics(manifest: Manifest, vector: Vector, examples: int) -> Mapping[str, float]:
    return {**MetricSums.from_vector(manifest.metrics, vector).sums, EXAMPLES: float(examples)}


def clip_in(state: State) -> float | None:
    """The clipping norm that quantiles have moved to so far; None where nothing has."""
    return float(state[CLIP][0]) if CLIP in state else None
