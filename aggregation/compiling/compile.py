"""From experiment to plan: every stage that a client runs, traced, differentiated, optimised and written as ONNX.

Compiling the same experiment twice gives the same bytes, hence the same plan id; no path or line of the researcher's
machine gets into a plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.compiling import researcher
from coterie.aggregation.compiling.describe import described
from coterie.aggregation.compiling.graph_file import graph_bytes, write_graph
from coterie.aggregation.compiling.graphs import GraphBuilder
from coterie.aggregation.compiling.initial_tensors import initial_tensors
from coterie.aggregation.compiling.lengths import with_lengths, write_lengths
from coterie.aggregation.compiling.training import training_of
from coterie.aggregation.compiling.variants import with_variants, write_variants
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.fitting import check_terms
from coterie.aggregation.horizontal.algorithm import zeros
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.check import check_manifest
from coterie.aggregation.plan.manifest import DELTA, METRIC_RANGE, METRICS, Frozen, Manifest, NamedRule
from coterie.aggregation.plan.shapes import SHAPES
from coterie.aggregation.whole_metrics import check_prediction
from coterie.compute.compress.described import compression
from coterie.compute.ir import Graph
from coterie.compute.nn.foreign import require_logits
from coterie.compute.nn.module import Module
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.layout import Layout, Tensor
from coterie.protocol.sections import SectionSpec
from coterie.protocol.tensors import encode_tensors

Tensors = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class CompiledPlan:
    """An unsigned plan with the first model version and, where the model has frozen parameters, their tensors."""

    plan: Plan
    initial: Tensors
    frozen: Tensors

    @property
    def initial_bytes(self) -> bytes:
        """The first model version as a safetensors file; its SHA-256 is the version's id."""
        return encode_tensors(self.initial)

    @property
    def frozen_bytes(self) -> bytes | None:
        """The frozen blob, whose SHA-256 the manifest names; None when nothing is frozen."""
        return encode_tensors(self.frozen) if self.frozen else None


def compile_plan(experiment: Experiment) -> CompiledPlan:
    """The plan of an experiment, unsigned, and its first weights.

    Guarantees: deterministic bytes; the plan passes `check_plan` once it is signed.
    Raises errors.ExperimentError: ``model_mismatch`` (the model does not take the schema's features), ``loss_shape``,
    ``loss_dtype``, ``metric_shape``, ``initial_mismatch``, ``not_portable``, ``not_deterministic``,
    ``variant_unwritable``, ``variant_disagrees``, ``length_unwritable``, ``length_matters``, …
    """
    return _external(experiment) if isinstance(experiment.model, ExternalModel) else _compiled(experiment)


def _external(experiment: Experiment) -> CompiledPlan:
    if not isinstance(experiment.model, ExternalModel):
        raise errors.InternalError("Only an ExternalModel makes an external plan.")
    layout = Layout.of(experiment.model.parameters)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in layout.shapes.items()}
    check_start(experiment, layout)
    initial = initial_tensors(zeros if experiment.initial is None else experiment.initial, layout.shapes)
    manifest = _manifest(experiment, layout, sections=(SectionSpec.over(DELTA, layout),))
    _check(manifest)
    return CompiledPlan(Plan(manifest, {}), initial, {})


def check_start(experiment: Experiment, layout: Layout) -> None:
    """Raise ExperimentError (``initial_missing``) for layers of one's own that would all begin at zeros: what stands
    before another layer then gets no gradient, and the model never learns.
    """
    matrices = [name for name, shape in layout.shapes.items() if len(shape) > 1]
    if experiment.initial is None and len(matrices) > 1:
        named = ", ".join(repr(name) for name in matrices[:4])
        raise errors.ExperimentError(
            f"Experiment {experiment.name!r} has an ExternalModel with {len(matrices)} weight matrices ({named}"
            f"{', …' if len(matrices) > 4 else ''}) and no initial weights: starting from zeros, such layers never "
            "learn.",
            hint="Give the weights that your framework initialises: Experiment(initial={'layer.weight': array, "
            "...}); zeros too, if they are intended.",
            code="initial_missing",
        )


def _compiled(experiment: Experiment) -> CompiledPlan:
    builder = GraphBuilder.of(experiment)
    check_terms(replace(experiment.terms, statistics=tuple(builder.buffers)))
    model, loss = builder.calls.model, builder.batch.loss
    researcher.ask("The loss", require_logits, model, loss, takes="the model's output", code="loss_mismatch")
    layout, client = builder.layout, experiment.algorithm.client
    drawn = partial(_initial_values, experiment, builder)
    # Drawing the weights of a large model takes seconds.
    frozen = {name: value for name, value in drawn(0).items() if name in builder.frozen} if builder.frozen else {}
    version = {**zeros(layout.shapes), **client.initial(drawn)}
    initial = initial_tensors({name: version[name] for name in layout.names}, layout.shapes)
    graphs = builder.build()
    _require_recomputation(experiment, graphs["train"])
    files = {name: write_graph(name, graph) for name, graph in graphs.items()}
    _require_the_same_again(builder, files)
    files |= write_variants(experiment.variants, graphs, files) | write_lengths(builder, files)
    manifest = replace(
        _manifest(experiment, layout, sections=builder.sections),
        frozen=_frozen(frozen),
        client_state=_tensors(client.client_state(builder.shapes)),
        hyper=builder.hyper,
        stages=tuple(
            with_lengths(
                with_variants(
                    described(rule, graphs[rule.name], files[rule.name], zeroed=builder.zeroed),
                    experiment.variants,
                    files,
                ),
                experiment.lengths,
                files,
            )
            for rule in SHAPES["horizontal"]
            if rule.name in graphs
        ),
    )
    _check(manifest)
    _require_predictions(experiment, manifest)
    plan = Plan(manifest, files)
    if len(manifest.stage("train").files) > 1:
        # Only this needs ONNX Runtime, which takes long to load.
        from coterie.aggregation.compiling.agreement import check_variants
        from coterie.aggregation.compiling.length_check import check_lengths

        check_variants(plan, initial, frozen)
        check_lengths(plan, initial, frozen)
    return CompiledPlan(plan, initial, frozen)


def _require_recomputation(experiment: Experiment, train: Graph) -> None:
    """Where it is asked for, some part of the model must be computed again; it then stands behind a barrier."""
    if experiment.recompute and all(node.primitive != "barrier" for node in train.nodes):
        raise errors.ExperimentError(
            f"Experiment {experiment.name!r}: recompute finds no part in the model {type(experiment.model).__name__} "
            "that could be computed again.",
            hint="Make it an nn.Sequential of several layers with weights, or call its parts by nn.recomputed. A file "
            "that was imported has no parts: leave recompute out.",
            code="model_mismatch",
        )


def _require_predictions(experiment: Experiment, manifest: Manifest) -> None:
    shape = manifest.stage("infer").to_destination("prediction")[0].shape
    check_terms(replace(experiment.terms, several=manifest.chooses, personal=manifest.personal("evaluate")))
    try:
        check_prediction(experiment.evaluation_metrics, shape, manifest.schema.label.shape)
    except errors.InputError as error:
        raise errors.ExperimentError(
            f"Experiment {experiment.name!r}: {error.message}", hint=error.hint, code="metric_mismatch"
        ) from error


def _initial_values(experiment: Experiment, builder: GraphBuilder, number: int) -> Tensors:
    """First values of every parameter of the model, frozen ones included, for the number-th seed."""
    seed, first = experiment.seed + number, experiment.initial
    if first is None or number:
        init = builder.calls.model.init
        first = researcher.ask("The model's init", init, seed, takes=f"seed {seed}", code="model_mismatch")
    return initial_tensors(first, {name: spec.shape for name, spec in builder.specs.items()})


def _require_the_same_again(builder: GraphBuilder, files: Mapping[str, bytes]) -> None:
    """Trace once more: numbers that a model draws or counts by itself would be constants of the plan, alike at every
    step and on every device, without a word.
    """
    for name, graph in builder.build().items():
        if graph_bytes(name, graph) != files[name]:
            raise errors.ExperimentError(
                f"The {name} graph of experiment {builder.experiment.name!r} comes out differently when traced again, "
                "so the model, the loss or a metric uses something that changes from call to call.",
                hint="Do not use np.random, the clock or a counter: they would stay as they were at this "
                "moment. For dropout use nn.Dropout, whose masks are drawn anew at every step.",
                code="not_deterministic",
            )


def _check(manifest: Manifest) -> None:
    """Read the manifest back as a device does, so that nobody signs a plan that every device refuses."""
    try:
        check_manifest(Manifest.from_bytes(manifest.data))
    except errors.InputError as error:
        raise errors.ExperimentError(
            f"Experiment {manifest.name!r} does not compile to a plan that devices accept: {error.message}",
            hint="Change what the message names; for a method of your own, check its sections and states.",
            code="plan_inconsistent",
        ) from error


def _manifest(experiment: Experiment, layout: Layout, *, sections: tuple[SectionSpec, ...]) -> Manifest:
    """The manifest of an experiment without stages."""
    names = experiment.metric_names
    return Manifest(
        name=experiment.name,
        shape="external" if isinstance(experiment.model, ExternalModel) else "horizontal",
        schema=experiment.schema,
        layout=layout,
        sections=(*sections, SectionSpec.extra(METRICS, len(names), value_range=METRIC_RANGE)),
        codecs=experiment.codecs,
        broadcast=experiment.broadcast,
        metrics=names,
        hyper={},
        training=training_of(experiment),
        algorithm=NamedRule(experiment.algorithm.name, _floats(experiment.algorithm.parameters)),
        optimizer=experiment.terms.optimizer or NamedRule("external", {}),
        stages=(),
        compression=_compression(experiment.model),
    )


def _compression(model: object) -> tuple[NamedRule, ...] | None:
    found = compression(model) if isinstance(model, Module) else ()
    return tuple(NamedRule(name, numbers) for name, numbers in found) or None


def _frozen(tensors: Tensors) -> Frozen | None:
    if not tensors:
        return None
    layout = Layout.of({name: array.shape for name, array in tensors.items()})
    return Frozen(layout, sha256_hex(encode_tensors(tensors)))


def _tensors(shapes: Mapping[str, tuple[int, ...]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, shape) for name, shape in shapes.items())


def _floats(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}
