"""From a split network to the plan of a session: one part for each role, traced, differentiated and written as ONNX."""

from collections.abc import Mapping
from typing import cast

from coterie import errors
from coterie.aggregation.compiling.describe import described
from coterie.aggregation.compiling.graph_file import write_graph
from coterie.aggregation.plan.check_session import SessionPlan, check_session_plan
from coterie.aggregation.plan.session_manifest import RolePart, SessionManifest, SessionTraining
from coterie.aggregation.plan.shapes import SHAPES, PartShape
from coterie.aggregation.vertical.graphs import FeatureGraphs, LabelGraphs, RoleGraphs
from coterie.aggregation.vertical.split import MODEL, SplitNetwork
from coterie.compute.ir import Graph
from coterie.protocol.layout import Tensor


def compile_split(split: SplitNetwork) -> SessionPlan:
    """The plan of a split network, the part of the labels first.

    Guarantees: deterministic bytes; the plan passes `check_session_plan`. It holds no weights: each role draws its own.
    Raises errors.ExperimentError: ``model_mismatch`` (a model does not take its columns, gives no embedding, keeps
    statistics), ``loss_mismatch``, ``loss_shape``, ``metric_shape``, ``initial_unsupported``, ``not_portable``, …
    """
    if not isinstance(cast(object, split), SplitNetwork):
        raise errors.ArgumentTypeError(f"compile_split takes a SplitNetwork, not a {type(split).__name__}.")
    labels = split.labels
    others = [
        RoleGraphs(role=part.role, split=split, schema=part.schema, models={MODEL: part.model})
        for part in split.features
    ]
    built = {graphs.role: FeatureGraphs(own=graphs, labels=labels.role).build() for graphs in others}
    widths = {role: _width(graphs["embed"]) for role, graphs in built.items()}
    own = RoleGraphs(role=labels.role, split=split, schema=labels.schema, models=labels.models)
    files: dict[tuple[str, str], bytes] = {}
    parts = [_part(own, "split_labels", LabelGraphs(own=own, widths=widths).build(), files)]
    parts += [_part(graphs, "split_features", built[graphs.role], files) for graphs in others]
    manifest = SessionManifest(
        name=split.name,
        parts=tuple(parts),
        metrics=split.metric_names,
        hyper={name: float(value) for name, value in own.optimizer.hyper.items()},
        training=SessionTraining(batch_size=split.batch_size, epochs=split.epochs, seed=split.seed),
        cut=split.cut,
    )
    plan = SessionPlan(SessionManifest.from_bytes(manifest.data), files)
    try:
        check_session_plan(plan)
    except errors.PlanRefused as error:
        raise errors.ExperimentError(
            f"Split network {split.name!r} does not compile to a plan that its roles accept: {error.message}",
            code="plan_inconsistent",
        ) from error
    return plan


def _part(
    own: RoleGraphs, shape: PartShape, graphs: Mapping[str, Graph], files: dict[tuple[str, str], bytes]
) -> RolePart:
    """The part of a role; its files are added to ``files``."""
    rules = SHAPES[shape]
    written = {name: write_graph(f"{own.role} {name}", graph) for name, graph in graphs.items()}
    files.update({(own.role, name): data for name, data in written.items()})
    return RolePart(
        role=own.role,
        shape=shape,
        schema=own.schema,
        client_state=tuple(Tensor(name, shape) for name, shape in own.state.items()),
        stages=tuple(described(rule, graphs[rule.name], written[rule.name], zeroed=frozenset()) for rule in rules),
    )


def _width(graph: Graph) -> int:
    """Of the one embedding that a role's graph gives."""
    (value,) = graph.outputs.values()
    return value.type.shape[1]
