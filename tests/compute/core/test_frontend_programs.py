"""More of Python under jit: what becomes a graph does what Python does (A6)."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportMissingParameterType=false

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import tree
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.batching import vmap
from coterie.compute.interactive.frontend.rewrite import rewrite
from coterie.compute.interactive.jit import jit

POINTS = [np.asarray(point) for point in ([1.0, 2.0], [-1.0, -2.0], [3.0, 0.5], [0.25, 0.5], [6.0, -8.0])]


def return_in_while(x):
    while cnp.sum(x) < 20:
        x = x + 1
        if x[0] > 3:
            return x * 10
    return -x


def return_in_for(x):
    for v in x:
        if v > 1.5:
            return v * 10
    return x[0]


def return_in_range(x):
    total = x[0] * 0
    for i in range(4):
        total = total + x[0] * i
        if total > 3:
            return total
    return -total


def return_from_endless(x):
    while True:
        x = x * 1.5 + 0.5
        if cnp.sum(x * x) > 50:
            return x


def return_from_nested_loops(x):
    for i in range(3):
        for v in x:
            if v + i > 2:
                return v * 10 + i
    return x[0]


def returns_of_trees(x):
    for v in x:
        if v > 1:
            return {"found": v, "pair": (v, 1)}
        if v < -1:
            return {"found": -v, "pair": (v, 2)}
    return {"found": x[0], "pair": (x[1], 0)}


def while_else(x):
    n = 0
    while cnp.sum(x) < 10:
        x = x + 1
        n = n + 1
        if x[0] > 2.5:
            break
    else:
        x = -x
    return x, n


def for_else(x):
    y = x[0]
    for v in x:
        if v > 1:
            y = v
            break
    else:
        y = y - 1
    return y


def return_and_else(x):
    for v in x:
        if v > 2:
            return v
        if v < -1.5:
            break
    else:
        x = x + 100
    return x[0]


def positions(x):
    for i in range(x.shape[0]):
        if x[i] > 1:
            return i
    return -1


def return_from_traced_range(x):
    steps = cnp.astype(cnp.abs(x[1]) * 3, "int32")
    total = x[0] * 0
    for i in range(steps):
        total = total + x[0]
        if total > 2:
            return total, i
    return -total, -1


def traced_range_else(x):
    steps = cnp.astype(cnp.abs(x[1]) * 3, "int32")
    total = x[0] * 0
    for _ in range(steps):
        total = total + x[0]
        if total > 2:
            break
    else:
        total = total - 100
    return total


def return_from_inner_while(x):
    while x[0] < 10:
        y = x[1]
        while y < 3:
            y = y + 1
            if x[0] + y > 5:
                return x[0] * y
        x = x + 1
    return -x[0]


def return_and_continue(x):
    total = 0.0
    for v in x:
        if v < 0:
            continue
        total = total + v
        if total > 3:
            return total
    return -total


def chains(x):
    if 0 < x[0] < x[1] < 5:
        return x
    return x * 2 if -3 < cnp.sum(x) <= 3.5 else -x


def bound_in_tests(x):
    if (total := cnp.sum(x)) > 2:
        x = x * total
    while (total := cnp.sum(x)) < 10:
        x = x + total * total + 1
    return x, total


def deleted(x):
    y = x * 2
    del x
    if y[0] > 0:
        y = y + 1
    return y


def in_try(x):
    try:
        if x[0] > 0:
            y = x
        else:
            y = -x
    except ZeroDivisionError:
        y = x
    finally:
        z = 1
    return y + z


def in_with(x):
    with contextlib.nullcontext(2.0) as factor:
        y = x * factor if x[0] > 0 else x
    return y


def in_match(x):
    match x.ndim:
        case 1:
            y = x if x[0] > 0 else -x
        case _:
            y = x
    return y


def numbers(x):
    n = 0
    flag = False
    if x[0] > 0:
        n = 1.5
        flag = True
    m = 1 if x[1] > 0 else x[0]
    return x * n + m, flag


def comprehensions(x):
    rows = [v * 2 if v > 0 else -v for v in x]
    named = {str(i): (v if v > 1 else v * 3) for i, v in enumerate(rows)}
    return named, sum(v for v in rows)


def collecting(x):
    out = []
    for i in range(3):
        v = x * i if x[0] > 0 else -x * i
        out.append(v)
    return out


def collecting_rows(x):
    out = []
    for v in x:
        out.append(v * 2)
    return out


def local_functions(x):
    def fact(v, n):
        if n == 0:
            return v
        return fact(v * 2 if v > 0 else v - 1, n - 1)

    absolute = lambda v: v if v > 0 else -v  # noqa: E731
    return fact(x[0], 3) + absolute(x[1])


def counted_outside() -> Callable[..., Any]:
    count = 0

    def inner(x):
        nonlocal count
        count += 1
        if x[0] > 0:
            return x
        return -x

    return inner


class Model:
    scale = 2.0

    def doubled(self, x):
        return x * self.scale

    def method(self, x):
        if x[0] > 0:
            return self.doubled(x)
        return -x

    def __call__(self, x):
        return self.method(x) if x[0] > 0 else x

    @staticmethod
    def static(x):
        return x if x[0] > 0 else -x

    @classmethod
    def of_class(cls, x):
        if x[0] > 0:
            return x * cls.scale
        return -x


class Child(Model):
    def method(self, x):
        if x[1] > 0:
            x = super().doubled(x)
        return x


def scaled(scale, x):
    return x * scale if x[0] > 0 else x


def nothing(x):
    if x[0] > 0:
        return None
    return None


FUNCTIONS = (
    return_in_while, return_in_for, return_in_range, return_from_endless, return_from_nested_loops, returns_of_trees,
    positions, return_from_traced_range, traced_range_else, return_from_inner_while, return_and_continue, while_else,
    for_else, return_and_else, chains, bound_in_tests, deleted, in_try, in_with, in_match, numbers,
    comprehensions, collecting, collecting_rows, local_functions, nothing,
)  # fmt: skip
CALLABLES: dict[str, Callable[..., Any]] = {
    **{fn.__name__: fn for fn in FUNCTIONS},
    "nonlocal": counted_outside(),
    "method": Model().method,
    "static method": Model.static,
    "class method": Model.of_class,
    "super": Child().method,
    "partial": functools.partial(scaled, 3.0),
}


def leaves(result: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in tree.flatten(result)[0]]


@pytest.mark.capability("A6", "D6")
@pytest.mark.parametrize("name", CALLABLES)
def test_a_program_under_jit_does_what_python_does(name: str) -> None:
    fn = CALLABLES[name]
    compiled = jit(fn, fullgraph=True)
    for point in POINTS:
        expected, found = leaves(fn(Array(point))), leaves(compiled(point))
        assert len(expected) == len(found)
        for a, b in zip(expected, found, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(b.astype(float), a.astype(float), rtol=1e-5)
    assert compiled.compilations == 1


def test_an_object_that_can_be_called_is_rewritten_too() -> None:
    model = Model()
    for point in POINTS:
        np.testing.assert_allclose(rewrite(model)(Array(point)).numpy(), model(Array(point)).numpy())
    assert jit(lambda x: rewrite(model.method)(x), fullgraph=True)(POINTS[1]).numpy().tolist() == [1.0, 2.0]


@pytest.mark.parametrize("fn", [return_in_while, return_in_for, return_from_endless, while_else, return_and_else])
def test_gradients_and_examples_pass_through_returns_in_loops(fn: Callable[..., Any]) -> None:
    def scalar(x: Array) -> Array:
        return cnp.sum(tree.flatten(jit(fn)(x))[0][0])

    for point in (point + 0.01 for point in POINTS):  # not where a decision changes
        told = jit(grad(scalar))(point).numpy()
        for i, direction in enumerate(np.eye(2)):
            ends = [np.sum(leaves(fn(Array(point + sign * 1e-6 * direction)))[0]) for sign in (1, -1)]
            assert told[i] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-5)
    mapped = vmap(scalar)(Array(np.stack(POINTS))).numpy()
    np.testing.assert_allclose(mapped, [np.sum(leaves(fn(Array(point)))[0]) for point in POINTS])
