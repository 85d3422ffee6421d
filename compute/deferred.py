"""What a line of Python gives that a graph calls on the host: a number or a NumPy array known only when the graph runs.

Beside an array it is an operand like any other. Anything else that is asked of it (NumPy's own functions, arithmetic
with numbers, its digits) needs the value, so the line that asks runs on the host too.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from coterie.compute.ir import FLOATS
from coterie.compute.recorder import refused
from coterie.compute.source import user_source
from coterie.errors import TraceError

_WIDE = ("int32", "int64", *FLOATS)
"""What every whole number holds that becomes an array by itself, as int32."""


def _unknown(self: "Deferred", *operands: Any) -> NoReturn:
    self.refuse()


def _beside_arrays(self: "Deferred", other: Any) -> Any:
    """Arithmetic with an array is the array's; with anything else it would be Python's or NumPy's."""
    return NotImplemented if hasattr(other, "recorder") else self.refuse()


class Deferred:
    """A value of a call of the host that was no array of coterie there.

    held: the traced array that carries it, exactly: float64 for a float, int64 for an int. python: its type. alone: the
    dtype that it takes as an array by itself.
    """

    __slots__ = ("alone", "held", "python")

    def __init__(self, held: Any, python: type[Any], alone: str) -> None:
        self.held, self.python, self.alone = held, python, alone

    @property
    def __class__(self) -> type[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  isinstance is asked on the way
        return self.python

    @property
    def is_number(self) -> bool:
        """Whether it takes the dtype of an array beside it."""
        return issubclass(self.python, (bool, int, float))

    def fits(self, dtype: str) -> bool:
        """Whether it can stand for an element of a dtype, whatever its value is."""
        if issubclass(self.python, bool):
            return True
        return dtype in (FLOATS if issubclass(self.python, float) else _WIDE)

    def refuse(self) -> NoReturn:
        """Raise TraceError: its value is asked for while a graph is made."""
        told = (
            f"{user_source()}: a {self.python.__name__} that a line of Python gives is traced, so its value cannot be"
        )
        raise refused(TraceError(f"{told} known here.", hint="Use it beside arrays only.", wanted="its value"))

    def __getattr__(self, name: str) -> Any:
        self.refuse()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> NoReturn:
        self.refuse()

    def __array_function__(self, function: Callable[..., Any], types: Any, positional: Any, named: Any) -> NoReturn:
        self.refuse()

    __array__ = __getitem__ = __setitem__ = __call__ = __iter__ = __len__ = __contains__ = __next__ = _unknown
    __bool__ = __float__ = __int__ = __index__ = __complex__ = __round__ = __trunc__ = __floor__ = __ceil__ = _unknown
    __neg__ = __pos__ = __abs__ = __invert__ = __hash__ = __str__ = __repr__ = __format__ = _unknown
    __divmod__ = __rdivmod__ = __reversed__ = __copy__ = __deepcopy__ = __reduce__ = _unknown
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __matmul__ = __pow__ = _beside_arrays
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rmatmul__ = __rpow__ = _beside_arrays
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = _beside_arrays
    __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = _beside_arrays
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _beside_arrays
