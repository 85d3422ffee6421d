"""The primitive of quantisation-aware training: numbers as after quantisation, gradients as if there were none."""

# Hooks are functions in a class that is never made: they have no self.
# pyright: reportSelfClsParameterName=false, reportGeneralTypeIssues=false

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.extension.definition import primitive
from coterie.compute.ir import NDArray


def _fits(part: tuple[int, ...], x: tuple[int, ...]) -> bool:
    """Whether an array of one shape broadcasts to the other."""
    return len(part) <= len(x) and all(own in (1, size) for own, size in zip(part[::-1], x[::-1], strict=False))


@primitive("quant.fake_quantise", inputs=("x", "scale", "zero"), outputs=("y",), attributes={"low": ..., "high": ...})
class fake_quantise:
    """y = scale · (clip(round(x / scale) + zero, low, high) - zero): ``x`` after both ways of quantisation.

    scale, zero: of shapes that broadcast against x, in x's dtype; zero holds whole numbers. low, high: the lowest and
    the highest level. Halves round to even. For float32 the numbers are, bit for bit, those of ONNX's QuantizeLinear
    and DequantizeLinear, and of `quant.Affine.round_trip`.

    The gradient is that of a straight line: it passes where the level lies in low .. high, and is 0 where it is cut off
    (Bengio, Léonard and Courville 2013; Jacob et al. 2018, arXiv 1712.05877). scale and zero get none.
    """

    def infer_shape(
        x: tuple[int, ...], scale: tuple[int, ...], zero: tuple[int, ...], *, low: int, high: int
    ) -> tuple[int, ...]:
        if not (_fits(scale, x) and _fits(zero, x)):
            raise ValueError(f"the scale {list(scale)} and the zero {list(zero)} do not fit {list(x)}")
        return x

    def kernel(x: NDArray, scale: NDArray, zero: NDArray, *, low: int, high: int) -> NDArray:
        levels = np.clip(np.rint(x / scale) + zero, low, high)
        return ((levels - zero) * scale).astype(x.dtype)

    def vjp(
        x: Array, scale: Array, zero: Array, y: Array, told: Array, *, low: int, high: int
    ) -> tuple[Array, None, None]:
        level = xp.round(x / scale) + zero
        inside = xp.logical_and(xp.greater_equal(level, float(low)), xp.less_equal(level, float(high)))
        return told * xp.astype(inside, told.dtype), None, None

    def lower(x: Array, scale: Array, zero: Array, *, low: int, high: int) -> Array:
        levels = xp.clip(xp.round(x / scale) + zero, float(low), float(high))
        return (levels - zero) * scale
