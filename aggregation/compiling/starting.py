"""What there is before a plan's first step and at an evaluation or export, and the optimizer's first state."""

from collections.abc import Mapping

from coterie.aggregation.compiling.calls import Arrays, Outputs, Requested
from coterie.aggregation.horizontal.algorithm import Begin, ClientPart, Deployment, Evaluation, Shapes
from coterie.compute.ir import Graph
from coterie.compute.optim.optimizer import Optimizer
from coterie.compute.passes import optimise
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.protocol.layout import Layout


def probed_names(client: ClientPart) -> tuple[str, ...]:
    """Names of the probe's sums."""
    return (*client.probe, "examples") if client.probe else ()


def begin_context(inputs: GraphInputs, client: ClientPart, shapes: Shapes, version: Arrays, hyper: Arrays) -> Begin:
    """What a method's ``begin`` and ``start`` may read."""
    return Begin(
        base=version,
        trained=tuple(shapes.trained),
        client_state=Requested(inputs, "client_state", client.client_state(shapes)),
        probe=Requested(inputs, "probe", dict.fromkeys(probed_names(client), (1,))),
        hyper=hyper,
    )


def evaluation_context(inputs: GraphInputs, client: ClientPart, shapes: Shapes, version: Arrays) -> Evaluation:
    """What a method's ``evaluated`` may read."""
    return Evaluation(
        version=version,
        probe=Requested(inputs, "probe", dict.fromkeys(probed_names(client), (1,))),
        client_state=Requested(inputs, "client_state", client.client_state(shapes)),
    )


def deployment_context(inputs: GraphInputs, client: ClientPart, shapes: Shapes, version: Arrays) -> Deployment:
    """What a method's ``deployed`` may read."""
    return Deployment(version=version, client_state=Requested(inputs, "client_state", client.client_state(shapes)))


def traced_state(optimizer: Optimizer, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """The graph of an optimizer's first state."""
    specs = {name: TensorSpec(shape) for name, shape in shapes.items()}
    return optimise(trace_named(lambda inputs: optimizer.init(dict(inputs)), specs))


def is_zero(graph: Graph, name: str) -> bool:
    """Whether an output is known to be zeros: a constant, or one spread over a shape."""
    node = graph.producers().get(graph.outputs[name])
    if node is not None and node.primitive == "broadcast_to":
        node = graph.producers().get(node.inputs[0])
    return node is not None and node.primitive == "constant" and not node.attributes["value"].any()


def constant_shapes(
    client: ClientPart, shapes: Shapes, layout: Layout, hyper: Mapping[str, float]
) -> Mapping[str, tuple[int, ...]]:
    """Shapes of what the method's ``begin`` returns."""

    def begin(inputs: GraphInputs) -> Outputs:
        version = Requested(inputs, "base", layout.shapes)
        numbers = Requested(inputs, "hyper", dict.fromkeys(hyper, (1,)))
        return dict(client.begin(begin_context(inputs, client, shapes, version, numbers)))

    graph = trace_named(begin, {})
    return {name: value.type.shape for name, value in graph.outputs.items()}
