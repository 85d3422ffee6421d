"""Graphs inside of nodes, for the checker: what they read of the graph around them, and each as a model of its own."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

DEEPEST = 8
"""Graphs, one inside of the other."""

_SMALL = 64
"""Elements of a constant that a graph inside is shown as one: bounds and widths. Larger ones are inputs to it."""


def graphs_of(node: NodeProto) -> Mapping[str, GraphProto]:
    """The graphs that a node holds, by attribute."""
    return {each.name: each.g for each in node.attribute if each.type == AttributeProto.GRAPH and each.HasField("g")}


def all_nodes(graph: GraphProto, depth: int = 0) -> Iterator[tuple[NodeProto, int]]:
    """The nodes of a graph and of those inside, each with how deep it stands; none of a graph that is too deep."""
    for node in graph.node:
        yield node, depth
        for inner in graphs_of(node).values() if depth < DEEPEST else ():
            yield from all_nodes(inner, depth + 1)


def made(graph: GraphProto) -> Iterator[str]:
    """Names that a graph and those inside give to tensors."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from node.output
        for inner in graphs_of(node).values():
            yield from made(inner)


def captured(graph: GraphProto) -> dict[str, None]:
    """Names that a graph reads and does not make, in order."""
    own, found = {"", *made(graph)}, dict[str, None]()
    reads = (name for node, _ in all_nodes(graph) for name in node.input)
    for name in (*reads, *(value.name for value in graph.output)):
        if name not in own:
            found[name] = None
    return found


def as_model(
    graph: GraphProto,
    outer: ModelProto,
    known: Mapping[str, ValueInfoProto],
    constants: Mapping[str, TensorProto],
) -> ModelProto:
    """A graph inside of a node as a model, which takes what it reads of the graph around it as further inputs.

    known, constants: types of the tensors around it, and those that are initialisers.
    """
    model = ModelProto(ir_version=outer.ir_version)
    model.opset_import.extend(outer.opset_import)
    model.graph.CopyFrom(graph)
    if not model.graph.name:
        model.graph.name = "inner"
    for name in captured(graph):
        tensor = constants.get(name)
        if tensor is None:
            model.graph.input.append(known[name])
        elif prod(tensor.dims) <= _SMALL:
            model.graph.initializer.append(tensor)
        else:
            model.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    return model


def ill_formed(node: NodeProto) -> str:
    """What does not fit between a node and the graphs that it holds, in words; "" when everything does.

    Shape inference counts on this, and does not look.
    """
    for graph in graphs_of(node).values():
        if graph.initializer or graph.sparse_initializer or graph.quantization_annotation:
            return "a graph inside holds data of its own"
        wanted = len(node.input) if node.op_type == "Scan" else 0
        if len(graph.input) != wanted:
            return f"a graph inside has {len(graph.input)} inputs; it must have {wanted}"
        if len(graph.output) != len(node.output) or not node.output:
            return f"a graph inside has {len(graph.output)} outputs for {len(node.output)} of the node"
    if node.op_type != "Scan":
        return ""
    stacks, states = _stacks(node), len(node.input) - _stacks(node)
    if not 1 <= stacks <= len(node.input) or states > len(node.output) or not all(node.input):
        return f"num_scan_inputs {stacks} does not fit {len(node.input)} inputs and {len(node.output)} outputs"
    for name, count in (("scan_input_directions", stacks), ("scan_output_directions", len(node.output) - states)):
        directions = next((list(each.ints) for each in node.attribute if each.name == name), None)
        if directions is not None and (len(directions) != count or not set(directions) <= {0, 1}):
            return f"{name} {directions[:8]} must be {count} zeros and ones"
    return ""


def misfit(node: NodeProto, operands: Sequence[tuple[int, tuple[int, ...]]]) -> str:
    """What does not fit between the operands of a node and the inputs of its graphs, in words.

    operands: element type and shape of each.
    """
    if node.op_type == "If":
        _, shape = operands[0]
        return "" if prod(shape) == 1 else f"its condition has the shape {list(shape)}, not one element"
    graph, states = graphs_of(node)["body"], len(operands) - _stacks(node)
    wanted = [(kind, shape if at < states else shape[1:]) for at, (kind, shape) in enumerate(operands)]
    told = [
        (value.type.tensor_type.elem_type, tuple(int(d.dim_value) for d in value.type.tensor_type.shape.dim))
        for value in graph.input
    ]
    if any(not shape for _, shape in operands[states:]) or told != wanted:
        return "the inputs of its body are not its operands, or slices of them"
    lengths = {shape[0] for _, shape in operands[states:]}
    return "" if len(lengths) == 1 and min(lengths) >= 1 else f"its stacks have {sorted(lengths)[:8]} steps"


def steps(node: NodeProto, operands: Sequence[tuple[int, tuple[int, ...]]]) -> int:
    """How often the graphs inside run at most, for operands that fit."""
    return operands[-1][1][0] if node.op_type == "Scan" else 1


def _stacks(node: NodeProto) -> int:
    return next((int(each.i) for each in node.attribute if each.name == "num_scan_inputs"), 0)
