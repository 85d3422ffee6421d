"""What of Python cannot become a graph tells so with its line, and runs on the host (A6)."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportMissingParameterType=false

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import tree
from coterie.compute.array import Array
from coterie.compute.interactive.jit import jit
from coterie.errors import TraceError

POINTS = [np.asarray(point) for point in ([1.0, 2.0], [-1.0, -2.0], [3.0, 0.5], [0.25, 0.5], [6.0, -8.0])]


def leaves(result: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in tree.flatten(result)[0]]


def return_in_with(x):
    with contextlib.nullcontext():
        if x[0] > 0:
            return x
    return -x


def raising(x):
    if x[0] < -50:
        raise ValueError("too small")
    return x


def asserting(x):
    assert cnp.sum(x) > -100, "too small"
    return x


def appending(x):
    out = []
    if x[0] > 0:
        out.append(x)
    return x * len(out)


def item_write(x):
    state = {"x": x}
    if x[0] > 0:
        state["x"] += 1
    return state["x"]


def item_delete(x):
    state = {"x": x, "y": x}
    if x[0] > 0:
        del state["y"]
    return x * len(state)


def value_or_nothing(x):
    for v in x:
        if v > 1:
            return v
    return None


def text_from_loop(x):
    for v in x:
        if v > 1:
            return "found"
    return "none"


def different_functions(x):
    if x[0] > 0:

        def f(v): return v * 2  # fmt: skip
    else:

        def f(v): return v * 3  # fmt: skip

    return f(x)


def builtins_decide(x):
    return max(x[0], x[1])


def starts_with_nothing(x):
    last = None
    for v in x:
        last = v if last is None else last * 0.5 + v
    return last


def number_in_power(x):
    n = 0
    while x[0] > 1:
        x = x / 2
        n = n + 1
    return 2.0**n


def hidden_binding(x):
    y = x if (x[0] > 0 and (_total := cnp.sum(x)) > 2) else -x
    return y


REFUSALS: list[tuple[Callable[..., Any], str, int]] = [
    (return_in_with, "over a return, break or continue inside of with", 2),
    (raising, "over a raise or an assert", 1),
    (asserting, "over an assert", 1),
    (appending, "over a call of 'append' whose result is not used", 2),
    (item_write, "over a write into an attribute or an item", 2),
    (item_delete, "over a write into an attribute or an item", 2),
    (value_or_nothing, "return on a traced array gives something that is no array", 1),
    (text_from_loop, "a return in a loop, decided on a traced array, gives something that is no array", 2),
    (different_functions, "'f' has no value here. In a graph .* no arrays", 8),
    (builtins_decide, "whether it is true cannot be known", 1),
    (starts_with_nothing, "changes 'last', which is no array before it", 2),
    (number_in_power, "the number 2.0 does not fit dtype int32", 5),
    (hidden_binding, "hidden_binding was not rewritten: it binds a name by :=", 1),
]


@pytest.mark.parametrize(("fn", "message", "line"), REFUSALS, ids=[row[0].__name__ for row in REFUSALS])
def test_what_a_graph_cannot_express_names_its_line_and_runs_on_the_host(
    fn: Callable[..., Any], message: str, line: int
) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        jit(fn, fullgraph=True)(POINTS[0])
    first = inspect.getsourcelines(fn)[1]
    assert f"test_frontend_refusals.py:{first + line}: " in str(caught.value)
    assert caught.value.hint
    on_host = jit(fn)
    if fn is not value_or_nothing and fn is not text_from_loop:
        expected = leaves(fn(Array(POINTS[0])))
        for a, b in zip(expected, leaves(on_host(POINTS[0])), strict=True):
            np.testing.assert_array_equal(a, b)
        assert len(on_host.fallbacks) == 1


def wrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def around(*arguments: Any) -> Any:
        return fn(*arguments) * 2

    return around


@wrapped
def decorated(x):
    return x if x[0] > 0 else -x


def without_source() -> Callable[..., Any]:
    scope: dict[str, Any] = {}
    exec("def typed_in(x):\n    if x[0] > 0:\n        return x\n    return -x\n", scope)
    return scope["typed_in"]


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (decorated, "decorated was not rewritten: it is wrapped by a decorator"),
        (without_source(), "typed_in was not rewritten: its source cannot be read"),
        (lambda x: x if x[0] > 0 else -x, "was not rewritten: a lambda"),
    ],
    ids=["decorated", "no source", "lambda"],
)
def test_a_function_that_cannot_be_rewritten_says_why(fn: Callable[..., Any], reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        jit(fn, fullgraph=True)(POINTS[0])
    assert jit(fn)(POINTS[1]).numpy().shape == (2,)
