"""The array under the names that scripts of MindSpore use."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, cast

import numpy as np

from coterie.compute import numpy as cnp
from coterie.compute import tree
from coterie.compute.array import Array, as_array
from coterie.compute.ir import NDArray


class Tensor(Array):
    """An :class:`~coterie.compute.Array` whose operations give Tensors. Python integers become int64, as there."""

    __slots__ = ()

    def __init__(self, input_data: Any, dtype: Any = None) -> None:
        array = as_array(input_data, dtype)
        if dtype is None and not isinstance(input_data, (Array, np.ndarray, np.generic)) and array.dtype.kind == "i":
            array = as_array(np.asarray(input_data, np.int64))
        super().__init__(array._data, value=array.value, recorder=array.recorder)

    def asnumpy(self) -> NDArray:
        """The data (do not write to it). Raises TraceError inside a trace."""
        return self.numpy()

    def view(self, *shape: int) -> Tensor:
        """The same elements in another shape."""
        return tensor(self.reshape(*shape))

    def transpose(self, *axes: int | tuple[int, ...]) -> Tensor:
        """The axes in this order; without any, in reverse. Two integers on a matrix are the axes that change places:
        ``weight.transpose(0, 1)`` is its transpose, while the order (0, 1) would leave it as it is.
        """
        given = cast("tuple[int, ...]", axes[0] if axes and isinstance(axes[0], tuple) else axes)
        if len(axes) == 2 == self.ndim:
            return self.swapaxes(*given)
        return tensor(cnp.permute_dims(self, given or tuple(reversed(range(self.ndim)))))

    def permute(self, *axes: int | tuple[int, ...]) -> Tensor:
        """The axes in this order."""
        given = cast("tuple[int, ...]", axes[0] if axes and isinstance(axes[0], tuple) else axes)
        return tensor(cnp.permute_dims(self, given))

    def swapaxes(self, axis0: int, axis1: int) -> Tensor:
        """Two axes in each other's place."""
        return tensor(cnp.swapaxes(self, axis0, axis1))

    def dot(self, other: Any) -> Tensor:
        """The sum of products over the last axis of this and the last but one of the other."""
        return tensor(cnp.matmul(self, other))

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The position of the greatest element, of all elements or along an axis."""
        return tensor(cnp.argmax(self.reshape(-1) if axis is None else self, axis or 0, keepdims))

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The position of the smallest element, of all elements or along an axis."""
        return tensor(cnp.argmin(self.reshape(-1) if axis is None else self, axis or 0, keepdims))

    def flatten(self) -> Tensor:
        """All elements in one row."""
        return tensor(self.reshape(-1))

    def expand_dims(self, axis: int) -> Tensor:
        """A new axis of size 1."""
        return tensor(cnp.expand_dims(self, axis))

    def squeeze(self, axis: int | tuple[int, ...]) -> Tensor:
        """Without axes of size 1."""
        return tensor(cnp.squeeze(self, axis))

    def broadcast_to(self, shape: tuple[int, ...]) -> Tensor:
        """Repeated along axes of size 1 and new leading axes."""
        return tensor(cnp.broadcast_to(self, shape))

    def matmul(self, other: Any) -> Tensor:
        """The matrix product."""
        return tensor(cnp.matmul(self, other))

    def pow(self, exponent: Any) -> Tensor:
        """To a power."""
        return tensor(cnp.pow(self, exponent))

    def var(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """The variance of the whole population."""
        return tensor(cnp.var(self, axis, keepdims))


def tensor(array: Array) -> Tensor:
    """The same array as a Tensor."""
    return array if isinstance(array, Tensor) else Tensor(array)


def tensors(results: Any) -> Any:
    """A tree with its arrays as Tensors."""

    def adopted(leaf: Any) -> Any:
        return tensor(leaf) if isinstance(leaf, Array) else leaf

    return tree.map_tree(adopted, results)


def giving_tensors(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which gives Tensors."""

    @wraps(fn)
    def given(*positional: Any, **named: Any) -> Any:
        return tensors(fn(*positional, **named))

    return given


def _adopt_operations() -> None:
    """Every operation of Array gives a Tensor here, and the elementwise functions are methods too."""
    for name, member in vars(Array).items():
        if isinstance(member, FunctionType) and member.__annotations__.get("return") == "Array":
            setattr(Tensor, name, giving_tensors(member))
        elif isinstance(member, property) and member.fget and member.fget.__annotations__.get("return") == "Array":
            setattr(Tensor, name, property(giving_tensors(member.fget)))
    for name in ("__array_function__",):
        setattr(Tensor, name, giving_tensors(getattr(Array, name)))
    for name in "abs exp log sqrt tanh square sign all any".split():
        setattr(Tensor, name, giving_tensors(getattr(cnp, name)))


_adopt_operations()
