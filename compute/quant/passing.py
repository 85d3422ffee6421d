"""How far up levels may be moved: through operators that pass numbers on or keep their order.

Quantising is monotone and done twice is done once. So levels before MaxPool, ReLU or a reshaping give bit for bit what
levels after it give, and the operator that made the numbers can hand out levels at once: an integer kernel then needs
no way back to floats in between.
"""

from collections.abc import Collection, Mapping
from typing import Any

from onnx import ModelProto

PASSING = frozenset({"MaxPool", "Relu", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity"})


def above(proto: ModelProto, tensor: str, quantised: Collection[int]) -> tuple[int, ...]:
    """Indices of the passing nodes between a quantised operator and ``tensor``, the nearest to the tensor first; empty
    where no quantised operator makes it, or something else reads a tensor on the way. quantised: indices of nodes.
    """
    graph = proto.graph
    producers: Mapping[str, int] = {name: index for index, node in enumerate(graph.node) for name in node.output}
    readers = _readers(proto)
    found: list[int] = []
    name = tensor
    while name in producers:
        index = producers[name]
        if index in quantised:
            return tuple(found)
        node: Any = graph.node[index]
        if node.op_type not in PASSING or len(node.output) > 1:
            return ()
        name = node.input[0]
        if readers.get(name, 0) != 1:
            return ()
        found.append(index)
    return ()


def _readers(proto: ModelProto) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in proto.graph.node:
        for name in node.input:
            found[name] = found.get(name, 0) + 1
    for value in proto.graph.output:
        found[value.name] = found.get(value.name, 0) + 2  # never only for us
    return found


def reaches(proto: ModelProto, node: int, wanted: frozenset[str]) -> bool:
    """Whether what a node makes comes to one of these tensors through passing nodes alone."""
    readers: dict[str, list[Any]] = {}
    for each in proto.graph.node:
        for name in each.input:
            readers.setdefault(name, []).append(each)
    waiting = list(proto.graph.node[node].output)
    while waiting:
        name = waiting.pop()
        if name in wanted:
            return True
        waiting += [out for each in readers.get(name, ()) if each.op_type in PASSING for out in each.output]
    return False
