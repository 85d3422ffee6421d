"""Checking an experiment before it may run: nothing that is created here can fail later for a reason that was known
now.
"""

import asyncio
import json
from dataclasses import dataclass

import numpy as np
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.fitting import check_tree
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.check import check_plan
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.secure_aggregation import secure_of
from coterie.aggregation.progress import configure
from coterie.aggregation.requested import check_requested, terms_of
from coterie.aggregation.secure import secure_terms
from coterie.errors import Conflict, ExperimentError, Forbidden
from coterie.protocol.codecs import parse
from coterie.protocol.control import BlobRef, ExperimentCreate, PopulationPolicy
from coterie.protocol.device import TaskKind
from coterie.protocol.ids import ATTEMPT, new_id
from coterie.protocol.layout import Layout
from coterie.protocol.refinement import departure
from coterie.protocol.schema import DataSchema
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.tensors import TensorLimits, read_file
from coterie.server.auth.caller import Caller
from coterie.server.control.populations import find_population
from coterie.server.coordinator import Coordinator
from coterie.server.floor import check_signer, policy_of
from coterie.server.store import blob_rows, devices, populations
from coterie.server.store.blobs import BlobStore


@dataclass(frozen=True)
class Ground:
    """What of the population an experiment must fit."""

    schema: DataSchema
    signers: tuple[str, ...]
    client_state: str
    policy: PopulationPolicy


async def ground(session: AsyncSession, population: str) -> Ground:
    """The population's schema and the keys it accepts. Raises NotFound."""
    row = await find_population(session, population)
    schema = DataSchema.from_json(json.loads(row.schema_json))
    return Ground(schema, await populations.signers(session, row.name), row.client_state, policy_of(row))


async def check(coordinator: Coordinator, request: ExperimentCreate, caller: Caller) -> Manifest:
    """The manifest of the experiment's plan, if everything about the experiment holds, its blobs being the caller's.

    Raises NotFound, Forbidden (``signer_not_allowed``, ``population_policy``), Conflict (``blob_missing``,
    ``schema_mismatch``), PlanRefused, ExperimentError.
    """
    async with coordinator.storage.database.read() as session:
        base = await ground(session, request.population)
        if request.plan.signer not in base.signers:
            check_signer(request.population, base.policy, request.plan.signer)
            raise Forbidden(
                f"Population {request.population!r} does not accept plans of key {request.plan.signer[:16]}….",
                hint=f"An operator accepts it: coterie populations allow {request.population} {request.plan.signer}",
                code="signer_not_allowed",
            )
        refs = [ref for ref in (request.initial, request.frozen, request.evaluation) if ref is not None]
        await _require(session, {request.plan.id, *(ref.sha256 for ref in refs)}, caller)
        await _require_sizes(session, refs)
    manifest = Manifest.from_bytes(
        await asyncio.to_thread(coordinator.storage.blobs.reader.read, "blobs", request.plan.id, "a plan")
    )
    async with coordinator.storage.database.read() as session:
        await _require(session, {file.sha256 for file in manifest.files}, caller)
        tree = await devices.any_edge(session, request.population)
        await _check_trusted(session, request)
    plan = await asyncio.to_thread(_checked_plan, coordinator.storage.blobs, request, manifest, base.signers)
    _check_fit(request, plan.manifest, base)
    if tree:
        check_tree(terms_of(request, plan.manifest))
    _check_state(request, plan.manifest, base)
    await asyncio.to_thread(_check_weights, coordinator.storage.blobs, request, plan.manifest)
    return plan.manifest


async def _check_trusted(session: AsyncSession, request: ExperimentCreate) -> None:
    """That the client which the others are judged by is a device of the population. Raises ExperimentError
    (``trusted_unknown``).
    """
    trusted = request.rounds.trusted
    if trusted is not None and not await devices.enrolled(session, trusted, request.population):
        raise ExperimentError(
            f"The trusted client {trusted!r} is not a device of population {request.population!r}.",
            hint="Name its whole id: `coterie list devices --json` shows it to an operator.",
            code="trusted_unknown",
        )


async def _require(session: AsyncSession, digests: set[str], caller: Caller) -> None:
    missing = sorted(digests - await blob_rows.durable_blobs(session, frozenset(digests), caller.population))
    if missing:
        raise Conflict(
            f"{len(missing)} blobs of this experiment have not been uploaded, the first is {missing[0]}.",
            hint="PUT /v1/blobs/{sha256}?kind=… for each, then create the experiment again.",
            code="blob_missing",
            missing=missing,
        )


async def _require_sizes(session: AsyncSession, refs: list[BlobRef]) -> None:
    for ref in refs:
        row = await blob_rows.find(session, ref.sha256)
        if row is not None and row.size != ref.size:
            raise ExperimentError(f"Blob {ref.sha256[:12]}… has {row.size} bytes, not {ref.size}.", code="blob_size")


def _checked_plan(blobs: BlobStore, request: ExperimentCreate, manifest: Manifest, signers: tuple[str, ...]) -> Plan:
    graphs = {file.name: blobs.reader.read("blobs", file.sha256, "a plan's graph") for file in manifest.files}
    return check_plan(
        manifest.data, graphs, signature=request.plan.signature, signer=request.plan.signer, allowed_signers=signers
    )


def _check_fit(request: ExperimentCreate, manifest: Manifest, base: Ground) -> None:
    """What the request, the plan and the population must agree about."""
    if (why := departure(manifest.schema, base.schema)) is not None:
        raise Conflict(
            f"The plan is for data schema {manifest.schema.digest[:12]}…; population {request.population!r} has "
            f"{base.schema.digest[:12]}…, and the plan's is not a refinement of it: it {why}.",
            hint="Compile the experiment with the population's schema, or with one that was prepared from it.",
            code="schema_mismatch",
        )
    check_requested(request, manifest)
    secure = secure_of(request)
    if secure is not None:
        _check_rings(request, manifest, secure)
    configure(request.rounds, 1, central=request.evaluation is not None, secure=request.secure is not None)


def _check_rings(request: ExperimentCreate, manifest: Manifest, secure: SecureAggregation) -> None:
    """That what devices will be told of their sums can be told. Raises ExperimentError as `secure_terms` does."""
    kinds: tuple[TaskKind, ...] = ("train", "evaluate") if request.rounds.evaluate_every else ("train",)
    for kind in kinds:
        secure_terms(
            manifest,
            kind,
            attempt=new_id(ATTEMPT),
            secure=secure,
            privacy=request.privacy,
            rounds=request.rounds,
        )


def _check_state(request: ExperimentCreate, manifest: Manifest, base: Ground) -> None:
    """Nothing may stay on the devices of a population that keeps nothing. Raises ExperimentError
    (``stateless_population``).
    """
    if base.client_state == "kept":
        return
    keeping = [name for name in request.codecs if parse(name).stateful]
    what = f"the method {manifest.algorithm.name}" if manifest.client_state else f"the codec {', '.join(keeping)}"
    if manifest.client_state or keeping:
        raise ExperimentError(
            f"Population {request.population!r} keeps no state on its devices, which do not come back, but {what} "
            "needs what a device kept from its last round.",
            hint="Choose a method and codecs without client state, such as FedAvg and eden:4, or a population made "
            "with client_state 'kept'.",
            code="stateless_population",
        )


def _check_weights(blobs: BlobStore, request: ExperimentCreate, manifest: Manifest) -> None:
    """The initial version (and the frozen part) must be float32 tensors of the layout, all finite."""
    _check_tensors(blobs, request.initial.sha256, manifest.layout, "initial version")
    if manifest.frozen is not None:
        _check_tensors(blobs, manifest.frozen.sha256, manifest.frozen.layout, "frozen part")


def _check_tensors(blobs: BlobStore, digest: str, layout: Layout, what: str) -> None:
    limits = TensorLimits(max_bytes=layout.size * 4 + (1 << 20), dtypes=frozenset({"F32"}))
    vector = layout.flatten(read_file(blobs.reader.range_of("blobs", digest, what), limits))
    if not np.isfinite(vector).all():
        raise ExperimentError(
            f"The {what} is not finite at element {int(np.argmin(np.isfinite(vector)))}.", code="not_finite"
        )
