"""Inverse roots of symmetric positive matrices by products alone."""

from coterie.compute import numpy as xp
from coterie.compute.array import Array

# Each step multiplies the smallest eigenvalue by at least 2.2; 24 of them, and a few that converge quadratically,
# reach a condition of 1e6.
_STEPS = 24


def inverse_root(matrix: Array, power: int) -> Array:
    """matrix^(-1/power), [n, n], for a symmetric positive definite matrix of condition at most about 1e6.

    The coupled Newton iteration (Guo and Higham 2006): X ← X T and M ← T^p M with T = ((p + 1) I - M) / p, from M a
    multiple of the matrix and X one of I, keeps X^p a multiple of M's share while M goes to I. Products only, so it
    runs wherever a product does; the trace bounds the largest eigenvalue.
    """
    identity = xp.eye(matrix.shape[0])
    # With every eigenvalue of M in (0, 1] the iteration is monotone.
    bound = xp.sum(matrix * identity, keepdims=True)
    m = matrix / bound
    x = identity
    for _ in range(_STEPS):
        t = ((power + 1) * identity - m) * (1 / power)
        x = x @ t
        for _ in range(_doublings(power)):
            t = t @ t
        m = t @ m
    return x * _root(bound, power)


def _doublings(power: int) -> int:
    return power.bit_length() - 1


def _root(number: Array, power: int) -> Array:
    """number^(-1/power) for a power of two."""
    for _ in range(_doublings(power)):
        number = xp.sqrt(number)
    return 1 / number
