"""False branches: beside what a node computes, something else of the same shape, and the key decides which goes on."""

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, shape_inference

from coterie.privacy.obfuscation.key import Choices, Pad
from coterie.privacy.obfuscation.opening import Prologue
from coterie.privacy.obfuscation.weights import Scrambled, decoy

# What may stand in for a value of any shape and kind of float: smooth and above 0, so that what follows (a root, a
# quotient) is seldom NaN, which would tell a wrong key.
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
    opening: Prologue,
) -> None:
    """Give a share of the nodes whose result is among ``floats`` a false branch.

    The false branch of a node with a scrambled weight is the same node on a decoy of that weight, so that only the key
    tells which is which; elsewhere it is a function of the true value, which who reads the graph with care can tell. A
    node's result is Where(bit, one, other), and the bit comes from the key.
    """
    hidden = {one.restored: one for one in scrambled}
    decoys: dict[str, str] = {}
    fitting = [node for node in graph.node if len(node.output) == 1 and node.output[0] in floats]
    chosen = {id(node) for node in choices.some(fitting, ratio)}
    nodes: list[NodeProto] = []
    for node in graph.node:
        if id(node) not in chosen:
            nodes.append(node)
            continue
        asked, true, false = node.output[0], opening.name(), opening.name()
        real = _copy(node, true)
        if weights := [name for name in node.input if name in hidden]:
            other = _copy(node, false)
            for name in weights:
                if name not in decoys:
                    decoys[name] = decoy(hidden[name], pad, choices, opening)
            other.input[:] = [decoys.get(name, name) for name in node.input]
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
