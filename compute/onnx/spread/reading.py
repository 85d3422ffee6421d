"""A serialised step as rules see it: nodes with the shapes, constants and attributes that belong to them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, cast

import onnx
from onnx import helper, numpy_helper

from coterie.compute.ir import NDArray
from coterie.compute.onnx.spread.placement import Unspreadable

Shape = tuple[int, ...]


@dataclass(frozen=True)
class StepNode:
    """A node of the step. proto: as the file has it. index: its place in the file, which is an order of execution."""

    proto: Any
    index: int
    graph: "StepGraph"

    @property
    def operator(self) -> str:
        """Its operator."""
        return str(self.proto.op_type)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names; "" for one that is left out."""
        return tuple(map(str, self.proto.input))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names."""
        return tuple(map(str, self.proto.output))

    def shape(self, place: int) -> Shape:
        """Of an input."""
        return self.graph.shapes[self.inputs[place]]

    @property
    def out_shape(self) -> Shape:
        """Of the first output."""
        return self.graph.shapes[self.outputs[0]]

    def has(self, place: int) -> bool:
        """Whether an input is given."""
        return place < len(self.inputs) and bool(self.inputs[place])

    def numbers(self, place: int) -> list[int]:
        """A constant input of whole numbers; [] where it is left out."""
        if not self.has(place):
            return []
        found = self.graph.constants.get(self.inputs[place])
        if found is None:
            raise Unspreadable(f"{self} computes its input {self.inputs[place]!r}, which a constant should give.")
        return [int(number) for number in found.ravel()]

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute's value."""
        for attribute in self.proto.attribute:
            if attribute.name == name:
                return helper.get_attribute_value(attribute)
        return default

    @property
    def nested(self) -> bool:
        """Whether it holds a graph of its own, as loops and choices do."""
        return any(attribute.HasField("g") or attribute.graphs for attribute in self.proto.attribute)

    def __str__(self) -> str:
        return f"The node that makes {self.outputs[0]!r} ({self.operator})"


class StepGraph:
    """A serialised step of static shapes.

    Raises Unspreadable where a shape does not follow from the file.
    """

    def __init__(self, data: bytes) -> None:
        self.model = cast(Any, onnx).load_from_string(data)
        graph = self.model.graph
        self.constants: Mapping[str, NDArray] = {
            str(tensor.name): numpy_helper.to_array(tensor) for tensor in graph.initializer
        }
        self.nodes = tuple(StepNode(proto, index, self) for index, proto in enumerate(graph.node))
        self.inputs: tuple[str, ...] = tuple(str(value.name) for value in graph.input)
        self.outputs: tuple[str, ...] = tuple(str(value.name) for value in graph.output)
        inferred = onnx.shape_inference.infer_shapes(self.model, data_prop=True).graph
        self.shapes: dict[str, Shape] = {name: value.shape for name, value in self.constants.items()}
        self.types: dict[str, int] = {str(tensor.name): int(tensor.data_type) for tensor in graph.initializer}
        for value in (*inferred.input, *inferred.value_info, *inferred.output):
            tensor = value.type.tensor_type
            if all(axis.HasField("dim_value") for axis in tensor.shape.dim):
                self.shapes[str(value.name)] = tuple(int(axis.dim_value) for axis in tensor.shape.dim)
                self.types[str(value.name)] = int(tensor.elem_type)
        if lost := [name for node in self.nodes for name in node.outputs if name and name not in self.shapes]:
            raise Unspreadable(f"The shape of {lost[0]!r} does not follow from the step's graph.")

    def size(self, name: str) -> int:
        """How many numbers a tensor has."""
        return prod(self.shapes[name])

    def dtype(self, name: str) -> Any:
        """A tensor's NumPy dtype."""
        return helper.tensor_dtype_to_np_dtype(self.types[name])
