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
plan_interface     a graph's inputs and outputs are not those that the manifest states
plan_wiring        an input has a role, source, dtype or shape that does not fit, or outputs do not lead where they must
plan_private       the train graph cannot give the example-level privacy stated, or takes noise where none is stated
plan_sections      the sections do not fit the layout, each other or the metrics
=================  ===================================================================================================
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from coterie import errors
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.check_private import check_private
from coterie.aggregation.plan.graph import (
    CARRYING,
    GRAPHS,
    NEXT,
    GraphInput,
    GraphManifest,
    GraphName,
    Role,
    Source,
    role_of,
)
from coterie.aggregation.plan.manifest import (
    DELTA,
    MANIFEST_BYTES,
    METRIC_RANGE,
    METRICS,
    MOST_ROWS,
    SAMPLE_WEIGHT,
    Manifest,
)
from coterie.compute.onnx.checker import GraphLimits, check_graph
from coterie.compute.runtime.tensors import TensorInfo
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.layout import Layout, Tensor
from coterie.protocol.metrics import EXAMPLES
from coterie.protocol.sections import SectionSpec
from coterie.protocol.signing import verify_plan

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """How large a plan may be. parameters: elements of the layout and the frozen tensors together. state: elements
    that stay on a device between rounds.
    """

    manifest_bytes: int = MANIFEST_BYTES
    parameters: int = 1 << 30
    state: int = 1 << 30
    graph: GraphLimits = field(default_factory=GraphLimits)


# Which graphs a plan of each kind has: (required, allowed).
REQUIRED: Mapping[str, frozenset[GraphName]] = {
    "plan": frozenset(("begin", "train", "finish", "eval", "infer")),
    "external": frozenset(),
}

# Where the inputs of each graph may come from.
ALLOWED_SOURCES: Mapping[GraphName, frozenset[Source]] = {
    "probe": frozenset(("model", "frozen", "batch", "zeros")),
    "begin": frozenset(("model", "frozen", "client_state", "probe", "hyper")),
    "train": frozenset(
        ("model", "frozen", "client_state", "hyper", "active", "random", "noise", "batch", "state", "zeros")
    ),
    "finish": frozenset(("model", "frozen", "client_state", "probe", "hyper", "state", "counter")),
    "eval": frozenset(("model", "frozen", "probe", "batch", "zeros")),
    "infer": frozenset(("model", "frozen", "batch")),
}

# The roles that the inputs from each source may have.
SOURCE_ROLES: Mapping[Source, frozenset[Role]] = {
    "model": frozenset(("shared", "buffer", "round_input")),
    "frozen": frozenset(("frozen",)),
    "client_state": frozenset(("client_state",)),
    "probe": frozenset(("probe",)),
    "hyper": frozenset(("hyper",)),
    "active": frozenset(("hyper",)),
    "random": frozenset(("random",)),
    "noise": frozenset(("random",)),
    "batch": frozenset(("batch",)),
    "state": frozenset(("shared", "buffer", "optimizer", "round_input", "client_state", "metric")),
    "zeros": frozenset(("metric", "optimizer", "probe")),
    "counter": frozenset(("counter",)),
}


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

    manifest: canonical bytes. graphs: name → ONNX bytes. signature (base64), signer (public key, hex) as they came
    with it; allowed_signers: public keys that this side trusts.
    Guarantees of a returned plan: an allowed key signed exactly these bytes, every graph included; every graph is
    inside the portable subset and the limits; every input can be filled from its stated source with its stated dtype
    and shape; a training task yields every section, and all client state. Raises errors.PlanRefused, and nothing
    else, with one of the codes of the module's table.
    """
    bounds = limits or PlanLimits()
    if len(manifest) > bounds.manifest_bytes:
        raise _refused("size", f"The manifest has {len(manifest)} bytes; at most {bounds.manifest_bytes} are allowed.")
    plan = Plan(Manifest.from_bytes(manifest), dict(graphs), signature, signer)
    _check_signature(plan, allowed_signers)
    _check_files(plan, bounds)
    check_manifest(plan.manifest, bounds)
    for name, graph in plan.manifest.graphs.items():
        _check_graph(name, graph, graphs[name], bounds.graph)
    return plan


def check_manifest(manifest: Manifest, limits: PlanLimits | None = None) -> None:
    """What the fields of a manifest mean together: sections over the layout, and the wiring of the graphs.

    Raises errors.PlanRefused.
    """
    _check_sizes(manifest, limits or PlanLimits())
    _check_sections(manifest)
    check_private(manifest)
    for name in GRAPHS:
        if name in manifest.graphs:
            _check_inputs(manifest, name, manifest.graphs[name])
            _check_outputs(name, manifest.graphs[name])
    if manifest.trainer == "plan":
        _check_flow(manifest)


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
    named, found = set(plan.manifest.graphs), set(plan.graphs)
    required = REQUIRED[plan.manifest.trainer]
    for wrong, message in (
        (named - found, "The file of graph {!r} is absent."),
        (found - named, "The manifest does not name the graph {!r}."),
        (required - named, f"A plan with trainer {plan.manifest.trainer!r} needs the graph {{!r}}."),
    ):
        if wrong:
            raise _refused("files", message.format(min(wrong)))
    for name, graph in plan.manifest.graphs.items():
        data = plan.graphs[name]
        if max(len(data), graph.size) > limits.graph.graph_bytes:
            raise _refused("size", f"Graph {name!r} exceeds {limits.graph.graph_bytes} bytes.")
        if len(data) != graph.size or graph.sha256 != sha256_hex(data):
            raise _refused("digest", f"Graph {name!r} is not the file that the manifest names ({graph.sha256[:16]}…).")


def _check_sizes(manifest: Manifest, limits: PlanLimits) -> None:
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


def _check_inputs(manifest: Manifest, name: GraphName, graph: GraphManifest) -> None:
    _check_names(name, [tensor.name for tensor in graph.inputs])
    for tensor in graph.inputs:
        where = f"Input {tensor.name!r} of {name}"
        if tensor.source not in ALLOWED_SOURCES[name]:
            raise _refused("wiring", f"{where} comes from {tensor.source!r}, which {name} does not have.")
        if tensor.role not in SOURCE_ROLES[tensor.source] or role_of(tensor.name) != tensor.role:
            raise _refused("wiring", f"{where} cannot have the role {tensor.role!r} with source {tensor.source!r}.")
        expected = _EXPECTED[tensor.source](manifest, name, tensor)
        if expected is None:
            raise _refused("wiring", f"{where}: {tensor.source} has nothing named {tensor.key!r}.")
        if (tensor.dtype, tensor.shape) != expected:
            raise _refused(
                "wiring",
                f"{where} is {tensor.dtype}{list(tensor.shape)}, but {tensor.source} {tensor.key!r} is "
                f"{expected[0]}{list(expected[1])}.",
            )


def _check_outputs(name: str, graph: GraphManifest) -> None:
    _check_names(name, [tensor.name for tensor in graph.outputs])
    for tensor in graph.outputs:
        if role_of(tensor.name) != tensor.role:
            raise _refused("wiring", f"Output {tensor.name!r} of {name} cannot have the role {tensor.role!r}.")
    inputs = {tensor.name: tensor for tensor in graph.inputs}
    outputs = {tensor.name: tensor for tensor in graph.outputs}
    carries = name in CARRYING
    wanted = {output: output.removeprefix(NEXT) for output in outputs} if carries else {}
    if dict(graph.carry) != wanted:
        raise _refused("wiring", f"The carry map of {name} must lead each 'next/<name>' to '<name>', and nothing else.")
    for output, target in graph.carry.items():
        into = inputs.get(target)
        if into is None or not output.startswith(NEXT) or into.source not in ("state", "zeros"):
            raise _refused("wiring", f"Output {output!r} of {name} leads to no input that is state.")
        if (into.dtype, into.shape) != (outputs[output].dtype, outputs[output].shape):
            raise _refused("wiring", f"Output {output!r} of {name} does not have the dtype and shape of its input.")
    uncarried = [t.name for t in graph.inputs if t.source == "zeros" and NEXT + t.name not in outputs]
    if uncarried:
        raise _refused("wiring", f"Input {uncarried[0]!r} of {name} starts as zeros but is never given a new value.")


def _check_flow(manifest: Manifest) -> None:
    """begin fills train's state, train fills finish's, finish yields the sections and the client state; metrics sum
    up.
    """
    _check_kinds(manifest)
    begin, train, finish = (manifest.graph(name) for name in ("begin", "train", "finish"))
    train_state = {t.name: (t.dtype, t.shape) for t in train.from_source("state")}
    begun = {t.name.removeprefix(NEXT): (t.dtype, t.shape) for t in begin.outputs if t.name.startswith(NEXT)}
    if len(begun) != len(begin.outputs) or begun != train_state:
        raise _refused("wiring", "The outputs of begin are not the state that train starts from.")
    ended = train_state | {t.name: (t.dtype, t.shape) for t in train.from_source("zeros")}
    for tensor in finish.from_source("state"):
        if ended.get(tensor.name) != (tensor.dtype, tensor.shape):
            raise _refused("wiring", f"Input {tensor.name!r} of finish is not a state of train.")
    uploads = {f"upload/{spec.name}": ("float32", (spec.length,)) for spec in manifest.sections}
    kept = {f"{NEXT}client_state/{t.name}": ("float32", t.shape) for t in manifest.client_state}
    if {t.name: (t.dtype, t.shape) for t in finish.outputs} != uploads | kept:
        raise _refused("wiring", "The outputs of finish are not the manifest's sections and client state.")
    if "probe" in manifest.graphs:
        found = [(t.role, t.dtype, t.shape) for t in manifest.graph("probe").outputs]
        if any(output != ("probe", "float32", (1,)) for output in found):
            raise _refused("wiring", "The outputs of probe are not single sums of the role 'probe'.")
    if not 1 <= manifest.batch_rows("eval") <= MOST_ROWS:
        raise _refused("wiring", f"A step of eval must take 1 to {MOST_ROWS} rows.")
    sums = {f"metric/{name}" for name in manifest.metrics}
    for name in ("train", "eval"):
        graph = manifest.graph(name)
        if {t.name for t in graph.inputs if t.role == "metric"} != sums:
            raise _refused("wiring", f"The metric sums of {name} are not the manifest's metrics.")
    if [t.name for t in manifest.graph("infer").outputs] != ["output"]:
        raise _refused("wiring", "infer must have the one output 'output'.")
    if not train.from_source("active") or SAMPLE_WEIGHT not in {t.key for t in train.from_source("batch")}:
        raise _refused("wiring", f"train must read hyper/active and batch/{SAMPLE_WEIGHT}.")


def _check_kinds(manifest: Manifest) -> None:
    """A tensor of the layout is a weight or a buffer, in all graphs alike: the server treats the two differently."""
    kinds: dict[str, Role] = {}
    for name, graph in manifest.graphs.items():
        for tensor in graph.inputs:
            if tensor.role in ("shared", "buffer") and kinds.setdefault(tensor.key, tensor.role) != tensor.role:
                raise _refused("wiring", f"Tensor {tensor.key!r} is both a weight and a buffer (in {name}).")
    # Weights may be trained under names that no version has, as when a version holds several models.
    unknown = sorted(key for key, role in kinds.items() if role == "buffer" and key not in manifest.layout.names)
    if unknown:
        raise _refused("wiring", f"Tensor {unknown[0]!r} is a buffer, but not in the layout.")


def _check_graph(name: str, graph: GraphManifest, data: bytes, limits: GraphLimits) -> None:
    try:
        summary = check_graph(data, limits=limits)
    except errors.GraphRefused as error:
        raise _refused("graph", f"Graph {name!r}: {error.message}") from error
    for what, stated, found in (("inputs", graph.inputs, summary.inputs), ("outputs", graph.outputs, summary.outputs)):
        if [TensorInfo(t.name, t.dtype, t.shape) for t in stated] != list(found):
            raise _refused("interface", f"The {what} of graph {name!r} are not those that the manifest states.")


def _check_names(graph: str, names: list[str]) -> None:
    if len(set(names)) != len(names):
        raise _refused("wiring", f"Graph {graph!r} names a tensor twice.")


# What an input from each source must be: (dtype, shape), or None where there is nothing of that key.


def _in_layout(layout: Layout | None, key: str) -> tuple[str, Shape] | None:
    return ("float32", layout.shapes[key]) if layout and key in layout.shapes else None


def _among(tensors: Collection[Tensor], key: str) -> tuple[str, Shape] | None:
    return next((("float32", tensor.shape) for tensor in tensors if tensor.name == key), None)


def _batch(manifest: Manifest, name: GraphName, tensor: GraphInput) -> tuple[str, Shape] | None:
    rows = manifest.batch_rows(name)
    if tensor.key == SAMPLE_WEIGHT:
        return "float32", (rows,)
    if tensor.key == manifest.schema.label.name:
        return manifest.schema.label.dtype, (rows,)
    feature = next((f for f in manifest.schema.features if f.name == tensor.key), None)
    return None if feature is None else (feature.dtype, (rows, *feature.shape))


def _noised(manifest: Manifest, name: GraphName, tensor: GraphInput) -> tuple[str, Shape] | None:
    """A weight that the step moves."""
    weights = manifest.graphs[name].inputs
    return next(((t.dtype, t.shape) for t in weights if t.role == "shared" and t.key == tensor.key), None)


def _probed(manifest: Manifest) -> Collection[str]:
    """Names of the sums that the plan's probe graph leaves."""
    probe = manifest.graphs.get("probe")
    return {tensor.name.removeprefix(f"{NEXT}probe/") for tensor in probe.outputs} if probe else ()


def _as_stated(manifest: Manifest, name: GraphName, tensor: GraphInput) -> tuple[str, Shape] | None:
    return tensor.dtype, tensor.shape


_EXPECTED: Mapping[Source, Callable[[Manifest, GraphName, GraphInput], tuple[str, Shape] | None]] = {
    "model": lambda manifest, name, tensor: _in_layout(manifest.layout, tensor.key),
    "frozen": lambda manifest, name, tensor: _in_layout(
        manifest.frozen.layout if manifest.frozen else None, tensor.key
    ),
    "client_state": lambda manifest, name, tensor: _among(manifest.client_state, tensor.key),
    "probe": lambda manifest, name, tensor: ("float32", (1,)) if tensor.key in _probed(manifest) else None,
    "hyper": lambda manifest, name, tensor: ("float32", (1,)) if tensor.key in manifest.hyper else None,
    "active": lambda manifest, name, tensor: ("float32", (1,)),
    "random": lambda manifest, name, tensor: ("float32", tensor.shape),
    "noise": _noised,
    "batch": _batch,
    "state": _as_stated,
    "zeros": _as_stated,
    "counter": lambda manifest, name, tensor: ("float32", (1,)) if tensor.key in ("steps", "weight") else None,
}


def _fits_metrics(spec: SectionSpec, count: int) -> bool:
    return spec.is_extra and spec.length == count and spec.value_range == METRIC_RANGE


def _distinct(tensors: Collection[Tensor]) -> bool:
    return len({tensor.name for tensor in tensors}) == len(tensors)


def _refused(code: str, message: str, *, hint: str | None = None) -> errors.PlanRefused:
    return errors.PlanRefused(message, hint=hint, code=f"plan_{code}")
