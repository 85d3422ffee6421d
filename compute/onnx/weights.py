"""Putting weights into an inference graph."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from coterie.compute.ir import NDArray
from coterie.compute.onnx.checker import DTYPES
from coterie.errors import GraphRefused, InputError

# One protobuf message holds at most this many bytes.
MESSAGE_BYTES = 2**31 - 1


def embed_weights(
    infer: bytes, weights: Mapping[str, NDArray], metadata: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """The graph with each named input turned into an initialiser, so that one file holds the model.

    infer: a serialised graph. weights: arrays by input name, each of exactly the input's dtype and shape; inputs not
    named stay inputs, in their order. metadata: texts for the file's own metadata, by name. Raises InputError for a
    name that is no input, or a wrong dtype or shape; GraphRefused when the bytes are no graph or the result exceeds
    2 GiB.
    """
    if len(infer) + sum(array.nbytes for array in weights.values()) > MESSAGE_BYTES:
        raise GraphRefused("The graph with its weights exceeds 2 GiB, the most that one ONNX file can hold.")
    try:
        model = ModelProto.FromString(infer)
    except Exception as error:  # protobuf raises several classes
        raise GraphRefused(f"The bytes are not an ONNX graph: {error}") from error
    inputs = {value.name: value for value in model.graph.input}
    for name, array in weights.items():
        value = inputs.get(name)
        if value is None:
            raise InputError(f"embed_weights: the graph has no input {name!r}; it has {', '.join(inputs) or 'none'}.")
        tensor = value.type.tensor_type
        dtype, shape = DTYPES.get(tensor.elem_type), tuple(int(dimension.dim_value) for dimension in tensor.shape.dim)
        if array.dtype.name != dtype or array.shape != shape:
            raise InputError(
                f"embed_weights: {name!r} must be {dtype}{list(shape)}, got {array.dtype.name}{list(array.shape)}."
            )
        model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(shape), name))
    kept = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    helper.set_model_props(model, {**{entry.key: entry.value for entry in model.metadata_props}, **metadata})
    return model.SerializeToString()
