"""Weights in another order and with other signs: only the key puts them right, inside the graph."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from coterie.privacy.obfuscation.key import Choices, Pad
from coterie.privacy.obfuscation.opening import Prologue

# Operators, and the inputs at which they may take a weight that is not a constant, with any runtime.
_TAKES = {
    "Conv": (1,),
    "ConvTranspose": (1,),
    "Gather": (0,),
    "Gemm": (0, 1),
    "MatMul": (0, 1),
    "Reshape": (0,),
    "Transpose": (0,),
}
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
# Fewer rows have too few orders to be worth hiding.
_FEWEST = 2


@dataclass(frozen=True)
class Scrambled:
    """A weight in scrambled form.

    stored: the initialiser, which holds the scrambled weight.
    restored: the value with the weight itself.
    """

    stored: TensorProto
    restored: str


def scramble(graph: GraphProto, ratio: float, pad: Pad, choices: Choices, opening: Prologue) -> list[Scrambled]:
    """Scramble a share of the weights, and add the nodes that put them right before all others.

    The rows of a weight (its first axis) are put in another order and a part of them is negated. Order and signs stand
    in the graph plus the key's numbers, modulo their range: without the key every order is as likely as every other.
    Both are undone exactly, so the weights come back bit for bit.
    """
    stored = {tensor.name: tensor for tensor in graph.initializer}
    readers: dict[str, list[tuple[NodeProto, int]]] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, place))
    # What bodies of control flow read stays as it is, and so does a weight that a caller may replace.
    kept = opening.captured | {value.name for value in graph.input}
    fitting = [
        name
        for name, tensor in stored.items()
        if tensor.data_type in _FLOATS
        and len(tensor.dims) > 1
        and tensor.dims[0] >= _FEWEST
        and name not in kept
        and readers.get(name)
        and all(place in _TAKES.get(node.op_type, ()) for node, place in readers[name])
    ]
    # The one with the most rows has the most orders, so it is always among them.
    most = max(fitting, key=lambda name: stored[name].dims[0], default=None)
    chosen = {*choices.some(fitting, ratio), most}
    done: list[Scrambled] = []
    for name in (name for name in fitting if name in chosen):
        restored = _scramble_one(stored[name], pad, choices, opening)
        for node, place in readers[name]:
            node.input[place] = restored
        done.append(Scrambled(stored[name], restored))
    return done


def decoy(one: Scrambled, pad: Pad, choices: Choices, opening: Prologue) -> str:
    """A value made as the weight itself is, by the same operators from the same initialiser, in a wrong order and with
    wrong signs. Only the key tells the two apart.
    """
    rows = one.stored.dims[0]
    return _ordered(one.stored, choices.permutation(rows), _signs(rows, choices), pad, opening)


def _scramble_one(tensor: TensorProto, pad: Pad, choices: Choices, opening: Prologue) -> str:
    weight = numpy_helper.to_array(tensor)
    order, negated = choices.permutation(len(weight)), _signs(len(weight), choices)
    signs = (1 - 2 * negated).astype(weight.dtype).reshape((-1, *(1,) * (weight.ndim - 1)))
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray((weight * signs)[order]), tensor.name))
    # Row i of the weight is stored at place[i].
    return _ordered(tensor, np.argsort(order), negated, pad, opening)


def _signs(rows: int, choices: Choices) -> NDArray[np.int64]:
    """1 for a row that is negated, 0 for another one."""
    return np.array([choices.below(2) for _ in range(rows)], np.int64)


def _ordered(
    tensor: TensorProto, place: NDArray[np.int64], negated: NDArray[np.int64], pad: Pad, opening: Prologue
) -> str:
    """The rows of an initialiser by their places, some of them negated, as far as the key is right."""
    index = opening.unpadded(place, len(place), pad)
    flags = opening.unpadded(negated, 2, pad)
    gathered = opening.node("Gather", [tensor.name, index], axis=0)
    one = opening.constant(np.ones((), np.int64))
    two = opening.constant(np.full((), 2, np.int64))
    whole = opening.node("Sub", [one, opening.node("Mul", [flags, two])])
    factor = opening.node("Cast", [whole], to=tensor.data_type)
    shape = opening.constant(np.array((len(place), *(1,) * (len(tensor.dims) - 1)), np.int64))
    return opening.node("Mul", [gathered, opening.node("Reshape", [factor, shape])])
