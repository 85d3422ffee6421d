"""A training step in two graphs, for accelerators that only run models with constant weights.

The trunk is what a step computes from frozen tensors and the batch alone: the frozen front of a network. It becomes a
graph of its own with the frozen tensors written into it as constants, which an inference accelerator compiles and which
a quantiser can turn into integers. The head is the rest: what the trunk gives is its input, the trained tensors its
state. Together they compute what the step computed.

No gradient passes through a frozen front (differentiation does not build it), so nothing of the trunk is needed again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import onnx
from onnx import helper, numpy_helper

from coterie.compute.ir import NDArray
from coterie.errors import GraphRefused, InputError


@dataclass(frozen=True, kw_only=True)
class Hybrid:
    """Two serialised graphs. cut: the tensors that the trunk makes and the head takes, by their names in both."""

    trunk: bytes
    head: bytes
    cut: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Origin:
    """Which kinds of inputs a value is made of; none of them for a constant."""

    frozen: bool = False
    batch: bool = False
    other: bool = False

    @property
    def trunk(self) -> bool:
        return self.frozen and self.batch and not self.other

    @staticmethod
    def joined(parts: Iterable["_Origin"]) -> "_Origin":
        held = list(parts)
        return _Origin(any(o.frozen for o in held), any(o.batch for o in held), any(o.other for o in held))


def split(data: bytes, *, frozen: Mapping[str, NDArray], batch: Collection[str]) -> Hybrid:
    """The trunk and the head of a serialised step.

    frozen: the values of all inputs that no step changes. batch: the names of the inputs that come with a batch and may
    be given to the trunk: features, never random numbers or hyper-parameters. Every other input is the head's.

    Guarantees: running the head on the trunk's outputs and the remaining inputs computes the step's outputs, with the
    same nodes; up to rounding, since a runtime fuses no nodes across the cut. The head keeps those of the inputs in
    ``frozen`` and ``batch`` that it reads itself, and all others.
    Raises GraphRefused for a graph without a frozen front, or one whose front gives a result of the step itself;
    InputError for names that are no inputs.
    """
    model = cast(Any, onnx).load_from_string(data)
    graph = model.graph
    known = {value.name for value in graph.input}
    if unknown := sorted((set(frozen) | set(batch)) - known):
        raise InputError(f"The graph has no input {unknown[0]!r} to split it by.")
    origins = _origins(graph, frozen, batch)
    front = [node for node in graph.node if all(origins[name].trunk for name in node.output if name)]
    made = {name for node in front for name in node.output}
    rest = [node for node in graph.node if not made.issuperset(node.output)]
    if not front:
        raise GraphRefused(
            "The step has no frozen front to run elsewhere: no node reads frozen tensors and the batch alone.",
            hint="Freeze the first layers of the model, or train without the option.",
        )
    if told := sorted(made & {value.name for value in graph.output}):
        raise GraphRefused(
            f"The frozen front makes {told[0]!r}, a result of the step, so it cannot be cut off.",
            hint="Leave something behind it to train: at least the last layer.",
        )
    read = {name for node in rest for name in _reads(node)}
    cut = tuple(name for node in front for name in node.output if name in read)
    shapes = _shapes(model, cut)
    return Hybrid(trunk=_trunk(model, cut, shapes, frozen), head=_head(model, rest, shapes, {*frozen, *batch}), cut=cut)


def _origins(graph: Any, frozen: Collection[str], batch: Collection[str]) -> dict[str, _Origin]:
    origins = {"": _Origin()} | {tensor.name: _Origin() for tensor in graph.initializer}
    for value in graph.input:
        name = str(value.name)
        origins[name] = _Origin(name in frozen, name in batch, name not in frozen and name not in batch)
    for node in graph.node:
        # A graph inside of a node may read anything; such a node is never the trunk's.
        held = any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        origin = _Origin(other=True) if held else _Origin.joined(origins[name] for name in node.input)
        origins |= dict.fromkeys(map(str, node.output), origin)
    return origins


def _reads(node: Any) -> list[str]:
    """The values that a node reads, those of the graphs inside of it included."""
    names = [str(name) for name in node.input]
    for attribute in node.attribute:
        if attribute.HasField("g"):
            names += [name for inner in attribute.g.node for name in _reads(inner)]
            names += [str(value.name) for value in attribute.g.output]
    return names


def _shapes(model: Any, cut: Sequence[str]) -> dict[str, Any]:
    """The types of what crosses, as the file states them or as they follow."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    known = {str(value.name): value for value in (*inferred.value_info, *inferred.output)}
    for name in cut:
        value = known.get(name)
        if value is None or not all(axis.HasField("dim_value") for axis in value.type.tensor_type.shape.dim):
            raise GraphRefused(f"The shape of {name!r}, where the step would be cut, does not follow from the graph.")
    return {name: known[name] for name in cut}


def _trunk(model: Any, cut: Sequence[str], shapes: Mapping[str, Any], frozen: Mapping[str, NDArray]) -> bytes:
    """The nodes that the cut needs: the front, and what is made of the batch or of frozen tensors alone for it."""
    nodes, read = _needed(model.graph.node, cut)
    inputs = [value for value in model.graph.input if value.name in read and value.name not in frozen]
    constants = [tensor for tensor in model.graph.initializer if tensor.name in read]
    constants += [numpy_helper.from_array(value, name) for name, value in frozen.items() if name in read]
    return _written(model, nodes, inputs, [shapes[name] for name in cut], constants)


def _head(model: Any, rest: Sequence[Any], shapes: Mapping[str, Any], optional: Collection[str]) -> bytes:
    """The other nodes. Inputs that are not optional stay, read or not: they are the step's state and its numbers."""
    nodes, read = _needed(rest, [value.name for value in model.graph.output])
    inputs = [value for value in model.graph.input if value.name not in optional or value.name in read]
    constants = [tensor for tensor in model.graph.initializer if tensor.name in read]
    return _written(model, nodes, [*inputs, *shapes.values()], list(model.graph.output), constants)


def _needed(nodes: Iterable[Any], wanted: Iterable[str]) -> tuple[list[Any], set[str]]:
    """The nodes that these values need, in order, and every name that they read."""
    read = set(wanted)
    kept: list[Any] = []
    for node in reversed(list(nodes)):
        if read.isdisjoint(node.output):
            continue
        kept.append(node)
        read.update(_reads(node))
    return kept[::-1], read


def _written(model: Any, nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any]) -> bytes:
    graph = helper.make_graph(nodes, model.graph.name, inputs, outputs, constants)
    made = helper.make_model(
        graph, opset_imports=list(model.opset_import), ir_version=model.ir_version, producer_name=model.producer_name
    )
    return made.SerializeToString(deterministic=True)
