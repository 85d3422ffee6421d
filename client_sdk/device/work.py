"""One task on one device: fetch the plan and the model, check them, train or evaluate, encode."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from coterie.aggregation.evaluate import evaluation_sections
from coterie.aggregation.fold.part import Slices
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.check import check_plan
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.contribution import STEPS, WEIGHT, zeros
from coterie.aggregation.private.local_noise import privatised
from coterie.client_sdk.device.blobs import BlobCache
from coterie.client_sdk.device.divergence import as_divergence
from coterie.client_sdk.device.holdout import split
from coterie.client_sdk.device.lineage import check_client_state
from coterie.client_sdk.device.membership import Membership
from coterie.client_sdk.device.outcome import PreparedTask, TaskResult, encoded
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.promise import check_own_noise, check_steps
from coterie.client_sdk.device.quiet import as_coterie_error, hides, promised, train_quietly, under_masks
from coterie.client_sdk.device.spending import PrivacyLedger, Release
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork, Trainer, TrainOptions, require_arrays
from coterie.client_sdk.rows.loading import blank_rows
from coterie.compute.data.supply import row_count
from coterie.compute.onnx.providers import ProviderClass
from coterie.errors import CoterieError, PlanRefused, PolicyRefused, UpdateRefused
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.secagg.encoding import describe
from coterie.protocol.arrays import FloatArrays
from coterie.protocol.checked_rows import CheckedRows
from coterie.protocol.codecs.table import choose
from coterie.protocol.device import Task
from coterie.protocol.layout import Layout
from coterie.protocol.refinement import departure
from coterie.protocol.rows import check_left
from coterie.protocol.tensors import TensorLimits, decode_tensors
from coterie.protocol.update import most_bytes, of_plan

_SEED_BITS = 53


class TellsPhase(Protocol):
    """Told which phase of the work begins."""

    def __call__(self, phase: str, /) -> None: ...


async def prepare(
    task: Task,
    membership: Membership,
    policy: DevicePolicy,
    blobs: BlobCache,
    ledger: PrivacyLedger,
    *,
    key: str,
    at: TellsPhase = lambda phase: None,
    kinds: Callable[[], Awaitable[Collection[ProviderClass]]] | None = None,
) -> PreparedTask:
    """Download and check everything that a task names.

    key: under which the task stands in the ledger, if it does already.
    kinds: the classes of providers whose variants of the plan's steps are fetched too; asked where there are any, and
        None for none.
    Guarantees: the coordinator pinned at enrolment signed this very task for this device; an allowed key signed the
    plan; every byte has the digest that the plan or the task names; the plan is for the population's schema and within
    the policy; and what the task releases is within its promise and the owner's limit, by the device's own record.
    Raises Unauthenticated, PlanRefused, PolicyRefused, TensorFileError, RemoteError.
    """
    at("checking")
    check_assignment(task, membership, policy)
    at("downloading")
    manifest = await blobs.fetch(task.plan.id, limit=policy.plan.manifest_bytes)
    files = Manifest.from_bytes(manifest).files
    limit = policy.plan.graph.graph_bytes
    varied = task.kind == "train" and any(file.kind for file in files)
    wanted = {None, *(await kinds() if varied and kinds is not None else ())}
    graphs = {
        file.name: await blobs.fetch(file.sha256, limit=limit, size=file.size)
        for file in files
        if file.kind in wanted and (file.length is None or task.kind == "train")
    }
    at("checking")
    allowed = membership.signers if policy.signers is None else policy.signers
    # Checking opens every graph, which takes longer than an event loop should wait.
    plan = await asyncio.to_thread(
        check_plan,
        manifest,
        graphs,
        signature=task.plan.signature,
        signer=task.plan.signer,
        allowed_signers=allowed,
        limits=policy.plan,
    )
    _check_schema(plan, membership)
    _check_hyper(task, plan.manifest)
    policy.check_plan(plan)
    check_client_state(task, plan.manifest)
    check_steps(task, plan.manifest)
    check_own_noise(task, plan.manifest)
    if plan.manifest.training.private is not None and task.kind == "train":
        require_arrays(membership.rows, "Example-level privacy, which draws single rows,")
    policy.check_upload(most_sent(task, plan.manifest), task)
    release = Release.of(
        task,
        plan.manifest,
        key=key,
        coordinator=membership.coordinator_key,
        population=membership.population,
    )
    if release is not None:
        # The accounting may take a second, which is longer than an event loop should wait.
        await asyncio.to_thread(ledger.check, release, policy)
    at("downloading")
    weights = await _tensors(blobs, task.model.sha256, task.model.size, plan.manifest.layout, policy)
    frozen: FloatArrays = {}
    if plan.manifest.frozen is not None:
        frozen = await _tensors(blobs, plan.manifest.frozen.sha256, None, plan.manifest.frozen.layout, policy)
    return PreparedTask(task=task, plan=plan, weights=weights, frozen=frozen, release=release)


def most_sent(task: Task, manifest: Manifest) -> int:
    """The most bytes that this task can make the device send, whatever its rows are.

    Codecs that pack (``+rice``, ``topk``) make longer or shorter bytes of other values. A refusal by the bytes that
    came of the training would be silence that tells of the rows, and nobody has paid for it yet.
    """
    if task.secure is not None:
        return sum(each.bytes for each in describe(task.secure.sections))
    return most_bytes(manifest.sections_for(task.kind), (choose(task.codecs),))


def check_assignment(task: Task, membership: Membership, policy: DevicePolicy) -> None:
    """Raise unless the pinned coordinator signed this task, for this device, and the policy takes it."""
    task.verify(membership.coordinator_key)
    if task.device != membership.device_id:
        raise PolicyRefused("The task was signed for another device.", code="task_of_another")
    policy.check_task(task, membership.signers)
    task.plan.verify()


def work(
    prepared: PreparedTask,
    membership: Membership,
    policy: DevicePolicy,
    trainer: Trainer,
    client_state: FloatArrays,
    *,
    on_step: Callable[[int], None] = lambda steps: None,
) -> TaskResult:
    """Train or evaluate, and encode. Blocking; the same prepared task, rows and client state give the same bytes,
    but for secure aggregation and local noise, which draw afresh.

    Under a promise of privacy, what was trained and cannot be used counts as zeros, and is sent like anything else; so
    is the part of a device that has no row as the plan's schema reads them. Under secure aggregation alone it is zeros
    that weigh nothing, of an evaluation too.
    In clear and without a promise raises what the trainer raises; UpdateRefused (``training_diverged``) where numbers
    are not finite; DataError for rows that cannot be read as the plan's schema says; PolicyRefused
    (``no_held_out_rows``, ``no_metrics``) for an evaluation without rows or without metrics. Otherwise only what plans
    and policies refuse.
    """
    begun = time.monotonic()
    try:
        return _do_work(prepared, membership, policy, trainer, client_state, on_step)
    except Exception as error:  # a trainer of the owner's may raise anything
        if hides(prepared.task, error):
            return _empty_result(prepared, client_state, why=as_coterie_error(error), seconds=time.monotonic() - begun)
        if not isinstance(error, CoterieError):
            raise
        told = as_divergence(prepared.task, error)
        if told is error:
            raise
        raise told from error


def _do_work(
    prepared: PreparedTask,
    membership: Membership,
    policy: DevicePolicy,
    trainer: Trainer,
    client_state: FloatArrays,
    on_step: Callable[[int], None],
) -> TaskResult:
    """See `work`."""
    task, plan = prepared.task, prepared.plan
    unread: CoterieError | None = None
    try:
        read = membership.read(plan.manifest.schema)
        check_left(row_count(read), plan.manifest.schema.label, "The rows of this device")
    except Exception as error:  # a function of the owner's that makes rows may raise anything
        if not under_masks(task) and (task.kind != "train" or not promised(task)):
            raise
        # A device that was silent for want of such rows would tell that it has none, exactly and for nothing.
        # Steps that are noised take no row; any other work takes one of zeros and puts in nothing of what comes of it.
        bare = plan.manifest.training.private is not None and task.kind == "train"
        unread, read = as_coterie_error(error), blank_rows(plan.manifest.schema, 0 if bare else 1)
    training_rows, held_out = split(read, plan.manifest.training.holdout)
    local = LocalTask(
        experiment=task.experiment,
        round=task.round,
        seed=seed_of(task),
        hyper=task.hyper,
        client=task.device,
        weight_cap=min(policy.weight_cap(task), task.secure.weight_cap if task.secure else task.weight_cap),
    )
    given = LocalWork(
        plan=plan,
        task=local,
        weights=prepared.weights,
        frozen=prepared.frozen,
        rows=training_rows if task.kind == "train" or unread else held_out,
        client_state=of_plan(client_state),
        options=TrainOptions(threads=policy.threads, max_steps=policy.max_steps, on_step=on_step),
        whole=task.kind == "train" and (promised(task) or task.secure is not None),
        read=read.read if isinstance(read, CheckedRows) else 0,
    )
    kept: FloatArrays = {}
    slices: Mapping[str, Slices] = {}
    unusable: CoterieError | None = None
    begun = time.monotonic()
    if task.kind == "train" and promised(task):
        quiet = train_quietly(trainer, given, task, unread=unread)
        sections, weight, steps, kept = quiet.put_in.sections, WEIGHT, STEPS, quiet.put_in.state
        means, unusable = quiet.metrics, quiet.unusable
        if task.local is not None:
            sections = privatised(plan.manifest, sections, task.local, NoiseSource.fresh())
    elif task.kind == "train":
        result = trainer.train(given)
        # A trainer of the owner's need not know of the caps.
        weight = min(result.weight, local.weight_cap)
        sections, steps, kept, slices = result.sections, result.steps, result.client_state, result.slices
        means = result.metrics(plan).means()
    else:
        if unread is None and not row_count(held_out):
            raise PolicyRefused(
                "This device holds out no rows, so it has nothing to evaluate on.", code="no_held_out_rows"
            )
        sums = trainer.evaluate(given)
        if not sums.examples:
            raise PolicyRefused("This device's trainer reports no metrics.", code="no_metrics")
        sections, steps = evaluation_sections(plan.manifest, sums), 0
        weight, means = min(int(sums.examples), local.weight_cap), sums.means()
    if unread is not None and under_masks(task):
        raise unread
    seconds = time.monotonic() - begun
    specs = plan.manifest.sections_for(task.kind)
    finished = TaskResult(
        specs=specs,
        sections=sections,
        weight=weight,
        steps=steps,
        client_state=kept,
        metrics=means,
        seconds=seconds,
        slices=slices,
        unusable=unusable,
    )
    try:
        return encoded(prepared, finished, client_state)
    except UpdateRefused as error:
        if task.kind != "train" or not promised(task):
            raise
        # Whether an encoder takes them depends on the values: zeros are taken by all.
        instead = zeros(specs, of_plan(client_state))
        silent = replace(finished, sections=instead.sections, client_state=instead.state, unusable=error)
        return encoded(prepared, silent, client_state)


def seed_of(task: Task) -> int:
    """Of orders of rows and masks of dropout; under secure aggregation this device's own, which nobody else knows.

    Whoever chose those of all devices of a sum could choose what each puts in: dropout that zeroes a unit everywhere
    but on one device makes of the sum's part for that unit the update of that one.
    """
    return task.seed if task.secure is None else secrets.randbits(_SEED_BITS)


def _empty_result(
    prepared: PreparedTask, client_state: FloatArrays, *, why: CoterieError, seconds: float
) -> TaskResult:
    """What goes under the masks for work that came to nothing: zeros that weigh nothing. Raises as `encoded` does."""
    specs = prepared.plan.manifest.sections_for(prepared.task.kind)
    silent = zeros(specs, of_plan(client_state))
    finished = TaskResult(
        specs=specs,
        sections=silent.sections,
        weight=0,
        steps=0,
        client_state=silent.state,
        metrics={},
        seconds=seconds,
        unusable=why,
    )
    return encoded(prepared, finished, client_state)


async def _tensors(
    blobs: BlobCache, sha256: str, size: int | None, layout: Layout, policy: DevicePolicy
) -> FloatArrays:
    """The float32 tensors of a blob, exactly those of the layout, all finite."""
    data = await blobs.fetch(sha256, limit=policy.max_download_bytes, size=size, delta="from_held")
    tensors = decode_tensors(data, TensorLimits(max_bytes=policy.max_download_bytes, dtypes=frozenset({"F32"})))
    layout.check(tensors)
    bad = next((name for name, tensor in tensors.items() if not np.isfinite(tensor).all()), None)
    if bad is not None:
        raise PlanRefused(
            f"Tensor {bad!r} of the model holds values that are not finite.",
            hint="The experiment has diverged; whoever runs it lowers the learning rate.",
            code="model_not_finite",
        )
    return tensors


def _check_schema(plan: Plan, membership: Membership) -> None:
    if (why := departure(plan.manifest.schema, membership.schema)) is not None:
        raise PlanRefused(
            f"Plan {plan.manifest.name!r} has a schema that is not a finer reading of that of population "
            f"{membership.population!r}: it {why}.",
            code="schema_mismatch",
        )


def _check_hyper(task: Task, manifest: Manifest) -> None:
    """A task sets the plan's hyper-parameters alone: a trainer of the owner's reads others as settings of its own, and
    only the plan is signed by somebody else than the coordinator.
    """
    unknown = sorted(set(task.hyper) - set(manifest.hyper))
    if unknown:
        raise PolicyRefused(
            f"The task sets {unknown[0]!r}, and plan {manifest.name!r} has no hyper-parameter of that name.",
            hint="No coordinator of coterie sends such a task: find out what changed this one.",
            code="unknown_hyper",
        )
