"""What an exported file has of the model's own file: the names of the weights, and the metadata."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

from onnx import GraphProto, ModelProto, NodeProto, helper

from coterie.compute.ir import Graph, NDArray

_PRODUCTS = {"conv": "Conv", "conv_input_gradient": "ConvTranspose", "matmul": "Gemm", "gemm": "Gemm"}
_OPERATORS = {"Conv": "Conv", "ConvTranspose": "ConvTranspose", "Gemm": "Gemm", "MatMul": "Gemm"}


def name_weights(data: bytes, graph: Graph, weights: Mapping[str, NDArray]) -> bytes:
    """The file with the weights of its convolutions and matrix products named as before: ``graph`` is the model before
    its passes, whose weights these are. Where products were added, joined or dropped nothing is renamed, and no tensor
    takes the name of another.
    """
    before = _named_products(graph, weights)
    model = ModelProto.FromString(data)
    after = _products(model.graph)
    if [kind for kind, _, _ in before] != [kind for kind, _, _ in after]:
        return data
    taken = {value.name for value in (*model.graph.input, *model.graph.initializer)}
    for node in _with_inner(model.graph.node):
        taken.update(node.output)
        taken.update(value.name for attribute in node.attribute for value in attribute.g.input)
    renamed: dict[str, str] = {}
    for (_, size, name), (_, held, initialiser) in zip(before, after, strict=True):
        if name and size == held and name not in taken and initialiser not in renamed:
            renamed[initialiser] = name
            taken.add(name)
    for tensor in model.graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    for node in _with_inner(model.graph.node):
        for index, operand in enumerate(node.input):
            node.input[index] = renamed.get(operand, operand)
    return model.SerializeToString(deterministic=True)


def described(data: bytes, metadata: Mapping[str, str]) -> bytes:
    """The file with these texts as its metadata, such as the names of classes."""
    if not metadata:
        return data
    model = ModelProto.FromString(data)
    helper.set_model_props(model, dict(metadata))
    return model.SerializeToString(deterministic=True)


def _with_inner(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, and those of the graphs that they hold, which see outer names."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _with_inner(attribute.g.node)


def _named_products(graph: Graph, weights: Mapping[str, NDArray]) -> Sequence[tuple[str, int, str]]:
    """Every product with constant weights, in order: its kind, their number and their name; "" for none."""
    known: dict[tuple[str, bytes], str] = {}
    for name, array in weights.items():
        known.setdefault((array.dtype.name, array.tobytes()), name)
        if array.ndim == 2:
            known.setdefault((array.dtype.name, array.T.tobytes()), name)
    producers = graph.producers()
    found: list[tuple[str, int, str]] = []
    for node in graph.nodes:
        for value in node.inputs[:2] if node.primitive in _PRODUCTS else ():
            made = producers.get(value)
            while made is not None and made.primitive == "transpose":
                made = producers.get(made.inputs[0])
            if made is not None and made.primitive == "constant":
                held: NDArray = made.attributes["value"]
                name = known.get((held.dtype.name, held.tobytes()), "")
                found.append((_PRODUCTS[node.primitive], held.size, name))
    return found


def _products(graph: GraphProto) -> Sequence[tuple[str, int, str]]:
    """Every product with constant weights, in order: its kind, their number and their initialiser."""
    held = {tensor.name: prod(tensor.dims) for tensor in graph.initializer}
    return [
        (_OPERATORS[node.op_type], held[name], name)
        for node in graph.node
        if node.op_type in _OPERATORS
        for name in node.input[:2]
        if name in held
    ]
