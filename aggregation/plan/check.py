"""Whether a plan may be trusted and can be run. Server and device call the same function.

A plan comes from the network, so nothing in it is believed before it is checked, and every refusal says what is wrong:

=================  ===================================================================================================
code               what is wrong
=================  ===================================================================================================
plan_size          the manifest or a graph is larger than the limits allow
plan_manifest      the manifest is not canonical JSON, or a field has the wrong type or an impossible value
plan_signer        the signer is not one of those allowed, or the plan is not signed
plan_signature     the signature is not that of the signer over this manifest
plan_files         a graph named by the manifest is absent, or one that it does not name is present
plan_digest        a graph's bytes are not those that the manifest names
plan_graph         a graph leaves the portable, bounded subset (an operator, a size, external data, …)
plan_interface     a graph's inputs and outputs are not those that the manifest states, a variant's included
plan_stages        the stages are not those of the plan's shape, or have variants or lengths where there are none
plan_wiring        an input or output has a role, source, destination, dtype or shape that does not fit
plan_private       the steps cannot give the example-level privacy stated, or takes noise where none is stated
plan_sections      the sections do not fit the layout, each other or the metrics
=================  ===================================================================================================
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coterie import errors
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.check_private import check_private
from coterie.aggregation.plan.check_stages import check_stages
from coterie.aggregation.plan.manifest import (
    DELTA,
    MANIFEST_BYTES,
    METRIC_RANGE,
    METRICS,
    Manifest,
)
from coterie.aggregation.plan.scope import StageScope
from coterie.aggregation.plan.stage import Stage, StageFile, StageInput, StageLength
from coterie.compute.onnx.checker import GraphLimits, check_graph
from coterie.compute.runtime.tensors import TensorInfo
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.layout import Tensor
from coterie.protocol.metrics import EXAMPLES
from coterie.protocol.schema import NEEDS_FEATURES
from coterie.protocol.sections import SectionSpec
from coterie.protocol.signing import verify_plan


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """How large a plan may be.

    parameters: elements of the layout and the frozen tensors together.
    state: elements that stay on a device between rounds.
    """

    manifest_bytes: int = MANIFEST_BYTES
    parameters: int = 1 << 30
    state: int = 1 << 30
    graph: GraphLimits = field(default_factory=GraphLimits)


def check_plan(
    manifest: bytes,
    graphs: Mapping[str, bytes],
    *,
    signature: str | None,
    signer: str | None,
    allowed_signers: Collection[str],
    limits: PlanLimits | None = None,
) -> Plan:
    """The plan, if everything about it holds.

    manifest: canonical bytes.
    graphs: file name → ONNX bytes; those of variants and lengths may be absent, since a device may do without.
    signature (base64), signer (public key, hex): as they came with it.
    allowed_signers: public keys that this side trusts. Guarantees of a returned plan: an allowed key signed exactly
        these bytes, every graph included; every graph is inside the portable subset and the limits; every input can be
        filled from its stated source with its stated dtype and shape; a training task yields every section, and all
        client state.
    Raises errors.PlanRefused, and nothing else, with one of the codes of the module's table.
    """
    bounds = limits or PlanLimits()
    if len(manifest) > bounds.manifest_bytes:
        raise _refused("size", f"The manifest has {len(manifest)} bytes; at most {bounds.manifest_bytes} are allowed.")
    plan = Plan(Manifest.from_bytes(manifest), dict(graphs), signature, signer)
    _check_signature(plan, allowed_signers)
    _check_files(plan, bounds)
    check_manifest(plan.manifest, bounds)
    for stage in plan.manifest.stages:
        for file in stage.files:
            if file.name in graphs:
                _check_graph(stage, file, graphs[file.name], bounds.graph)
    return plan


def check_manifest(manifest: Manifest, limits: PlanLimits | None = None) -> None:
    """What the fields of a manifest mean together: sections over the layout, and the wiring of the stages.

    Raises errors.PlanRefused.
    """
    _check_sizes(manifest, limits or PlanLimits())
    _check_sections(manifest)
    check_private(manifest)
    check_stages(StageScope.of(manifest))


def _check_signature(plan: Plan, allowed: Collection[str]) -> None:
    if plan.signature is None or plan.signer is None:
        raise _refused("signer", "The plan is not signed.", hint="Sign it with Plan.sign before sending it.")
    if plan.signer not in allowed:
        raise _refused(
            "signer",
            f"The plan is signed by key {plan.signer[:64]}, which is not among the {len(allowed)} allowed here.",
            hint="Let the population's operator add the researcher's key.",
        )
    try:
        verify_plan(plan.signer, plan.id, plan.signature)
    except errors.Unauthenticated as error:
        raise _refused("signature", f"Plan {plan.id[:16]}…: {error.message}") from error


def _check_files(plan: Plan, limits: PlanLimits) -> None:
    named, found = {stage.name for stage in plan.manifest.stages}, set(plan.graphs)
    files = plan.manifest.files
    for wrong, message in (
        (named - found, "The file of stage {!r} is absent."),
        (found - {file.name for file in files}, "The manifest has no stage {!r}, of which there is a file."),
    ):
        if wrong:
            raise _refused("files", message.format(min(wrong)))
    for file in files:
        if file.name in found:
            _check_file(file, plan.graphs[file.name], limits.graph)


def check_stage_file(stage: Stage, data: bytes, limits: GraphLimits) -> None:
    """Return only if these bytes are the graph that the stage names, inside the portable subset and the limits.

    Raises errors.PlanRefused.
    """
    own = stage.files[0]
    _check_file(own, data, limits)
    _check_graph(stage, own, data, limits)


def _check_file(file: StageFile, data: bytes, limits: GraphLimits) -> None:
    if max(len(data), file.size) > limits.graph_bytes:
        raise _refused("size", f"The graph of {file.name!r} exceeds {limits.graph_bytes} bytes.")
    if len(data) != file.size or file.sha256 != sha256_hex(data):
        raise _refused(
            "digest", f"The graph of {file.name!r} is not the file that the manifest names ({file.sha256[:16]}…)."
        )


def _check_sizes(manifest: Manifest, limits: PlanLimits) -> None:
    if not manifest.schema.has_features:
        raise _refused("manifest", f"In the plan's data schema: {NEEDS_FEATURES}.")
    parameters = manifest.layout.size + (manifest.frozen.layout.size if manifest.frozen else 0)
    state = sum(tensor.size for tensor in manifest.client_state)
    for size, limit, what in ((parameters, limits.parameters, "parameters"), (state, limits.state, "client state")):
        if size > limit:
            raise _refused("size", f"The plan has {size} elements of {what}; at most {limit} are allowed.")


def _check_sections(manifest: Manifest) -> None:
    layout, sections, metrics = manifest.layout, manifest.sections, manifest.metrics
    names = [spec.name for spec in sections]
    covered = sorted(pair for spec in sections for pair in spec.slices)
    frozen = set(manifest.frozen.layout.names) if manifest.frozen else set[str]()
    rules = (
        (metrics[:2] == (EXAMPLES, "loss"), f"metrics must begin with {EXAMPLES!r} and 'loss'"),
        (bool(names) and names[-1] == METRICS, f"the last section must be {METRICS!r}"),
        (len(set(names)) == len(names), "a section is named twice"),
        (len(names) > 1, "there is no section but the metrics, so nothing would be learned"),
        (all(a[1] <= b[0] for a, b in zip(covered, covered[1:], strict=False)), "two sections cover the same slice"),
        (not covered or covered[-1][1] <= layout.size, f"a section leaves the layout of {layout.size} elements"),
        (
            all(
                spec.is_extra or (spec.segments, spec.rows) == (layout.segments(spec.slices), layout.rows(spec.slices))
                for spec in sections
            ),
            "a section's segments and rows are not the runs of its tensors",
        ),
        (
            all(spec.name != METRICS or _fits_metrics(spec, len(metrics)) for spec in sections),
            f"section {METRICS!r} must be a sum of {len(metrics)} elements, one for each metric, in {METRIC_RANGE}",
        ),
        (manifest.trainer == "plan" or names[0] == DELTA, f"an external plan's first section must be {DELTA!r}"),
        (bool(manifest.codecs), "no codec is listed"),
        (not frozen & set(layout.names), "a tensor is both frozen and in the layout"),
        (_distinct(manifest.client_state), "a tensor of the client state is named twice"),
    )
    for holds, message in rules:
        if not holds:
            raise _refused("sections", f"The manifest does not fit together: {message}.")


def _check_graph(stage: Stage, file: StageFile, data: bytes, limits: GraphLimits) -> None:
    try:
        summary = check_graph(data, limits=limits, kind=file.kind)
    except errors.GraphRefused as error:
        raise _refused("graph", f"The graph of {file.name!r}: {error.message}") from error
    expected = _shortened(stage, file.length, summary.inputs)
    for what, stated, found in (("inputs", expected, summary.inputs), ("outputs", stage.outputs, summary.outputs)):
        if [TensorInfo(t.name, t.dtype, t.shape) for t in stated] != list(found):
            raise _refused(
                "interface", f"The {what} of the graph of {file.name!r} are not those that the manifest states."
            )


def _shortened(
    stage: Stage, length: StageLength | None, found: Sequence[TensorInfo]
) -> Sequence[StageInput | TensorInfo]:
    """What a file takes: the stage's inputs; of a shorter length, rows that are cut, and draws that are no larger."""
    if length is None:
        return stage.inputs
    given = {tensor.name: tensor for tensor in found}
    expected: list[StageInput | TensorInfo] = []
    for tensor in stage.inputs:
        other = given.get(tensor.name)
        if tensor.source == "batch" and tensor.key in length.lengths:
            tensor = replace(tensor, shape=(*tensor.shape[:1], length.lengths[tensor.key], *tensor.shape[2:]))
        elif tensor.source == "random" and other is not None and len(other.shape) == len(tensor.shape):
            smaller = all(size <= most for size, most in zip(other.shape, tensor.shape, strict=True))
            tensor = replace(tensor, shape=other.shape) if smaller else tensor
        expected.append(tensor)
    return expected


def _fits_metrics(spec: SectionSpec, count: int) -> bool:
    return spec.is_extra and spec.length == count and spec.value_range == METRIC_RANGE


def _distinct(tensors: Collection[Tensor]) -> bool:
    return len({tensor.name for tensor in tensors}) == len(tensors)


def _refused(code: str, message: str, *, hint: str | None = None) -> errors.PlanRefused:
    return errors.PlanRefused(message, hint=hint, code=f"plan_{code}")
