"""Functions with a line of Python that no graph can hold, and how they are compared."""

# Functions that are traced are written as their users write them: without types.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from coterie.compute import jit, tree
from coterie.compute import numpy as cnp
from coterie.compute.array import as_array

FACTOR = 3.0


def a_number(x):
    h = cnp.tanh(x)
    scale = float(np.median(h.numpy()))
    return h * scale, scale


def an_item(x):
    top = cnp.max(x * x).item()
    return x / top


def an_item_of_ints(x):
    place = int(cnp.argmax(cnp.tanh(x)[:, 0]).item())
    return cnp.arange(3) + place, x * place


def a_numpy_array(x):
    h = x * 2.0
    order = np.sort(h.numpy(), axis=0)
    return cnp.tanh(order + h) @ h.T


def a_numpy_scalar(x):
    middle = np.median(x.numpy())
    return (x - middle) * 2.0


def a_numpy_double(x):
    middle = np.float64(np.median(x.numpy()))
    return cnp.exp(x) * middle


def lines_that_follow(x):
    h = x + 1.0
    copy = h.numpy().copy()
    copy[0] = 0.0
    copy[1] += 1.0
    total = copy.sum() / 2
    return cnp.sum(h * total), copy


def lines_apart(x):
    low = float(x.min())
    h = cnp.exp(x - low)
    high = float(h.max())
    half = high / 2
    return h * half


def a_tree(x):
    found = {"low": x.numpy().min(), "rest": [float(x.max()), None]}
    return x * found["low"] + found["rest"][0]


def a_return(x):
    h = cnp.tanh(x) @ x.T
    return h, np.linalg.norm(h.numpy())


def a_bool(x):
    big = bool(np.median(x.numpy()) > 0.1)
    if big:
        y = cnp.exp(x)
    else:
        y = x * 3.0
    return y + 1.0


def a_decision(x):
    h = x * 2.0
    if h.numpy().mean() > 0.1 and h.shape[0] == 3:
        return cnp.tanh(h)
    return -h


def a_choice(x):
    h = x * 2.0
    sign = int(np.sign(h.numpy().sum()))
    return cnp.exp(h) if sign > 0 else h


def a_plain_choice(x):
    h = x * 2.0
    up = h.numpy().sum() > 0
    y = cnp.exp(h) if up else h
    return y + x


def a_loop_of_pythons(x):
    total = cnp.zeros((4,))
    for row in range(3):
        weight = float(np.max(x[row].numpy()))
        total = total + cnp.tanh(x[row]) * weight
    return total


def an_update(x):
    total = cnp.sum(x)
    total += x.numpy().std()
    return cnp.exp(x) * total


def a_slice(x):
    h = cnp.tanh(x)
    first = h[: int(x.shape[0] * (h.numpy().max() > -2.0))]
    return first * 2.0


def a_global(x):
    h = cnp.tanh(x)
    scale = h.numpy()[0, 0] * FACTOR
    return h * scale


def helper(h):
    return np.cumsum(h.numpy(), axis=1)


def a_helper(x):
    h = cnp.exp(x)
    sums = helper(h)
    return cnp.tanh(h / sums)


def a_comprehension(x):
    h = cnp.tanh(x)
    parts = [float(row.sum()) for row in h.numpy()]
    return h * parts[0] + parts[1]


def a_keyword(x):
    y, z = x * 2.0, cnp.tanh(x)
    kept = np.where(x.numpy() > 0, y.numpy(), z.numpy())
    return cnp.sum(kept * y), z


def a_with(x):
    h = cnp.tanh(x)
    with np.errstate(all="ignore"):
        logs = np.log(h.numpy())
    return cnp.where(h > 0.0, logs, h)


def an_instance(x):
    scale = float(x.max())
    return x * scale if isinstance(scale, float) else x


@jit
def inner(x):
    scale = float(np.median(x.numpy()))
    return cnp.tanh(x * scale)


def a_compiled_one(x):
    y = inner(x * 2.0)
    return cnp.exp(y) @ y.T


class Scale:
    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x):
        h = cnp.tanh(x)
        top = float(h.max()) * self.by
        return h * top


# What is compiled → how many calls of the host are in it.
COMPILED: dict[Callable[..., Any], int] = {
    a_number: 1,
    an_item: 1,
    an_item_of_ints: 1,
    a_numpy_array: 1,
    a_numpy_scalar: 1,
    a_numpy_double: 1,
    lines_that_follow: 1,
    lines_apart: 2,
    a_tree: 1,
    a_return: 1,
    a_bool: 1,
    a_decision: 1,
    a_choice: 2,
    a_plain_choice: 1,
    a_loop_of_pythons: 3,
    an_update: 1,
    a_slice: 1,
    a_global: 1,
    a_helper: 1,
    a_comprehension: 2,
    a_keyword: 1,
    a_with: 1,
    an_instance: 1,
    a_compiled_one: 1,
    Scale(2.0): 1,
    partial(Scale.__call__, Scale(0.5)): 1,
    Scale(1.5).__call__: 1,
}


def batch(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(3, 4)).astype(np.float32)


def same(found: Any, expected: Any) -> None:
    """Trees of arrays of one structure; the numbers as near as a provider's are."""
    (a, mine), (b, theirs) = tree.flatten(found), tree.flatten(expected)
    assert mine == theirs
    for x, y in zip(map(as_array, a), map(as_array, b), strict=True):
        assert x.type == y.type
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=2e-5, atol=1e-6)


def named(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
