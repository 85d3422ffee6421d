"""First values of parameters."""

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any, TypeAlias, cast

from coterie.compute.mindspore.context import fresh_stream
from coterie.compute.mindspore.tensor import Tensor
from coterie.compute.nn import initialisers
from coterie.compute.nn.initialisers import Initialiser
from coterie.errors import ArgumentValueError

Start: TypeAlias = "str | float | Initialiser | Tensor | None"


def Normal(sigma: float = 0.01, mean: float = 0.0) -> Initialiser:
    """Normal with this deviation and mean."""
    around = initialisers.Normal(sigma)
    return lambda shape, bits: (around(shape, bits) + mean).astype("float32")


def Uniform(scale: float = 0.07) -> Initialiser:
    """Uniform in ±scale."""
    return initialisers.Uniform(scale)


def Constant(value: float) -> Initialiser:
    """One number."""
    return initialisers.Constant(value)


def Zero() -> Initialiser:
    """Zeros."""
    return initialisers.Constant(0.0)


def One() -> Initialiser:
    """Ones."""
    return initialisers.Constant(1.0)


def HeUniform(negative_slope: float = 0.0) -> Initialiser:
    """Uniform in ±sqrt(6 / ((1 + slope²) fan_in)) (He et al. 2015); the fan of [outputs, inputs, ...] is the product of
    all but the first.
    """
    gain = 6.0 / (1.0 + negative_slope**2)
    return lambda shape, bits: initialisers.Uniform(sqrt(gain / prod(shape[1:])))(shape, bits)


def XavierUniform(gain: float = 1.0) -> Initialiser:
    """Uniform in ±gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""

    def start(shape: tuple[int, ...], bits: Any) -> Any:
        window = prod(shape[2:])
        fans = (shape[0] + shape[1]) * window
        return initialisers.Uniform(gain * sqrt(6.0 / fans))(shape, bits)

    return start


_BY_NAME = {
    "zeros": Zero,
    "ones": One,
    "normal": Normal,
    "uniform": Uniform,
    "he_uniform": HeUniform,
    "xavier_uniform": XavierUniform,
}


def initializer(init: Start, shape: int | Sequence[int], dtype: Any = "float32") -> Tensor:
    """A tensor of first values: by name, by a number, or by one of the functions here. Raises ArgumentValueError for a
    name that does not exist and for a tensor of another shape.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if isinstance(init, Tensor):
        if init.shape != sizes:
            raise ArgumentValueError(f"The first value has the shape {list(init.shape)}, not {list(sizes)}.")
        return init
    if isinstance(init, str):
        if init not in _BY_NAME:
            raise ArgumentValueError(f"There is no initializer {init!r}.", hint=f"There are {', '.join(_BY_NAME)}.")
        init = _BY_NAME[init]()
    if isinstance(init, (int, float)):
        init = Constant(init)
    return Tensor(cast("Initialiser", init)(sizes, fresh_stream()), dtype)
