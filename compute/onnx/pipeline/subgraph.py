"""Some nodes of a graph as a graph of their own."""

from collections.abc import Collection, Mapping
from typing import Any

from onnx import helper, numpy_helper

from coterie.compute.onnx.spread.reading import StepGraph


def subgraph(
    graph: StepGraph, nodes: Collection[int], outputs: Collection[str], added: Mapping[str, str] | None = None
) -> tuple[bytes, tuple[str, ...]]:
    """The nodes as a file, and the inputs that it reads.

    nodes: by index. outputs: of them. added: output → the name of an input that is added to it; the sum then is the
    output, and has the name ``summed(output)``.
    """
    kept = [graph.nodes[index] for index in sorted(nodes)]
    made = {name for node in kept for name in node.outputs}
    read = dict.fromkeys(name for node in kept for name in node.inputs if name and name not in made)
    constants = [numpy_helper.from_array(graph.constants[name], name) for name in read if name in graph.constants]
    inputs = [name for name in read if name not in graph.constants]
    values = [_value(graph, name, name) for name in inputs]
    protos, results = [node.proto for node in kept], list[Any]()
    for name in outputs:
        before = (added or {}).get(name)
        if before is None:
            results.append(_value(graph, name, name))
            continue
        protos.append(helper.make_node("Add", [before, name], [summed(name)]))
        values.append(_value(graph, name, before))
        results.append(_value(graph, name, summed(name)))
    inputs += list((added or {}).values())
    made_graph = helper.make_graph(protos, "piece", values, results, constants)
    model = helper.make_model(
        made_graph, opset_imports=list(graph.model.opset_import), ir_version=graph.model.ir_version
    )
    return model.SerializeToString(deterministic=True), tuple(inputs)


def summed(name: str) -> str:
    """The name of an output with what is added to it."""
    return f"{name}/with"


def _value(graph: StepGraph, tensor: str, name: str) -> Any:
    return helper.make_tensor_value_info(name, graph.types[tensor], graph.shapes[tensor])
