"""First values of weights inside a graph, from uniform random numbers of the host: the same distributions as those of
`coterie.compute.nn.initialisers`, from a source that only the role itself knows.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

from coterie import errors
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.initialisers import Constant, Normal, Uniform
from coterie.compute.nn.module import ParameterSpec

UniformNumbers = Callable[[tuple[int, ...]], Array]
"""A shape → fresh float32 numbers of that shape in [0, 1)."""

_LEAST = 2.0**-25
"""Half of the smallest step of the host's numbers, so that no logarithm of zero is taken."""


def _constant(init: Constant, shape: tuple[int, ...], numbers: UniformNumbers) -> Array:
    return xp.full(shape, init.value, dtype="float32")


def _uniform(init: Uniform, shape: tuple[int, ...], numbers: UniformNumbers) -> Array:
    return (numbers(shape) * 2.0 - 1.0) * init.bound


def _normal(init: Normal, shape: tuple[int, ...], numbers: UniformNumbers) -> Array:
    """Box and Muller (1958), in float32."""
    radius = xp.sqrt(xp.log(numbers(shape) + _LEAST) * -2.0)
    return radius * xp.cos(numbers(shape) * (2.0 * math.pi)) * init.deviation


_DRAWN: Mapping[type, Callable[[Any, tuple[int, ...], UniformNumbers], Array]] = {
    Constant: _constant,
    Uniform: _uniform,
    Normal: _normal,
}


def first_value(name: str, spec: ParameterSpec, numbers: UniformNumbers) -> Array:
    """The first value of a parameter. Raises errors.ExperimentError (``initial_unsupported``) for an initialiser that
    is none of the table, such as the weights of an imported model.
    """
    drawn = _DRAWN.get(type(cast(object, spec.init)))
    if drawn is None:
        raise errors.ExperimentError(
            f"Parameter {name!r} starts by {spec.init!r}, which a role of a session cannot draw by itself.",
            hint="Use nn.Constant, nn.Uniform or nn.Normal; the layers of coterie do.",
            code="initial_unsupported",
        )
    return drawn(spec.init, spec.shape, numbers)
