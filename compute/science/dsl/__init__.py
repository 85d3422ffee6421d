"""Operators written like mathematics: an index notation that becomes array functions.

    i, j, k = axes("i j k")
    A, B, C = tensors("A B C")
    matmul = define(C[i, j], sum_over(k, A[i, k] * B[k, j]))
    softmax = define(C[i, j], exp(A[i, j]) / sum_over(k, exp(A[i, k])))
    convolution = define(C[i], sum_over(k, A[i + k] * B[k]))

What ``define`` gives is a function of arrays: gradients, vmap and export follow from those of the core.
"""

from coterie.compute.science.dsl.expression import (
    axes,
    exp,
    log,
    max_over,
    maximum,
    min_over,
    minimum,
    pointwise,
    sqrt,
    sum_over,
    tanh,
    tensors,
)
from coterie.compute.science.dsl.operator import define

__all__ = [
    "axes",
    "define",
    "exp",
    "log",
    "max_over",
    "maximum",
    "min_over",
    "minimum",
    "pointwise",
    "sqrt",
    "sum_over",
    "tanh",
    "tensors",
]
