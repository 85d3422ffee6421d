"""Random programs over the array functions: what a user might write, with branches, closures and constants."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array

Step: TypeAlias = tuple[int, int, int]
Program: TypeAlias = Callable[..., tuple[Array, ...]]

# Every function here keeps numbers of moderate size moderate and is continuous, so that chains of them can be compared.
UNARY: list[Callable[[Array], Array]] = [
    cnp.negative,
    cnp.abs,
    cnp.tanh,
    cnp.sin,
    cnp.cos,
    cnp.atan,
    cnp.asinh,
    ops.erf,
    ops.relu,
    ops.sigmoid,
    ops.softplus,
    ops.gelu,
    lambda x: ops.softmax(x, axis=0),
    lambda x: cnp.exp(-cnp.abs(x)),
    lambda x: cnp.log1p(cnp.square(x)),
    lambda x: cnp.sqrt(1.0 + x * x),
    lambda x: (cnp.abs(x) + 1.0) ** 0.3,
    lambda x: cnp.clip(x, -1.0, 1.0),
    lambda x: cnp.where(x > 0.1, x, 0.2 - x),
    lambda x: cnp.cumulative_sum(x, axis=0) / 3.0,
    lambda x: cnp.mean(x, axis=0, keepdims=True) + x,
    lambda x: x - cnp.max(x, axis=-1, keepdims=True),
    lambda x: cnp.sqrt(cnp.var(x, axis=0, keepdims=True) + 0.1) * x,
    lambda x: cnp.matrix_transpose(x),
    lambda x: cnp.reshape(x, (-1, x.shape[0])),
    lambda x: cnp.concat([x, -x], axis=1)[:, : x.shape[1]],
    lambda x: x[::-1],
    lambda x: cnp.roll(x, 1, axis=1),
    lambda x: cnp.tril(x, k=1),
    lambda x: cnp.take(x, cnp.asarray([0, 0, -1]), axis=0),
    lambda x: cnp.pad(x, [(0, 1), (1, 0)], value=0.5)[:-1, 1:],
    lambda x: cnp.einsum("ij,kj->ik", x, x) / 4.0,
    lambda x: cnp.astype(cnp.astype(x > 0, "int32") + 1, "float32") * x,
    lambda x: ops.stop_gradient(x) + x,
]
BINARY: list[Callable[[Array, Array], Array]] = [
    cnp.add,
    cnp.subtract,
    cnp.multiply,
    cnp.maximum,
    cnp.minimum,
    lambda a, b: cnp.hypot(a, 1.0 + b * b),
    lambda a, b: a / (1.0 + b * b),
    lambda a, b: 0.5 * cnp.where(a > b, a, b),
    lambda a, b: (a @ b.T) / 3.0 if a.shape == b.shape else a + b,
]


def _fits(x: Array) -> Array:
    """At most 4 by 4, and bounded."""
    return cnp.tanh(x[:4, :4]) if max(x.shape) > 4 else x


def run(steps: Sequence[Step], arrays: Sequence[Array]) -> list[Array]:
    """Apply the steps, each to values made before; a pair that does not broadcast is passed over."""
    made = list(arrays)
    for which, left, right in steps:
        a, b = made[left % len(made)], made[right % len(made)]
        if which < len(UNARY):
            made.append(_fits(UNARY[which](a)))
        elif all(n == m or 1 in (n, m) for n, m in zip(a.shape, b.shape, strict=True)):
            made.append(_fits(BINARY[which - len(UNARY)](a, b)))
    return made


def steps() -> st.SearchStrategy[list[Step]]:
    place = st.integers(0, 99)
    return st.lists(st.tuples(st.integers(0, len(UNARY) + len(BINARY) - 1), place, place), min_size=1, max_size=8)


def operands(seed: int = 0) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in ((3, 4), (3, 4), (1, 4), (3, 1))]
