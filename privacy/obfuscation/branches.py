"""False branches: beside what a node computes, something else of the same shape, and the key decides which goes on."""

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, shape_inference

from coterie.privacy.obfuscation.key import Choices, Pad
from coterie.privacy.obfuscation.opening import Opening
from coterie.privacy.obfuscation.weights import Scrambled

# What may stand in for a value of any shape and kind of float: smooth and above 0, so that what follows (a root, a
# quotient) stays finite, and a wrong key is not told by NaN.
_STAND_INS = ("Sigmoid", "Softplus")
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def float_values(model: ModelProto) -> frozenset[str]:
    """Values that are known to be floats."""
    graph = shape_inference.infer_shapes(model).graph
    values = (*graph.value_info, *graph.output)
    return frozenset(value.name for value in values if value.type.tensor_type.elem_type in _FLOATS)


def branch(
    graph: GraphProto,
    floats: frozenset[str],
    ratio: float,
    scrambled: list[Scrambled],
    pad: Pad,
    choices: Choices,
    opening: Opening,
) -> None:
    """Give a share of the nodes whose result is among ``floats`` a false branch.

    The false branch of a node with a scrambled weight is the same node on the weight as it is stored, so that the two
    look alike; elsewhere it is a function of the true value. A node's result is Where(bit, one, other), and the bit
    comes from the key.
    """
    stored = {one.restored: one.stored for one in scrambled}
    fitting = [node for node in graph.node if len(node.output) == 1 and node.output[0] in floats]
    chosen = {id(node) for node in choices.some(fitting, ratio)}
    nodes: list[NodeProto] = []
    for node in graph.node:
        if id(node) not in chosen:
            nodes.append(node)
            continue
        asked, true, false = node.output[0], opening.name(), opening.name()
        real = _copy(node, true)
        if any(name in stored for name in node.input):
            other = _copy(node, false)
            for place, name in enumerate(node.input):
                other.input[place] = stored.get(name, name)
        else:
            other = helper.make_node(_STAND_INS[choices.below(len(_STAND_INS))], [true], [false])
        first = choices.below(2)
        pair = (true, false) if first else (false, true)
        nodes += [real, other, helper.make_node("Where", [opening.bit(first, pad), *pair], [asked])]
    del graph.node[:]
    graph.node.extend(nodes)


def _copy(node: NodeProto, output: str) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(node)
    made.output[0] = output
    return made
