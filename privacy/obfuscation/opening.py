"""The nodes at the beginning of an obfuscated graph, which turn the key into what the rest needs."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from coterie.privacy.obfuscation.key import KEY, Pad


class Prologue:
    """Nodes and constants to come before a graph's own, with names that it does not have yet."""

    def __init__(self, graph: GraphProto) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.captured = frozenset(_captured_names(graph))
        self._taken = {name for node in walk(graph) for name in (*node.input, *node.output)}
        self._taken |= {value.name for value in (*graph.input, *graph.output)}
        self._taken |= {tensor.name for tensor in graph.initializer}
        self._count = 0

    def name(self) -> str:
        """A name that nothing has."""
        while True:
            self._count += 1
            made = f"opened_{self._count}"
            if made not in self._taken:
                return made

    def constant(self, value: NDArray[np.generic]) -> str:
        """An initialiser with this value."""
        name = self.name()
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, kind: str, inputs: list[str], **settings: int) -> str:
        """A node of one output, whose name is returned."""
        name = self.name()
        node = helper.make_node(kind, inputs, [name])
        node.attribute.extend(helper.make_attribute(key, value) for key, value in settings.items())
        self.nodes.append(node)
        return name

    def unpadded(self, values: NDArray[np.int64], modulus: int, pad: Pad) -> str:
        """Numbers in 0 .. modulus - 1, int64[n], that the right key alone brings back; another key gives others of that
        range.
        """
        first, key = pad.take(len(values))
        stored = self.constant((values + key) % modulus)
        places = self.constant(np.arange(first, first + len(values)))
        share = self.node("Gather", [KEY, places], axis=0)
        return self._subtract_share(stored, share, modulus)

    def bit(self, value: int, pad: Pad) -> str:
        """A bool of no axes that is True where the right key brings back 1."""
        first, key = pad.take(1)
        stored = self.constant(np.array((value + int(key[0])) % 2, np.int64))
        share = self.node("Gather", [KEY, self.constant(np.array(first, np.int64))], axis=0)
        one = self.constant(np.ones((), np.int64))
        return self.node("Equal", [self._subtract_share(stored, share, 2), one])

    def _subtract_share(self, stored: str, share: str, modulus: int) -> str:
        # Mod of whole numbers has the sign of the divisor.
        return self.node("Mod", [self.node("Sub", [stored, share]), self.constant(np.array(modulus, np.int64))])


def walk(graph: GraphProto) -> Iterator[NodeProto]:
    """All nodes of a graph, those of graphs inside its nodes included."""
    for node in graph.node:
        yield node
        for inner in graphs_inside(node):
            yield from walk(inner)


def graphs_inside(node: NodeProto) -> Iterator[GraphProto]:
    """The bodies of a node with control flow."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _captured_names(graph: GraphProto) -> Iterator[str]:
    """Names that bodies of control flow read, which may be those of values outside."""
    for node in graph.node:
        for inner in graphs_inside(node):
            yield from (name for one in walk(inner) for name in one.input)
            yield from (value.name for value in inner.output)
