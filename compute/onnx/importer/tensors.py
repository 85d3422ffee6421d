"""Tensors and attributes of an ONNX file as NumPy arrays and plain values, and the refusal of a file."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from coterie.compute.ir import NARROW, NDArray
from coterie.compute.primitives.basic import ONNX_DTYPES
from coterie.errors import GraphRefused

Result = TypeVar("Result")
DTYPES: Mapping[int, str] = {code: name for name, code in ONNX_DTYPES.items() if name not in NARROW}
_NUMBERS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
_IN_FLOATS = "Export in float32; of a quantised file, take the one that it was made from."
DAMAGED = "The file is damaged: export it again."


def refused(message: str, hint: str, **details: Any) -> GraphRefused:
    """The refusal of a file, to be raised."""
    return GraphRefused(f"The ONNX graph cannot be imported. {message}", hint=hint, code="import_refused", **details)


def sound(what: str, call: Callable[[], Result]) -> Result:
    """The result of a call into onnx, which raises many classes on damaged files, or of one that trusts types."""
    try:
        return call()
    except GraphRefused:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise refused(f"{what}: {reason[:500].rstrip('.')}.", "Export it again.") from error


def is_text(tensor: Any) -> bool:
    """Whether a tensor holds text, such as names of classes."""
    return tensor.data_type == TensorProto.STRING


def array_of(tensor: Any, name: str) -> NDArray:
    """The numbers of a tensor. Raises GraphRefused for a dtype that coterie lacks, weights elsewhere and damage."""
    if tensor.data_location == TensorProto.EXTERNAL:
        # Reading it here would open any file of the working directory that the graph names.
        raise refused(
            f"Its weights lie in another file, those of {name!r} at least.",
            "Give the path of the file instead of its bytes.",
        )
    if tensor.data_type not in DTYPES:
        kinds = TensorProto.DataType
        known = tensor.data_type in kinds.values()
        kind = kinds.Name(tensor.data_type).lower() if known else f"number {tensor.data_type}"
        raise refused(f"The tensor {name!r} is of dtype {kind}, which coterie does not have.", _IN_FLOATS)
    return sound(f"The tensor {name!r} is damaged", lambda: np.asarray(numpy_helper.to_array(tensor)))


def attributes_of(node: Any) -> dict[str, Any]:
    """The attributes of a node: numbers, text, tuples of them, arrays. Raises GraphRefused for damaged ones."""
    attributes: dict[str, Any] = {}
    for attribute in node.attribute:
        value = sound("It is damaged", partial(helper.get_attribute_value, attribute))
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif isinstance(value, onnx.TensorProto):
            value = array_of(value, f"{node.op_type} {attribute.name}")
        attributes[attribute.name] = value
    return attributes


def constant_of(node: Any, name: str) -> NDArray | None:
    """The numbers of a Constant node; None for text. Raises GraphRefused for a sparse one."""
    given = {attribute.name: attribute for attribute in node.attribute}
    if given.keys() & {"value_string", "value_strings"} or ("value" in given and is_text(given["value"].t)):
        return None
    for key, dtype in _NUMBERS.items():
        if key in given:
            value = sound("It is damaged", partial(helper.get_attribute_value, given[key]))
            return np.asarray(value, dtype)
    if "value" not in given:
        raise refused(f"The constant {name!r} is sparse.", "Export it as a dense tensor.")
    return array_of(given["value"].t, name)
