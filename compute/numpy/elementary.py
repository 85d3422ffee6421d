"""Elementary functions of floats: powers, logarithms, trigonometric and hyperbolic functions.

What is not a primitive is composed so that it neither cancels nor overflows inside its range, and so that gradients of
every order are those of the function.
"""

from math import log as ln
from math import pi

import numpy as np

from coterie.compute.array_type import Array, ArrayLike, as_array, bind, promote, refuse
from coterie.compute.numpy.elementwise import abs, divide, exp, log, logical_and, signbit, sqrt, where
from coterie.compute.primitives import rules
from coterie.compute.source import operation
from coterie.errors import DTypeError


def _float(name: str, x: ArrayLike) -> Array:
    array = as_array(x)
    if not array.type.is_float:
        refuse(DTypeError, name, (array,), "the operand must be a float.", 'Convert it with astype(x, "float32").')
    return array


def _floats(name: str, a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    left, right = promote(name, a, b)
    return _float(name, left), _float(name, right)


@operation
def pow(x: ArrayLike, exponent: ArrayLike) -> Array:
    """x to a power. A static integer is a product, a static 0.5 a square root; everything else is the real power.

    Real powers of x < 0 exist for whole exponents (whole floats too) and are NaN elsewhere. The gradient of the
    exponent is 0 at x = 0, and NaN at x < 0, where the power exists at single points only. Integers have
    powers >= 0: a negative one is an error. Where the exponents are data of a compiled graph, ONNX Runtime computes in
    double precision: there a negative one gives 0, 1 or -1 without an error, and powers beyond 2 ** 53, or beyond the
    dtype, are not exact.
    """
    if isinstance(exponent, (int, float)) and not isinstance(x, (int, float)):
        base = as_array(x)
        if base.type.dtype == "bool" or isinstance(exponent, bool):
            refuse(DTypeError, "pow", (base,), "powers of bool.", 'Convert it with astype(x, "int32").')
        if not base.type.is_float and isinstance(exponent, int) and exponent < 0:
            reason = f"an integer to the power {exponent} is no integer."
            refuse(DTypeError, "pow", (base,), reason, 'Convert the base with astype(x, "float32").')
        whole = float(exponent).is_integer() if base.type.is_float else isinstance(exponent, int)
        if whole and -64 <= exponent <= 64:
            return _integer_power(base, int(exponent))
        if exponent == 0.5:
            return sqrt(base)
    base, power = promote("pow", x, exponent)
    if base.type.dtype == "uint8":
        return rules.cast(bind("power", rules.cast(base, "int32"), rules.cast(power, "int32")), "uint8")
    return bind("power", base, power)


def _integer_power(x: Array, exponent: int) -> Array:
    if exponent < 0:
        return divide(1.0, _integer_power(x, -exponent))
    result: Array | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        x = x * x if exponent else x
    return bind("broadcast_to", rules.number(1, x), shape=x.shape) if result is None else result


@operation
def expm1(x: ArrayLike) -> Array:
    """exp(x) - 1, accurate for small x."""
    array = _float("expm1", x)
    # tanh(x / 2) (exp(x) + 1) near 0 alone: beyond, its derivative cancels, and is 0 * inf where exp overflows.
    far = bind("greater", abs(array), rules.number(1, array))
    near = where(far, rules.number(0, array), array)
    return where(far, exp(array) - 1.0, bind("tanh", 0.5 * near) * (exp(near) + 1.0))


@operation
def log1p(x: ArrayLike) -> Array:
    """log(1 + x), accurate for small x."""
    return bind("log1p", _float("log1p", x))


@operation
def log2(x: ArrayLike) -> Array:
    """The logarithm to base 2."""
    return log(_float("log2", x)) / ln(2.0)


@operation
def log10(x: ArrayLike) -> Array:
    """The logarithm to base 10."""
    return log(_float("log10", x)) / ln(10.0)


@operation
def logaddexp(a: ArrayLike, b: ArrayLike) -> Array:
    """log(exp(a) + exp(b)), without overflow."""
    left, right = _floats("logaddexp", a, b)
    same = logical_and(bind("equal", left, right), bind("equal", abs(left), rules.number(np.inf, left)))
    apart = where(same, rules.number(0, left), right - left)
    above = bind("greater", left, right)
    return where(above, left + bind("softplus", apart), right + bind("softplus", bind("negative", apart)))


@operation
def sin(x: ArrayLike) -> Array:
    """The sine of an angle in radians."""
    return bind("sin", _float("sin", x))


@operation
def cos(x: ArrayLike) -> Array:
    """The cosine of an angle in radians."""
    return bind("cos", _float("cos", x))


@operation
def tan(x: ArrayLike) -> Array:
    """The tangent of an angle in radians."""
    array = _float("tan", x)
    return bind("sin", array) / bind("cos", array)


@operation
def asin(x: ArrayLike) -> Array:
    """The angle between -pi/2 and pi/2 with this sine; NaN outside [-1, 1]."""
    array = _float("asin", x)
    return 2.0 * bind("atan", array / (1.0 + sqrt((1.0 - array) * (1.0 + array))))


@operation
def acos(x: ArrayLike) -> Array:
    """The angle between 0 and pi with this cosine; NaN outside [-1, 1]."""
    array = _float("acos", x)
    return 2.0 * bind("atan", sqrt(1.0 - array) / sqrt(1.0 + array))


@operation
def atan(x: ArrayLike) -> Array:
    """The angle between -pi/2 and pi/2 with this tangent."""
    return bind("atan", _float("atan", x))


@operation
def atan2(y: ArrayLike, x: ArrayLike) -> Array:
    """The angle between -pi and pi of the point (x, y), with the signs of zeros and of infinities."""
    rise, run = _floats("atan2", y, x)
    zero, one = rules.number(0, run), rules.number(1, run)
    behind = signbit(run)
    up = where(signbit(rise), rules.number(-1, run), one)
    # Two infinities have the angle of two ones.
    far = bind("equal", bind("minimum", abs(rise), abs(run)), rules.number(np.inf, run))
    rise, run = where(far, up, rise), where(far, where(behind, rules.number(-1, run), one), run)
    # The angle to the nearer axis, so that the quotient is at most 1.
    steep = bind("greater", abs(rise), abs(run))
    above, below = where(steep, run, rise), where(steep, rise, run)
    angle = bind("atan", above / where(bind("equal", below, zero), one, below))
    left = up * where(behind, rules.number(pi, run), zero)  # -0 below, which -0 of the angle stays beside
    return where(steep, pi / 2 * up - angle, left + angle)


@operation
def hypot(x: ArrayLike, y: ArrayLike) -> Array:
    """sqrt(x² + y²), without overflow."""
    a, b = _floats("hypot", x, y)
    # The scale cancels, so no gradient passes through it.
    larger = bind("stop_gradient", bind("maximum", abs(a), abs(b)))
    scale = where(bind("equal", larger, rules.number(0, larger)), rules.number(1, larger), larger)
    scale = bind("minimum", scale, rules.number(float(np.finfo(a.dtype).max), scale))
    a, b = a / scale, b / scale
    return scale * sqrt(a * a + b * b)


@operation
def sinh(x: ArrayLike) -> Array:
    """The hyperbolic sine."""
    array = _float("sinh", x)
    return 0.5 * (expm1(array) - expm1(bind("negative", array)))


@operation
def cosh(x: ArrayLike) -> Array:
    """The hyperbolic cosine."""
    array = _float("cosh", x)
    return 0.5 * (exp(array) + exp(bind("negative", array)))


@operation
def asinh(x: ArrayLike) -> Array:
    """The inverse of sinh."""
    array = _float("asinh", x)
    below = bind("greater", rules.number(0, array), array)
    size = where(below, bind("negative", array), array)  # |x|, with the derivative 1 at 0
    finite = bind("minimum", size, rules.number(float(np.finfo(array.dtype).max), size))  # inf / inf is no number
    result = log1p(size * (1.0 + finite / (1.0 + hypot(finite, rules.number(1, array)))))  # a product keeps -0
    return where(below, bind("negative", result), result)


@operation
def acosh(x: ArrayLike) -> Array:
    """The inverse of cosh on [1, inf); NaN below 1."""
    above = _float("acosh", x) - 1.0
    return log1p(above + sqrt(above) * sqrt(above + 2.0))


@operation
def atanh(x: ArrayLike) -> Array:
    """The inverse of tanh; NaN outside [-1, 1]."""
    array = _float("atanh", x)
    return 0.5 * (log1p(array) - log1p(bind("negative", array)))
