"""Weights to the right of activations, as vectors and matrices of the file: the form that integer kernels take.

coterie's own graphs put the weight of a linear layer on the left where the batch is small, and reshape its bias; a
kernel for integers knows a scale for each output only of a weight on the right.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from coterie.compute.ir import NDArray
from coterie.compute.quant.reading import attribute, fresh, names_in
from coterie.errors import GraphRefused


def in_normal_form(proto: ModelProto) -> ModelProto:
    """The same function, with weights on the right. The graph that is given stays as it is; names stay where tensors
    do, and new ones depend on nothing but the graph. Raises GraphRefused for weights that are moved in a way that is
    not possible.
    """
    after = ModelProto()
    after.CopyFrom(proto)
    del after.graph.value_info[:]  # notes on shapes, of which some will not hold any more
    _fold_moved_weights(after)
    _part_sums(after)
    _turn_products(after)
    return after


def _fold_moved_weights(proto: ModelProto) -> None:
    """What is moved, cut, added or masked of what stands in the file is computed here. The result takes the weight's
    own name where nothing else reads the weight, so that it can still be found by it.
    """
    graph = proto.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    outputs = {value.name for value in graph.output}
    uses = _uses(proto)
    kept: list[Any] = []
    renamed: dict[str, str] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = renamed.get(name, name)
        move = _MOVES.get(node.op_type)
        made = node.output[0] if node.output else ""
        fixed = all(name in constants or not name for name in node.input)
        if move is None or made in outputs or not fixed:
            kept.append(node)
            continue
        source = node.input[0]
        try:
            value = move(node, [numpy_helper.to_array(constants[name]) for name in node.input if name])
        except (ValueError, TypeError, IndexError, KeyError) as error:
            raise GraphRefused(
                f"The graph's {node.op_type} ({node.name or made}) cannot be computed: {error}"
            ) from error
        own = source if uses.get(source, 0) == 1 else made
        renamed[made] = own
        constants[own] = numpy_helper.from_array(np.ascontiguousarray(value), own)
        uses[own] = uses.get(made, 0)
    del graph.node[:]
    graph.node.extend(kept)
    drop_unread(proto, list(constants.values()))


def _part_sums(proto: ModelProto) -> None:
    """Gemm(x, W, c) → Add(Gemm(x, W), c), where c is computed: integer kernels take a bias of the file alone."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    taken = names_in(proto)
    nodes: list[Any] = []
    for node in proto.graph.node:
        nodes.append(node)
        third = node.input[2] if node.op_type == "Gemm" and len(node.input) > 2 else ""
        if third and third not in constants and attribute(node, "beta", 1.0) == 1.0:
            output, product = node.output[0], fresh(proto, f"{node.output[0]}/product", taken)
            del node.input[2:]
            node.output[0] = product
            nodes.append(helper.make_node("Add", [product, third], [output]))
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def _turn_products(proto: ModelProto) -> None:
    """Gemm(W, x, b) → Transpose(Gemm(Transpose(x), W, b, transB)), for a weight W of the file and computed x."""
    graph = proto.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    taken = names_in(proto)
    nodes: list[Any] = []
    for node in graph.node:
        turned = _turned(proto, node, constants, taken) if node.op_type in ("Gemm", "MatMul") else None
        nodes.extend([node] if turned is None else turned)
    del graph.node[:]
    graph.node.extend(nodes)
    drop_unread(proto, list(constants.values()))


def _turned(proto: ModelProto, node: Any, constants: dict[str, Any], taken: set[str]) -> list[Any] | None:
    weight, x = node.input[0], node.input[1]
    if weight not in constants or x in constants or len(constants[weight].dims) != 2:
        return None
    if node.op_type == "MatMul":
        return None  # the other operand may have more than two axes, and nothing here tells
    rows, columns = constants[weight].dims
    if attribute(node, "transA", 0):
        rows, columns = columns, rows
    bias = node.input[2] if len(node.input) > 2 else ""
    if bias:
        shape = tuple(constants[bias].dims) if bias in constants else ()
        if shape != (rows, 1):
            return None
        vector = np.ascontiguousarray(numpy_helper.to_array(constants[bias]).reshape(rows))
        # Steps of an unrolled loop share their bias, and each finds the one that the first of them has made.
        bias = f"{bias}/vector"
        constants[bias] = numpy_helper.from_array(vector, bias)
        taken.add(bias)
    across, product = fresh(proto, f"{node.output[0]}/turned", taken), fresh(proto, f"{node.output[0]}/product", taken)
    operands = [x if attribute(node, "transB", 0) else across, weight, *([bias] if bias else [])]
    made = [
        helper.make_node("Transpose", [x], [across], name=across, perm=[1, 0]),
        helper.make_node(
            "Gemm",
            operands,
            [product],
            name=product,
            transB=0 if attribute(node, "transA", 0) else 1,
            alpha=attribute(node, "alpha", 1.0),
            beta=attribute(node, "beta", 1.0),
        ),
        helper.make_node("Transpose", [product], [node.output[0]], name=node.name, perm=[1, 0]),
    ]
    return made[1:] if attribute(node, "transB", 0) else made


def drop_unread(proto: ModelProto, initialisers: list[Any]) -> None:
    """Keep those initialisers that something reads."""
    read = {name for node in proto.graph.node for name in node.input}
    read |= {value.name for value in proto.graph.output}
    kept = [tensor for tensor in initialisers if tensor.name in read]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)


def _uses(proto: ModelProto) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in [name for node in proto.graph.node for name in node.input] + [out.name for out in proto.graph.output]:
        found[name] = found.get(name, 0) + 1
    return found


def _reshape(node: Any, operands: list[NDArray]) -> NDArray:
    data, shape = operands[0], [int(size) for size in operands[1]]
    if not attribute(node, "allowzero", 0):
        shape = [data.shape[place] if size == 0 else size for place, size in enumerate(shape)]
    return data.reshape(shape)


def _transpose(node: Any, operands: list[NDArray]) -> NDArray:
    return operands[0].transpose(attribute(node, "perm", list(range(operands[0].ndim))[::-1]))


def _identity(node: Any, operands: list[NDArray]) -> NDArray:
    return operands[0]


def _product(node: Any, operands: list[NDArray]) -> NDArray:
    return operands[0] * operands[1]


def _sum(node: Any, operands: list[NDArray]) -> NDArray:
    return operands[0] + operands[1]


def _slice(node: Any, operands: list[NDArray]) -> NDArray:
    data, starts, ends, *rest = operands
    axes = rest[0] if rest else np.arange(len(starts))
    steps = rest[1] if len(rest) > 1 else np.ones(len(starts), np.int64)
    cut = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # An end below the first element is how a slice that runs backwards says "to the beginning".
        last = None if step < 0 and end < -data.shape[axis] else int(end)
        cut[axis] = slice(int(start), last, int(step))
    return data[tuple(cut)]


_MOVES: Mapping[str, Callable[[Any, list[NDArray]], NDArray]] = MappingProxyType(
    {"Reshape": _reshape, "Transpose": _transpose, "Identity": _identity, "Slice": _slice, "Mul": _product, "Add": _sum}
)
