"""Putting weights into an inference graph: inside its file, or in a file beside it where they are too many for one."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from coterie.compute.ir import NDArray
from coterie.compute.onnx.checker import DTYPES
from coterie.errors import GraphRefused, InputError

# One protobuf message holds at most this many bytes.
MESSAGE_BYTES = 2**31 - 1
DIGEST: Final = "coterie.weights.sha256"
"""Where a model's metadata say what the file with its weights is."""
# Runtimes map files whose tensors begin at pages.
_PAGE: Final = 4096


@dataclass(frozen=True)
class WeightsBeside:
    """A model in two files. model: the ONNX file. name: of the file with the weights, which must lie in the same
    folder; it follows from what it holds. arrays: what it holds, in order, each at the next multiple of 4096 bytes.
    """

    model: bytes
    name: str
    arrays: tuple[NDArray, ...]

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The bytes of the file with the weights, in pieces."""
        return _pieces(self.arrays)


def fits_one_file(infer: bytes, weights: Mapping[str, NDArray]) -> bool:
    """Whether the graph can be one file with its weights inside."""
    return len(infer) + sum(array.nbytes for array in weights.values()) <= MESSAGE_BYTES


def embed_weights(
    infer: bytes, weights: Mapping[str, NDArray], metadata: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """The graph with each named input turned into an initialiser, so that one file holds the model.

    infer: a serialised graph. weights: arrays by input name, each of exactly the input's dtype and shape; inputs not
    named stay inputs, in their order. metadata: texts for the file's own metadata, by name. Raises InputError for a
    name that is no input, or a wrong dtype or shape; GraphRefused when the bytes are no graph or the result exceeds
    2 GiB.
    """
    if not fits_one_file(infer, weights):
        raise GraphRefused(
            "The graph with its weights exceeds 2 GiB, the most that one ONNX file can hold.",
            hint="Save it by `save_infer` or `coterie models download`: they write the weights to a file beside it.",
        )
    return _filled(infer, weights, metadata, numpy_helper.from_array)


def weights_beside(
    infer: bytes, weights: Mapping[str, NDArray], metadata: Mapping[str, str] = MappingProxyType({})
) -> WeightsBeside:
    """As :func:`embed_weights`, with the weights in a file of their own, for models of any size.

    The model's metadata hold that file's SHA-256, which ``onnx.load`` of coterie checks; other readers follow the
    file's name and offsets. Raises InputError and GraphRefused as ``embed_weights`` does, but for the size.
    """
    arrays = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in weights.items()}
    digest = hashlib.sha256()
    for piece in _pieces(tuple(arrays.values())):
        digest.update(piece)
    file = f"weights-{digest.hexdigest()[:16]}.bin"
    offsets: dict[str, int] = {}
    end = 0
    for name, array in arrays.items():
        offsets[name] = end
        end += _padded(array.nbytes)

    def pointer(array: NDArray, name: str) -> Any:
        tensor = TensorProto()
        tensor.name = name
        tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor.dims.extend(array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", file), ("offset", offsets[name]), ("length", array.nbytes)):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, str(value)
        return tensor

    model = _filled(infer, arrays, {**metadata, DIGEST: digest.hexdigest()}, pointer)
    return WeightsBeside(model, file, tuple(arrays.values()))


def _filled(
    infer: bytes, weights: Mapping[str, NDArray], metadata: Mapping[str, str], tensor_of: Callable[[NDArray, str], Any]
) -> bytes:
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
        model.graph.initializer.append(tensor_of(np.ascontiguousarray(array).reshape(shape), name))
    kept = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    helper.set_model_props(model, {**{entry.key: entry.value for entry in model.metadata_props}, **metadata})
    return model.SerializeToString()


def _padded(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _pieces(arrays: tuple[NDArray, ...]) -> Iterator[bytes | memoryview]:
    for array in arrays:
        if array.nbytes:
            yield array.reshape(-1).view(np.uint8).data
        yield bytes(_padded(array.nbytes) - array.nbytes)
