"""The types of a user primitive's results, by its hooks."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from coterie.compute.extension.row import Hook, UserPrimitive, broken
from coterie.compute.ir import DTYPES, Attributes, Type
from coterie.compute.primitives.rules import same_dtype
from coterie.errors import CoterieError, DTypeError, ShapeError


def infer_by_hooks(primitive: UserPrimitive, types: Sequence[Type], attributes: Attributes) -> tuple[Type, ...] | None:
    """The types of all outputs; None where the primitive leaves them to its lowering.

    Raises ShapeError or DTypeError where a hook refuses the operands (also by ValueError or TypeError), InputError for
    a hook that fails otherwise or returns something else than types.
    """
    if len(types) != len(primitive.inputs):
        raise TypeError(f"{primitive.name} takes {len(primitive.inputs)} operands, not {len(types)}")
    if primitive.infer_shape is None:
        return None
    shapes = _asked(primitive, "infer_shape", primitive.infer_shape, [type_.shape for type_ in types], attributes)
    if primitive.infer_dtype is None:
        dtypes: Any = [same_dtype(*types) if types else "float32"] * len(primitive.outputs)
    else:
        dtypes = _asked(primitive, "infer_dtype", primitive.infer_dtype, [type_.dtype for type_ in types], attributes)
    if len(primitive.outputs) == 1:
        shapes = [shapes]
        dtypes = cast("list[Any]", dtypes) if isinstance(dtypes, (tuple, list)) else [dtypes]
    if not (_is_list(primitive, shapes) and _is_list(primitive, dtypes)):
        raise broken(primitive, f"its inference does not give one shape and one dtype for each of {primitive.outputs}.")
    return tuple(_type(primitive, shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))


def _asked(primitive: UserPrimitive, what: str, hook: Hook, told: Sequence[Any], attributes: Attributes) -> Any:
    try:
        return hook(*told, **attributes)
    except CoterieError:
        raise
    except (ValueError, TypeError) as error:
        refusal = ShapeError if what == "infer_shape" else DTypeError
        raise refusal(f"{error}".rstrip(".") + ".", hint=f"{what} of {primitive.name} refuses the operands.") from error
    except Exception as error:  # a hook is foreign code: whatever it raises is told as its fault
        raise broken(primitive, f"its {what} failed: {type(error).__name__}: {error}.") from error


def _is_list(primitive: UserPrimitive, found: Any) -> bool:
    return isinstance(found, (tuple, list)) and len(cast("list[Any]", found)) == len(primitive.outputs)


def _type(primitive: UserPrimitive, shape: Any, dtype: Any) -> Type:
    sizes = cast("list[Any]", shape) if isinstance(shape, (tuple, list)) else None
    if sizes is None or not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in sizes):
        raise broken(primitive, f"its infer_shape returned {shape!r}, which is not a shape.")
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = ""
    if name not in DTYPES or dtype is None:  # NumPy takes None for float64
        raise broken(primitive, f"its infer_dtype returned {dtype!r}, which is not one of {', '.join(DTYPES)}.")
    return Type(name, tuple(map(int, sizes)))
