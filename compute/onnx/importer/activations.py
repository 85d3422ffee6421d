"""Activation functions with numbers of their own, alpha and beta: of nodes, and inside recurrent layers."""

from coterie.compute import numpy as cnp
from coterie.compute.array import Array


def elu(x: Array, alpha: float) -> Array:
    """x where it is above 0, alpha (exp(x) - 1) elsewhere."""
    return cnp.maximum(x, 0.0) + alpha * (cnp.exp(cnp.minimum(x, 0.0)) - 1.0)


def hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    """alpha x + beta between 0 and 1."""
    return cnp.clip(x * alpha + beta, 0.0, 1.0)


def leaky(x: Array, slope: Array | float) -> Array:
    """x where it is above 0, slope x elsewhere."""
    return cnp.maximum(x, 0.0) + cnp.minimum(x, 0.0) * slope


def softsign(x: Array) -> Array:
    """x / (1 + |x|)."""
    return x / (1.0 + cnp.abs(x))


def thresholded(x: Array, alpha: float) -> Array:
    """x where it is above alpha, 0 elsewhere."""
    return cnp.where(x > alpha, x, cnp.zeros_like(x))
