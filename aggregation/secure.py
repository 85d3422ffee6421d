"""From the secret sums of a round to the next model version, and to what devices measured together.

The sums come from attempts of secure aggregation, all masks gone: one of all clients, or one for each group. Nothing
else about a round is known here. Simulation, which needs no masks, and the coordinator's worker both end here.

Pure but for `secure_aggregate`, the numeric job: one process, no database, no network; the same inputs give the same
bytes, so it may be repeated after a restart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.aggregate import STATE_FILE, WEIGHTS_FILE
from coterie.aggregation.fold.fold import at_once
from coterie.aggregation.fold.ring import RingFoldTerms, Summed, measured, ring_fold
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.central import CLIP, CentralNoise
from coterie.aggregation.private.secure_aggregation import fewest_of_group, mode_for
from coterie.aggregation.private.shared_noise import shared_noise
from coterie.aggregation.server_optimizers import ServerOptimizer
from coterie.aggregation.update_files import bytes_of
from coterie.aggregation.update_sections import length_of, means_of
from coterie.aggregation.version import version_of
from coterie.privacy.dp.local import reach
from coterie.privacy.secagg.decoding import decode
from coterie.privacy.secagg.encoding import Binding, rounding
from coterie.privacy.secagg.parameters import FEWEST_CLIENTS
from coterie.privacy.secagg.ring import RingVector
from coterie.privacy.secagg.ring_sections import ring_sections
from coterie.protocol import spread
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.files import make_folder
from coterie.protocol.mechanisms import DISTRIBUTED
from coterie.protocol.metrics import METRICS, MetricSums
from coterie.protocol.noise import NoiseTerms
from coterie.protocol.privacy import LocalLevel, Privacy, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secagg import SecureTerms
from coterie.protocol.sections import SectionSpec
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.secure_sections import SecureSection
from coterie.protocol.tensors import TensorLimits, decode_tensors, write_file


@dataclass(frozen=True, kw_only=True)
class SecureResult:
    """What the job made.

    version, weights, state, step_norm: see `AggregateResult`; the others: see `Folded`.
    """

    version: str
    weights: str
    state: str | None
    clients: int
    weight: float
    metrics: Mapping[str, float]
    clipped: int | None
    clamped: int | None
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

    round: its number, which noise depends on.
    clip: the clipping norm of this round, where quantiles move it.
    Raises errors.ExperimentError (``secure_range``, ``noise_range``, ``privacy_invalid``) where the sums do not fit a
    ring.
    """
    clients = rounds.cohort if kind == "train" else rounds.evaluators()
    # Of evaluations too: a device whose floor takes a round's training then takes its evaluation as well.
    fewest = rounds.min_updates
    if kind == "train" and secure.groups is not None:
        fewest = fewest_of_group(clients, secure)
        clients = -(-clients // secure.groups)
    sections, noise = _sections(manifest, kind, secure, privacy, rounds, clients=clients, round=round, clip=clip)
    return SecureTerms(
        attempt=attempt,
        mode=mode_for(secure, privacy),
        corrupt=secure.corrupt,
        dropout=secure.dropout,
        min_clients=max(min(fewest, clients), FEWEST_CLIENTS),
        max_clients=clients,
        weight_cap=rounds.weight_cap,
        sections=sections,
        noise=noise,
        phase_ms=int(secure.phase_s * 1000),
    )


def secure_aggregate(
    manifest: Manifest,
    *,
    terms: SecureTerms,
    base: Path | bytes,
    sums: Sequence[Summed],
    expected: int,
    server: ServerOptimizer,
    server_state: Path | bytes | None,
    out: Path,
    rule: str = "mean",
    central: CentralNoise | None = None,
) -> SecureResult:
    """Write the next model version, made of a round's sums, into the folder ``out``. The arguments: see
    `RingFoldTerms`; base and server_state are files or their bytes.

    Guarantees: the files are whole or absent. Raises errors.UpdateRefused as `ring_fold` does, and ``not_finite``;
    errors.StorageError.
    """
    data = bytes_of(base)
    before: ArraysByName = {} if server_state is None else decode_tensors(bytes_of(server_state))
    fold_terms = RingFoldTerms(
        terms=terms, base=sha256_hex(data), groups=len(sums), expected=expected, rule=rule, central=central
    )
    folded = ring_fold(manifest, fold_terms).result(tuple(sums), before, at_once)
    limits = TensorLimits(max_bytes=manifest.layout.size * 4 + (1 << 20), dtypes=frozenset({"F32"}))
    weights = manifest.layout.flatten(decode_tensors(data, limits))
    after = version_of(manifest, folded, weights, server, before, _no_older)
    make_folder(out)
    made, state = out / WEIGHTS_FILE, out / STATE_FILE
    write_file(made, manifest.layout.unflatten(after.weights))
    if after.state:
        write_file(state, after.state)
    return SecureResult(
        version=sha256_hex(made.read_bytes()),
        weights=str(made),
        state=str(state) if after.state else None,
        clients=folded.clients,
        weight=folded.weight,
        metrics=folded.metrics,
        clipped=folded.clipped,
        clamped=folded.clamped,
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
        raise errors.UpdateRefused("The evaluations cover no examples.", code="metric_invalid")
    sums = measured(manifest, found.sections[METRICS], found.examples)
    counts = found.sections[spread.SECTION].astype(np.float32)
    return sums.merge(spread.count_sums(manifest.metrics, counts, clients=min(spread.clients(counts), survivors)))


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


def _no_older(digest: str) -> npt.NDArray[np.float32]:
    raise errors.InternalError(f"A secret sum holds no update of the older version {digest}.")


def clip_in(state: ArraysByName) -> float | None:
    """The clipping norm that quantiles have moved to so far; None where nothing has."""
    return float(state[CLIP][0]) if CLIP in state else None
