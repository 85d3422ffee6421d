"""The array: NumPy data, or a value of the graph that is being traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

import numpy as np

from coterie.compute.deferred import Deferred
from coterie.compute.dispatch import DISPATCH, Row, run
from coterie.compute.ir import FLOATS, SIGNED, Attributes, NDArray, Type, Value, label
from coterie.compute.limits import check_size
from coterie.compute.literals import dtype_name, fits, literal
from coterie.compute.recorder import RECORDER, Recorder, refused
from coterie.compute.source import asked_operation, user_source
from coterie.errors import ArgumentValueError, DTypeError, InputError, ShapeError, TraceError


def _operator(name: str, *, turned: bool = False) -> Callable[[Array, ArrayLike], Array]:
    """The method of Array that is this function; turned: of which the array is the second operand."""

    def method(self: Array, other: ArrayLike) -> Array:
        function = getattr(DISPATCH.functions, name)
        return function(other, self) if turned else function(self, other)

    return method


class Array:
    """A tensor of static shape. It cannot be written in place.

    Outside a trace it holds a NumPy array and every operation is evaluated at once; inside, operations on traced arrays
    are recorded. Both obey the same rules: operands broadcast as in NumPy; a Python number takes the dtype of the array
    beside it; two floats or two integers of different width give the wider; an integer or bool with a float is refused.
    """

    __slots__ = ("__weakref__", "_data", "recorder", "type", "value")
    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]  equality is elementwise

    def __init__(self, data: NDArray | None, *, value: Value | None = None, recorder: Recorder | None = None) -> None:
        self._data = data
        self.value = value
        self.recorder = recorder
        self.type: Type
        if data is not None:
            self.type = Type(data.dtype.name, data.shape)
        elif value is not None:
            self.type = value.type
        else:
            raise InputError("An Array needs data or a value of a trace.")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.type.dtype)

    @property
    def ndim(self) -> int:
        return self.type.rank

    @property
    def size(self) -> int:
        return self.type.size

    @property
    def T(self) -> Array:
        return DISPATCH.functions.matrix_transpose(self)

    mT = T

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def name(self) -> str:
        """The path of the traced function's argument that it is, as in the graph's signature; else empty."""
        inputs = {} if self.recorder is None else self.recorder.inputs
        return next((name for name, value in inputs.items() if value is self.value), "")

    def to_device(self, device: str, *, stream: Any = None) -> Array:
        """The array itself, which is on the only device, "cpu". Raises InputError for another."""
        return DISPATCH.functions.asarray(self, device=device)

    if not TYPE_CHECKING:  # a checker would take every name for one that is there

        def __getattr__(self, name: str) -> NoReturn:
            DISPATCH.functions.elsewhere.refuse_method(name)

    def alias(self) -> Array:
        """The same array as another object."""
        return Array(self._data, value=self.value, recorder=self.recorder)

    def captured(self) -> Array:
        """What a trace inside of that of this array keeps to be fed with it."""
        return self

    def numpy(self) -> NDArray:
        """The data (do not write to it). Raises TraceError inside a trace, where there is none yet."""
        if self._data is None:
            self._no_data("its numbers")
        return self._data

    def item(self) -> Any:
        """The only element as a Python number. Raises ArgumentValueError when there are more, or none."""
        data = self.numpy()
        if data.size != 1:
            raise ArgumentValueError(
                f"{user_source()}: {self.type} has {data.size} elements, and one is needed here.",
                hint="Pick one by its position, or reduce: any, all, sum.",
            )
        return data.item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        if self._data is None:
            self._no_data("a NumPy array of it")
        return np.array(self._data, dtype=dtype, copy=copy)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        return DISPATCH.functions.interop.export(self.numpy(), stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.numpy().__dlpack_device__()

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        return DISPATCH.functions

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Array:
        return DISPATCH.functions.interop.call_ufunc(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, positional: Any, named: Any) -> Any:
        return DISPATCH.functions.interop.call_function(function, positional, named)

    def __bool__(self) -> bool:
        if self._data is None:
            hint = "Use where(condition, a, b), cond or while_loop; or put jit on the function that decides."
            self._no_data("whether it is true", hint)
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.type.dtype not in ("uint8", *SIGNED):
            raise DTypeError(f"{user_source()}: an array of {self.type} is not an index.")
        return int(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array of rank 0")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"Array({self.type}, traced)" if self._data is None else f"Array({self._data!r})"

    def __getitem__(self, index: Any) -> Array:
        return DISPATCH.functions.indexing.get(self, index)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise TraceError(
            f"{user_source()}: an array ({self.type}) cannot be written in place.",
            hint="Make a new array: where(mask, new, old), concat([...]), or old + change.",
        )

    def _no_data(
        self, wanted: str, hint: str = "Return the array from the traced function and look at it outside."
    ) -> NoReturn:
        told = f"{user_source()}: {self.type} is being traced, so {wanted} cannot be known here."
        raise refused(TraceError(told, hint=hint, wanted=wanted))

    def reshape(self, *shape: int | Sequence[int]) -> Array:
        whole = len(shape) == 1 and isinstance(shape[0], (Sequence, np.ndarray))
        return DISPATCH.functions.reshape(self, shape[0] if whole else shape)

    def astype(self, dtype: Any) -> Array:
        return DISPATCH.functions.astype(self, dtype)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Array:
        return DISPATCH.functions.sum(self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Array:
        return DISPATCH.functions.mean(self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Array:
        return DISPATCH.functions.max(self, axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Array:
        return DISPATCH.functions.min(self, axis=axis, keepdims=keepdims)

    def __neg__(self) -> Array:
        return DISPATCH.functions.negative(self)

    def __pos__(self) -> Array:
        return self

    def __abs__(self) -> Array:
        return DISPATCH.functions.abs(self)

    def __invert__(self) -> Array:
        return DISPATCH.functions.bitwise_invert(self)

    def __add__(self, other: ArrayLike) -> Array:
        return bind("add", *promote("add", self, other))

    def __radd__(self, other: ArrayLike) -> Array:
        return bind("add", *promote("add", other, self))

    def __sub__(self, other: ArrayLike) -> Array:
        return bind("subtract", *promote("subtract", self, other))

    def __rsub__(self, other: ArrayLike) -> Array:
        return bind("subtract", *promote("subtract", other, self))

    def __mul__(self, other: ArrayLike) -> Array:
        return bind("multiply", *promote("multiply", self, other))

    def __rmul__(self, other: ArrayLike) -> Array:
        return bind("multiply", *promote("multiply", other, self))

    def __truediv__(self, other: ArrayLike) -> Array:
        return bind("divide", *promote("divide", self, other))

    def __rtruediv__(self, other: ArrayLike) -> Array:
        return bind("divide", *promote("divide", other, self))

    __floordiv__, __rfloordiv__ = _operator("floor_divide"), _operator("floor_divide", turned=True)
    __mod__, __rmod__ = _operator("remainder"), _operator("remainder", turned=True)
    __matmul__, __rmatmul__ = _operator("matmul"), _operator("matmul", turned=True)
    __pow__, __rpow__ = _operator("pow"), _operator("pow", turned=True)
    __and__, __rand__ = _operator("bitwise_and"), _operator("bitwise_and", turned=True)
    __or__, __ror__ = _operator("bitwise_or"), _operator("bitwise_or", turned=True)
    __xor__, __rxor__ = _operator("bitwise_xor"), _operator("bitwise_xor", turned=True)
    __lshift__, __rlshift__ = _operator("bitwise_left_shift"), _operator("bitwise_left_shift", turned=True)
    __rshift__, __rrshift__ = _operator("bitwise_right_shift"), _operator("bitwise_right_shift", turned=True)

    def __eq__(self, other: Any) -> Array:  # type: ignore[override]  elementwise, as in the array API standard
        return DISPATCH.functions.equal(self, other)

    def __ne__(self, other: Any) -> Array:  # type: ignore[override]
        return DISPATCH.functions.not_equal(self, other)

    def __lt__(self, other: ArrayLike) -> Array:
        return DISPATCH.functions.less(self, other)

    def __le__(self, other: ArrayLike) -> Array:
        return DISPATCH.functions.less_equal(self, other)

    def __gt__(self, other: ArrayLike) -> Array:
        return DISPATCH.functions.greater(self, other)

    def __ge__(self, other: ArrayLike) -> Array:
        return DISPATCH.functions.greater_equal(self, other)


ArrayLike: TypeAlias = Array | NDArray | np.generic | float | Sequence[Any]
"""What array functions take: arrays, NumPy data, Python numbers and nested lists."""


def bind(name: str, *inputs: Array, **attributes: Any) -> Array:
    """Apply a primitive that has one output. See :func:`bind_all`."""
    return bind_all(name, inputs, attributes)[0]


def bind_all(name: str, inputs: Sequence[Array], attributes: Attributes) -> tuple[Array, ...]:
    """Apply a primitive: evaluated at once, or recorded when an input belongs to the open trace.

    Raises ShapeError or DTypeError that names the user's line, the operation, all operand types and a likely fix.
    """
    row = DISPATCH.rows[name]
    try:
        types = row.infer([array.type for array in inputs], attributes)
    except (ShapeError, DTypeError) as error:
        refuse(type(error), label(name, attributes), inputs, error.message, error.hint)
    for type_ in types:
        check_size(type_.size)
    recorder = RECORDER.get()
    if recorder is None:
        for array in inputs:
            if array.recorder is not None:
                raise TraceError(
                    f"{user_source()}: {label(name, attributes)} was given an array ({array.type}) of a trace that has "
                    "ended.",
                    hint="Return arrays from the traced function instead of keeping them in variables outside.",
                )
    # A broadcast is recorded even of known data: as a constant it would be written out at its full size.
    elif name == "broadcast_to" or any(recorder.claims(array) for array in inputs):
        values = recorder.append(name, [recorder.lift(array) for array in inputs], types, attributes, user_source())
        if recorder.evaluates:
            return tuple(recorder.evaluated(values, lambda: _evaluated(row, inputs, attributes, types)))
        return tuple([Array(None, value=value, recorder=recorder) for value in values])
    return tuple([Array(data) for data in _evaluated(row, inputs, attributes, types)])


def _evaluated(row: Row, inputs: Sequence[Array], attributes: Attributes, types: Sequence[Type]) -> list[NDArray]:
    with np.errstate(all="ignore"):
        results = row.evaluate(run, [array.numpy() for array in inputs], attributes)
    return [np.asarray(data, dtype=type_.dtype) for data, type_ in zip(results, types, strict=True)]


def refuse(
    kind: type[TraceError], name: str, inputs: Sequence[Array], reason: str, hint: str | None = None
) -> NoReturn:
    """Raise an error that names the user's line, the operation and the operand types."""
    source, name = user_source(), asked_operation(name)
    types = [str(array.type) for array in inputs]
    raise kind(
        f"{source}: {name}({', '.join(types)}): {reason}", hint=hint, operation=name, operands=types, source=source
    )


def as_array(x: ArrayLike, dtype: Any = None) -> Array:
    """An array of anything array-like. Python floats (np.float64 numbers are such) become float32 and Python integers
    int32 unless a dtype is given; NumPy data, and what gives itself as such (a column of a data frame), keeps its own.
    """
    if isinstance(x, Array):
        return x if dtype is None else DISPATCH.functions.astype(x, dtype)
    if type(cast("object", x)) is Deferred:
        deferred = cast("Deferred", x)
        return _of_dtype(deferred, deferred.alone if dtype is None else dtype_name(dtype))
    if isinstance(x, (list, tuple)) and any(isinstance(leaf, Array) for leaf in cast("Sequence[Any]", x)):
        stacked = DISPATCH.functions.stack([as_array(leaf) for leaf in cast("Sequence[Any]", x)])
        return stacked if dtype is None else DISPATCH.functions.astype(stacked, dtype)
    return Array(literal(x, dtype))


def _kind(dtype: str) -> str:
    return "float" if dtype in FLOATS else "bool" if dtype == "bool" else "integer"


def promote(name: str, *operands: ArrayLike) -> tuple[Array, ...]:
    """The operands as arrays of one dtype (see Array). Raises DTypeError for operands of different kinds."""
    if not operands:
        refuse(ShapeError, name, (), "there are no arrays.", "Give at least one.")
    strong = [as_array(x) for x in operands if not isinstance(x, (bool, int, float))]
    if not strong:
        strong = [
            as_array(
                max(cast("tuple[float, ...]", operands), key=lambda x: (isinstance(x, float), not isinstance(x, bool)))
            )
        ]
    kinds = {_kind(array.type.dtype) for array in strong}
    if len(kinds) > 1:
        fix = "Convert one of them with astype(x, dtype)."
        refuse(DTypeError, name, strong, "the operands are of different kinds.", fix)
    dtype = (
        strong[0].type.dtype
        if len({a.type.dtype for a in strong}) == 1
        else np.result_type(*(array.dtype for array in strong)).name
    )
    return tuple(_adopt(name, x, dtype, strong) for x in operands)


def _adopt(name: str, x: ArrayLike, dtype: str, strong: Sequence[Array]) -> Array:
    if type(cast("object", x)) is Deferred:
        return _of_dtype(cast("Deferred", x), dtype)
    if isinstance(x, (bool, int, float)):
        if not fits(x, dtype):
            fix = "Convert the array with astype(x, dtype)."
            refuse(DTypeError, name, strong, f"the number {x!r} does not fit dtype {dtype}.", fix)
        with np.errstate(over="ignore"):
            return Array(np.asarray(x, dtype=dtype))
    array = as_array(x)
    return array if array.type.dtype == dtype else bind("astype", array, dtype=dtype)


def _of_dtype(x: Deferred, dtype: str) -> Array:
    if x.is_number and not x.fits(dtype):
        x.refuse()
    return x.held if x.held.type.dtype == dtype else bind("astype", x.held, dtype=dtype)
