"""Functions of one number without the operators for them."""

from coterie.compute.array import Array, bind
from coterie.compute.passes.site import Site
from coterie.compute.primitives import rules

# How many square roots bring every positive number of a dtype near 1, and how many steps of Halley's method follow.
_ROOTS = {"float16": (5, 1), "float32": (8, 1), "float64": (11, 2)}
# Large enough that the smallest positive number times the square of it is above 1, and itself a number of that dtype.
_LARGE = {"float16": 1e4, "float32": 1e25, "float64": 1e200}


def at_most_one(x: Array) -> Array:
    """1 for every positive number, 0 for 0."""
    large, one = rules.number(_LARGE[x.type.dtype], x), rules.number(1.0, x)
    # Cut off in between too: some providers would make one infinite factor of both, and NaN of 0.
    return bind("minimum", bind("minimum", x * large, one) * large, one)


def softplus(site: Site) -> Array:
    """max(x, 0) + log(1 + exp(-|x|))."""
    (x,) = site.inputs
    tail = bind("log", 1.0 + bind("exp", -bind("maximum", x, -x)))
    return bind("relu", x) + tail


def logarithm(site: Site) -> Array:
    """The logarithm from roots and exponentials, for providers that have no Log.

    log x = 2^k log t with t = x^(1/2^k) near 1, whose logarithm is 2 artanh((t - 1) / (t + 1)). Halley's method on
    exp(y) = x, with the exponential split in halves so that it cannot overflow, takes away the rounding error that the
    power of two enlarged. The error is a few units in the last place of max(1, |log x|). 0 gives -inf, a negative
    number NaN; an infinite operand gives NaN.
    """
    (x,) = site.inputs
    roots, steps = _ROOTS[x.type.dtype]
    one = rules.number(1.0, x)
    zero = one - at_most_one(bind("sqrt", x))  # 1 where x is 0; a negative x is NaN from here on
    positive = x + zero
    t = positive
    for _ in range(roots):
        t = bind("sqrt", t)
    u = (t - one) / (t + one)
    square = u * u
    y = float(2 ** (roots + 1)) * u * (one + square * (rules.number(1 / 3, x) + 0.2 * square))
    for _ in range(steps):
        half = bind("exp", 0.5 * y)
        other = positive / half
        y = y + 2.0 * (other - half) / (other + half)
    return y + (one - one / (one - zero))
