"""A line of Python that cannot be a call of the host leaves its function to Python, which says why."""

# Functions that are traced are written as their users write them: without types.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownLambdaType=false

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from coterie.compute import grad, jit, tree, vmap
from coterie.compute import numpy as cnp
from coterie.compute.array import Array, as_array
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.trace import TensorSpec, trace
from coterie.errors import TraceError
from tests.compute.core.host_lines import a_number, a_numpy_array, a_return, batch, helper, named, same


def of_another_shape(x):
    h = cnp.tanh(x)
    positive = h.numpy()[h.numpy() > 0]
    return cnp.exp(h), cnp.sum(as_array(positive))


def of_another_dtype(x):
    h = cnp.tanh(x)
    found = np.float32(1.0) if h.numpy()[0, 0] > 0 else np.float64(2.0)
    return h * found


def of_another_kind(x):
    h = cnp.tanh(x)
    found = [1.0] if h.numpy()[0, 0] > 0 else (2.0,)
    return h * found[0]


@pytest.mark.capability("D4")
@pytest.mark.parametrize("fn", [of_another_shape, of_another_dtype, of_another_kind], ids=named)
def test_a_line_that_gives_another_type_leaves_the_whole_function_to_the_host(fn: Callable[..., Any]) -> None:
    compiled = jit(fn)
    for seed in range(8):
        same(compiled(batch(seed)), fn(Array(batch(seed))))
    line = inspect.getsourcelines(fn)[1] + 2
    (reason,) = compiled.fallbacks
    assert compiled.compilations == 0 and f"test_host_line_refusals.py:{line}: this line of Python gives" in reason


def test_a_line_that_fails_fails_as_it_does_uncompiled_and_goes_on_afterwards() -> None:
    def fn(x):
        h = x * 2.0
        kept = dict(enumerate(h.numpy()[0].tolist()))[int(h[0, 0])]
        return h * kept

    compiled, good, bad = jit(fn), np.full((2, 4), 0.5, np.float32), np.full((2, 4), 50.0, np.float32)
    for x in (good, bad, good):
        if x is bad:
            with pytest.raises(KeyError, match="100"):
                compiled(x)
        else:
            same(compiled(x), fn(Array(x)))
    assert (compiled.compilations, compiled.fallbacks) == (1, ())
    compiled = jit(fn)
    with pytest.raises(KeyError, match="100"):  # also where that is the first call
        compiled(bad)
    assert "KeyError" in compiled.fallbacks[0]


KEPT: list[Any] = []


def a_write(x):
    h = cnp.tanh(x)
    KEPT.append(float(h.sum()))
    return h


def an_item_write(x):
    h = cnp.tanh(x)
    found = {}
    found["top"] = float(h.max())
    return h * found["top"]


def in_a_choice(x):
    h = cnp.tanh(x)
    if cnp.sum(h) > 0.0:
        h = h * float(np.median(h.numpy()))
    return h


def in_a_loop(x):
    h = cnp.tanh(x)
    while cnp.sum(h) > 0.01:
        h = h * float(np.minimum(h.numpy().max(), 0.5)) - 0.1
    return h


def a_loop_that_asks(x):
    h = cnp.tanh(x)
    while h.numpy().max() > 0.1:
        h = h * 0.5
    return h


def a_text(x):
    h = cnp.tanh(x)
    name = "up" if h.numpy().sum() > 0 else "down"
    return h if name == "up" else -h


def a_change_of_what_is_given(x):
    h, found = cnp.tanh(x), [1.0]
    y = changing(h, found)
    return y * found[0]


def changing(h, found):
    found[0] = float(h.numpy().max())
    return h


def a_draw(x):
    h = cnp.tanh(x)
    y = h.numpy() + np.random.normal(size=h.shape).astype(np.float32)
    return h * y


def a_loop_of_a_length_that_is_read(x):
    h = cnp.tanh(x)
    steps = int(abs(x.numpy().sum())) + 1
    for _ in range(steps):
        h = h * 0.5 + 1.0
    return h


def a_number_by_a_choice(x):
    h = cnp.tanh(x)
    up = h.numpy().sum() > 0
    if up:
        factor = 0.1
    else:
        factor = 0.2
    return h * factor


def a_break(x):
    h = cnp.tanh(x)
    for _ in range(3):
        h = h * 0.5
        if float(h.max()) < 0.3:
            break
    return h


def in_a_try(x):
    try:
        h = x * float(x.max())
    except ValueError:
        h = x
    return cnp.tanh(h)


def of_a_closure(x):
    factor = 1.0

    def scaled(h):
        return float(h.numpy().sum()) * factor

    first = scaled(x)
    factor = 2.0
    return cnp.tanh(x) * first


def of_a_buffer(x):
    buffer = np.zeros(1)
    first = float(x.sum()) + buffer[0]
    buffer[0] = 1.0
    return cnp.tanh(x) * first


def of_its_argument(x):
    taken = x.numpy()
    taken += 1.0
    return cnp.tanh(x) * taken.sum()


class Held:
    by = 1.0


def of_an_object(x):
    held = Held()
    first = float(x.sum()) * held.by
    held.by = 2.0
    return cnp.tanh(x) * first


AROUND = [1.0]


def of_a_global(x):
    AROUND[0] = 1.0
    first = float(x.sum()) * AROUND[0]
    AROUND[0] = 2.0
    return cnp.tanh(x) * first


def in_a_with_that_hides(x):
    found = 1.0
    with suppress(ValueError):
        found = float("none" if x.numpy().sum() > 0.0 else "3")
    return cnp.tanh(x) * found


def in_a_with_that_prints(x):
    h = cnp.tanh(x)
    with np.printoptions(precision=2):
        print(h.numpy())
    return h


# What cannot be a call of the host → the line that says so, counted from that of its def, and why.
KEEPING: dict[Callable[..., Any], tuple[int, str]] = {
    a_write: (2, "gives no name a value"),
    an_item_write: (3, "a write into an attribute or an item"),
    in_a_choice: (3, "in a branch, a loop or a gradient"),
    in_a_loop: (3, "in a branch, a loop or a gradient"),
    a_loop_that_asks: (2, "being traced"),
    a_text: (2, "gives a str"),
    a_change_of_what_is_given: (2, "changes a list or a dict"),
    a_draw: (2, "random numbers"),
    in_a_try: (2, "being traced"),
    a_loop_of_a_length_that_is_read: (3, "int that a line of Python gives"),
    a_number_by_a_choice: (3, "'factor' a number of Python's"),
    a_break: (4, "a number of Python's"),
    of_a_closure: (4, "changed by it, or later"),
    of_a_buffer: (2, "changed by it, or later"),
    of_its_argument: (1, "read-only"),
    of_an_object: (2, "changed by it, or later"),
    of_a_global: (2, "changed by it, or later"),
    in_a_with_that_hides: (3, "cannot access local variable"),
    in_a_with_that_prints: (3, "does more than giving names values"),
}


@pytest.mark.capability("D4")
@pytest.mark.parametrize("fn", KEEPING, ids=named)
def test_what_cannot_be_a_call_of_the_host_is_left_to_it_as_a_whole_and_says_why(fn: Callable[..., Any]) -> None:
    compiled = jit(fn)
    for seed in range(3):
        KEPT.clear()
        np.random.seed(seed)
        expected, told = fn(Array(batch(seed))), list(KEPT)
        KEPT.clear()
        np.random.seed(seed)
        same(compiled(batch(seed)), expected)
        assert told == KEPT
    (reason,) = compiled.fallbacks
    offset, why = KEEPING[fn]
    assert compiled.compilations == 0
    assert f"test_host_line_refusals.py:{inspect.getsourcelines(fn)[1] + offset}:" in reason and why in reason, reason


@pytest.mark.parametrize("fn", [a_number, a_numpy_array, a_return], ids=named)
def test_gradients_maps_whole_graphs_and_exports_refuse_the_line(fn: Callable[..., Any]) -> None:
    line = r"host_lines\.py:\d+: float32\[.*being traced"
    total = lambda x: cnp.sum(tree.flatten(jit(fn)(x))[0][0])  # noqa: E731
    for act in (
        lambda: grad(total)(Array(batch(1))),
        lambda: jit(grad(total))(Array(batch(1))),
        lambda: vmap(jit(fn))(Array(np.stack([batch(1), batch(2)]))),
        lambda: jit(fn, fullgraph=True)(batch(1)),
        lambda: jit(fn).export(TensorSpec((3, 4))),
        lambda: to_onnx(trace(lambda x: {"y": jit(fn)(x)}, batch(1)).graph, name="export"),
    ):
        with pytest.raises(TraceError, match=line):
            act()


def test_a_function_whose_only_line_is_one_has_nothing_to_compile() -> None:
    compiled = jit(helper)
    same(compiled(batch(1)), helper(Array(batch(1))))
    assert compiled.compilations == 0 and "so its numbers cannot be known here" in compiled.fallbacks[0]
    assert "Nothing else is left to compile." in compiled.fallbacks[0]
