"""The quantisation table of a model: which tensors are held in few bits, and how."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from coterie.compute.ir import NDArray
from coterie.errors import GraphRefused, InputError

_QUANTISING = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True, kw_only=True)
class QuantisedTensor:
    """A tensor x that is held as whole numbers q, x = (q - zero_point) scale.

    tensor: its name in the graph: of what is quantised, or of the stored levels of a weight. dtype: of q. axis: along
    which scales differ, None for one scale for all.
    """

    tensor: str
    dtype: str
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Every field by name, as JSON values."""
        return asdict(self) | {"scale": list(self.scale), "zero_point": list(self.zero_point)}

    @staticmethod
    def from_json(value: object) -> "QuantisedTensor":
        """The inverse of `to_json`. Raises InputError."""
        try:
            said = cast(dict[str, Any], value)
            axis = said["axis"]
            return QuantisedTensor(
                tensor=str(said["tensor"]),
                dtype=str(said["dtype"]),
                scale=tuple(float(number) for number in said["scale"]),
                zero_point=tuple(int(number) for number in said["zero_point"]),
                axis=None if axis is None else int(axis),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"A row of a quantisation table cannot be read: {error!r}.") from error


def quantisation_table(model: bytes) -> tuple[QuantisedTensor, ...]:
    """What QuantizeLinear and DequantizeLinear of a model's main graph say, in its order, each tensor once; empty for a
    model that is not quantised. Raises GraphRefused for bytes that are no graph, and scales that are no constants or by
    blocks.
    """
    try:
        graph = ModelProto.FromString(model).graph
    except Exception as error:  # protobuf raises several classes
        raise GraphRefused(f"The bytes are not an ONNX graph: {error}") from error
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    constants |= {node.output[0]: value for node in graph.node if (value := _constant(node)) is not None}
    made = {name for node in graph.node if node.op_type == "QuantizeLinear" for name in node.output}
    rows: dict[str, QuantisedTensor] = {}
    for node in graph.node:
        # What QuantizeLinear made has its row already.
        if node.op_type in _QUANTISING and node.input[0] not in made:
            rows.setdefault(node.input[0], _row(node, constants))
    return tuple(rows.values())


def _constant(node: NodeProto) -> NDArray | None:
    if node.op_type != "Constant":
        return None
    tensors = [attribute.t for attribute in node.attribute if attribute.name == "value"]
    return numpy_helper.to_array(tensors[0]) if tensors else None


def _row(node: NodeProto, constants: Mapping[str, NDArray]) -> QuantisedTensor:
    tensor, scale_name, *rest = node.input
    point_name = rest[0] if rest else ""
    unknown = [name for name in (scale_name, point_name) if name and name not in constants]
    if unknown:
        raise GraphRefused(
            f"{node.op_type} of {tensor!r} takes {unknown[0]!r}, which is no constant, so it cannot stand in a table.",
            hint="Quantise statically: give calibration batches.",
        )
    scale = constants[scale_name]
    if scale.ndim > 1:
        raise GraphRefused(
            f"{node.op_type} of {tensor!r} has scales of shape {list(scale.shape)}, by blocks, which no table can say.",
            hint="Quantise with one scale for a tensor, or one for each place along an axis.",
        )
    # Without a zero point levels are those of the stored weight, or uint8.
    dtype = constants[tensor].dtype if node.op_type == "DequantizeLinear" and tensor in constants else np.uint8
    point = constants[point_name] if point_name else np.zeros(scale.shape, dtype)
    axis = next((int(attribute.i) for attribute in node.attribute if attribute.name == "axis"), 1)
    return QuantisedTensor(
        tensor=tensor,
        dtype=point.dtype.name,
        scale=tuple(float(number) for number in scale.reshape(-1)),
        zero_point=tuple(int(number) for number in point.reshape(-1)),
        axis=axis if scale.ndim and scale.size > 1 else None,
    )
