"""Whether what a node says of itself fits its operands.

Shape inference lets some of it through: axes that do not exist, groups that divide nothing, indices that do not match
their table. A runtime finds that out in the middle of a run, or does not, and stops the whole process: the laws of
operators that are written here are those which only a run would test.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

LARGEST = 2**31 - 1
"""Of any integer in an attribute: runtimes keep many of them in 32 bits."""

_DEEPEST = 8  # choices, one behind the other, that are looked through


_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16})


@dataclass(frozen=True, slots=True)
class Application:
    """A node of a graph. shapes: of its operands; () for one that is left out."""

    operator: str
    inputs: Sequence[str]
    attributes: Mapping[str, Any]
    shapes: Sequence[tuple[int, ...]]
    tensors: "Tensors"


class Tensors:
    """What is known of the tensors of a graph by name. known: types of inputs and of all that nodes make."""

    def __init__(self, graph: GraphProto, known: Mapping[str, ValueInfoProto]) -> None:
        self._known = known
        self._initialisers = {tensor.name: tensor for tensor in graph.initializer}
        self._held: dict[tuple[str, int], bool] = {}
        self._makers = {name: node for node in graph.node for name in node.output}

    def application(self, node: NodeProto) -> Application:
        """A node with what is known of its operands, all of which are."""
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        return Application(node.op_type, tuple(node.input), attributes, self.shapes(node), self)

    def shapes(self, node: NodeProto) -> list[tuple[int, ...]]:
        """The shapes of a node's operands; () for one that is left out."""
        return [self._shape(name) if name else () for name in node.input]

    def _shape(self, name: str) -> tuple[int, ...]:
        tensor = self._initialisers.get(name)
        if tensor is not None:
            return tuple(tensor.dims)
        return tuple(int(dimension.dim_value) for dimension in self._known[name].type.tensor_type.shape.dim)

    def element(self, name: str) -> int:
        """The element type of a tensor, as a code of ONNX."""
        tensor = self._initialisers.get(name)
        return self._known[name].type.tensor_type.elem_type if tensor is None else tensor.data_type

    def holds(self, name: str, number: int) -> bool | None:
        """Whether an initialiser has a number among its elements; None for any other tensor."""
        if name not in self._initialisers:
            return None
        if (name, number) not in self._held:  # a hostile file may ask for the same numbers from every node
            array = numpy_helper.to_array(self._initialisers[name])
            self._held[name, number] = bool((np.asarray(array) == number).any())
        return self._held[name, number]

    def number(self, name: str) -> int | None:
        """The element of an initialiser that has one; None for any other tensor."""
        tensor = self._initialisers.get(name)
        if tensor is None or prod(tensor.dims) != 1:
            return None
        return int(np.asarray(numpy_helper.to_array(tensor)).reshape(-1)[0])

    def made_by(self, name: str, operator: str) -> Sequence[str]:
        """The operands of the node that makes a tensor; none when another operator, or no node, makes it."""
        node = self._makers.get(name)
        return tuple(node.input) if node is not None and node.op_type == operator else ()


def mistake(node: Application) -> str:
    """What is wrong with a node, in words; "" when nothing is."""
    for name, value in node.attributes.items():
        numbers: list[Any] = list(value) if isinstance(value, Sequence) else [value]  # pyright: ignore[reportUnknownArgumentType]
        if any(isinstance(n, int) and abs(n) > LARGEST for n in numbers):
            return f"{name} is beyond {LARGEST}"
    return next((found for rule in _RULES.get(node.operator, ()) if (found := rule(node))), "")


def work_space(node: Application) -> int:
    """Elements that a runtime sets aside to compute a node, beside operands and result: a transposed convolution
    unrolls its windows over the whole image.
    """
    if node.operator != "ConvTranspose":
        return 0
    image, kernel = node.shapes[:2]
    return prod(kernel[1:]) * prod(image[2:])


def _axis(node: Application) -> str:
    rank = len(node.shapes[0])
    axis = node.attributes.get("axis")
    return f"axis {axis} does not exist in {rank} axes" if axis is not None and not -rank <= axis < rank else ""


def _permutation(node: Application) -> str:
    rank = len(node.shapes[0])
    permutation = list(node.attributes.get("perm", range(rank)))
    return "" if sorted(permutation) == list(range(rank)) else f"perm {permutation} is no order of {rank} axes"


def _running_axis(node: Application) -> str:
    rank, axis = len(node.shapes[0]), node.tensors.number(node.inputs[1])
    return "" if axis is not None and -rank <= axis < rank else f"its axis is not one of {rank} axes"


def _places(node: Application) -> str:
    """Indices of elements stand in a tensor that fits into the table."""
    table, indices = node.shapes[:2]
    axis = node.attributes.get("axis", 0) % max(len(table), 1)
    if len(table) != len(indices) or any(
        m > n for i, (n, m) in enumerate(zip(table, indices, strict=True)) if i != axis
    ):
        return f"indices of shape {list(indices)} do not fit into {list(table)}"
    if len(node.shapes) > 2 and node.shapes[2] != indices:
        return f"updates of shape {list(node.shapes[2])} do not fit indices of shape {list(indices)}"
    return ""


def _groups(node: Application) -> str:
    image, kernel = node.shapes[:2]
    if not 3 <= len(image) <= 5 or len(kernel) != len(image):
        return f"a window of shape {list(kernel)} does not fit an image of shape {list(image)}"
    if tuple(node.attributes.get("kernel_shape", kernel[2:])) != kernel[2:]:
        return f"kernel_shape {list(node.attributes['kernel_shape'])} is not that of a window of shape {list(kernel)}"
    groups, channels = node.attributes.get("group", 1), image[1]
    whole, parts = (kernel[0], kernel[1]) if node.operator == "Conv" else (channels, kernel[1])
    taken = parts * groups if node.operator == "Conv" else kernel[0]
    if groups < 1 or channels % groups or whole % groups or taken != channels:
        return f"group {groups} does not divide {channels} channels for a window of shape {list(kernel)}"
    bias = node.shapes[2] if len(node.shapes) > 2 and node.inputs[2] else None
    made = kernel[0] if node.operator == "Conv" else kernel[1] * groups
    return "" if bias in (None, (made,)) else f"a bias of shape {list(bias or ())} does not fit {made} channels"


def _pool_padding(node: Application) -> str:
    kernel = list(node.attributes.get("kernel_shape", ()))
    pads = list(node.attributes.get("pads", [0] * 2 * len(kernel)))
    fits = len(pads) == 2 * len(kernel) and all(0 <= pad < size for pad, size in zip(pads, kernel * 2, strict=True))
    return "" if fits else f"pads {pads} reach beyond a window of {kernel}"


def _bounds(node: Application) -> str:
    wrong = [
        list(shape) for shape, name in zip(node.shapes[1:], node.inputs[1:], strict=True) if name and prod(shape) != 1
    ]
    return f"a bound of shape {wrong[0]} is not one number" if wrong else ""


def _divisor(node: Application) -> str:
    """Integers: a processor stops the program at x / 0, and at the lowest integer / -1."""
    element = node.tensors.element(node.inputs[0])
    if element in _FLOATS:
        return ""
    forbidden = [0] if element == TensorProto.UINT8 else [0, -1]
    found = [number for number in forbidden if not _never(node.tensors, node.inputs[1], number)]
    return f"its divisor may be {found[0]}, which stops the process" if found else ""


def _never(tensors: Tensors, name: str, number: int) -> bool:
    """Whether a tensor can be seen to hold a number nowhere: a constant, or Where(Equal(x, number), other, x)."""
    for _ in range(_DEEPEST):
        held = tensors.holds(name, number)
        if held is not None:
            return not held
        condition, chosen, otherwise = tensors.made_by(name, "Where") or ("", "", "")
        if tensors.holds(chosen, number) is not False:
            return False
        sides = tensors.made_by(condition, "Equal")
        if any(x == otherwise and tensors.number(y) == number for x, y in ((sides, sides[::-1]) if sides else ())):
            return True
        name = otherwise
    return False


_Rule = Callable[[Application], str]
_RULES: Mapping[str, tuple[_Rule, ...]] = {
    "AveragePool": (_pool_padding,),
    "Clip": (_bounds,),
    "Concat": (_axis,),
    "Conv": (_groups,),
    "ConvTranspose": (_groups,),
    "CumSum": (_running_axis,),
    "Div": (_divisor,),
    "Gather": (_axis,),
    "GatherElements": (_axis, _places),
    "MaxPool": (_pool_padding,),
    "ScatterElements": (_axis, _places),
    "Softmax": (_axis,),
    "TopK": (_axis,),
    "Transpose": (_permutation,),
}
