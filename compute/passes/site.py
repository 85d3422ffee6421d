"""One node of a graph that is being rewritten with arrays, as a rule sees it."""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.compute.array import Array
from coterie.compute.ir import NDArray, Node, Value


@dataclass(frozen=True, slots=True)
class Site:
    """A node, the arrays that its graph's values have become, and the makers of those values."""

    node: Node
    environment: Mapping[Value, Array]
    producers: Mapping[Value, Node]

    @property
    def inputs(self) -> tuple[Array, ...]:
        """The node's operands."""
        return tuple(self.environment[value] for value in self.node.inputs)

    def producer(self, index: int, *primitives: str) -> "Site | None":
        """The site of the node that makes an operand, if it is one of these primitives."""
        node = self.producers.get(self.node.inputs[index])
        if node is None or node.primitive not in primitives:
            return None
        return Site(node, self.environment, self.producers)

    def constant(self, index: int) -> NDArray | None:
        """The numbers of an operand, if it is a constant."""
        found = self.producer(index, "constant")
        return None if found is None else found.node.attributes["value"]
