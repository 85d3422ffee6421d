"""Names and operators that tell nothing."""

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, helper

from coterie.privacy.obfuscation.key import Choices
from coterie.privacy.obfuscation.opening import graphs_inside

DOMAIN = "o"


def rename_values(graph: GraphProto, choices: Choices) -> None:
    """Give every value but the graph's own inputs and outputs a number for a name, in no order, and nodes none."""
    kept = {value.name for value in (*graph.input, *graph.output)}
    found = sorted(_names(graph) - kept)
    order = choices.permutation(len(found))
    named = {name: f"v{number}" for name, number in zip(found, order, strict=True)}
    taken = {value for value in kept if value in named.values()}
    if taken:
        named = {name: f"w{number}" for name, number in zip(found, order, strict=True)}
    _rename(graph, named)


def _names(graph: GraphProto) -> set[str]:
    found = {tensor.name for tensor in graph.initializer} | {value.name for value in (*graph.input, *graph.output)}
    for node in graph.node:
        found |= {name for name in (*node.input, *node.output) if name}
        for inner in graphs_inside(node):
            found |= _names(inner)
    return found


def _rename(graph: GraphProto, named: dict[str, str]) -> None:
    del graph.value_info[:]
    graph.doc_string = ""
    graph.name = "g"
    for tensor in graph.initializer:
        tensor.name = named.get(tensor.name, tensor.name)
        tensor.doc_string = ""
    for value in (*graph.input, *graph.output):
        value.name = named.get(value.name, value.name)
        value.doc_string = ""
    for node in graph.node:
        node.name = node.doc_string = ""
        node.input[:] = [named.get(name, name) for name in node.input]
        node.output[:] = [named.get(name, name) for name in node.output]
        del node.metadata_props[:]
        for inner in graphs_inside(node):
            _rename(inner, named)


def rename_operators(model: ModelProto, choices: Choices) -> None:
    """Make every node a call of a function of the model's own, numbered in no order: a reader of the graph finds "f7"
    where "Conv" was. A runtime puts the functions' bodies back before it runs them.
    """
    bodies: dict[bytes, list[NodeProto]] = {}
    for node in model.graph.node:
        if all(node.input) and not any(True for _ in graphs_inside(node)):
            bodies.setdefault(_signature(node), []).append(node)
    order = choices.permutation(len(bodies))
    opset = [one for one in model.opset_import if one.domain != DOMAIN]
    for number, calls in zip(order, bodies.values(), strict=True):
        name = f"f{number}"
        model.functions.append(_function(name, calls[0], opset))
        for call in calls:
            call.op_type, call.domain = name, DOMAIN
            del call.attribute[:]
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def _signature(node: NodeProto) -> bytes:
    """The same for nodes that one function can stand for."""
    bare = NodeProto()
    bare.CopyFrom(node)
    bare.name = ""
    bare.input[:] = [str(place) for place in range(len(node.input))]
    bare.output[:] = [f"o{place}" for place in range(len(node.output))]
    return bare.SerializeToString(deterministic=True)


def _function(name: str, call: NodeProto, opset: list[OperatorSetIdProto]) -> FunctionProto:
    inputs = [f"a{place}" for place in range(len(call.input))]
    outputs = [f"b{place}" for place in range(len(call.output))]
    body = NodeProto()
    body.CopyFrom(call)
    body.name = ""
    body.input[:] = inputs
    body.output[:] = outputs
    return helper.make_function(DOMAIN, name, inputs, outputs, [body], opset)
