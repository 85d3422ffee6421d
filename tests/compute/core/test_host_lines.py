"""A line of Python that no graph can hold is called on the host; the lines around it are compiled."""

# Functions that are traced are written as their users write them: without types.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownLambdaType=false

import inspect
import linecache
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from coterie.compute import grad, jit
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.interactive import pieces
from coterie.compute.interactive.autojit import autojit
from coterie.compute.interactive.frontend.rewrite import rewrite
from coterie.compute.interactive.witness import Witness
from coterie.compute.passes import optimise
from coterie.compute.trace import trace_flat
from tests.compute.core.host_lines import COMPILED, a_number, batch, lines_apart, named, same


@pytest.mark.capability("D4")
@pytest.mark.parametrize("fn", COMPILED, ids=named)
def test_what_is_compiled_is_what_python_does(fn: Callable[..., Any]) -> None:
    compiled = jit(fn)
    for seed in range(6):
        same(compiled(batch(seed)), fn(Array(batch(seed))))
    assert (compiled.compilations, compiled.fallbacks) == (1, ())
    assert len(compiled.host_calls) >= 1
    assert all("host_lines.py:" in call and "a line of Python" in call for call in compiled.host_calls)


@pytest.mark.capability("D4")
def test_the_lines_around_a_line_of_python_are_sessions() -> None:
    line = inspect.getsourcelines(lines_apart)[1]
    hosted = rewrite(lines_apart, {(line + offset, 4) for offset in (1, 3, 4)})
    traced = trace_flat(hosted, (batch(1),), (), Witness([batch(1)]))
    made = pieces.program(optimise(traced.graph), name="lines")
    assert [type(part).__name__ for part in made.parts] == ["_HostCall", "_Piece", "_HostCall", "_Piece"]


def test_what_is_printed_is_printed_once_a_call_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    def fn(x):
        h = cnp.tanh(x)
        print("first", float(h.sum()))
        y = np.sort(h.numpy())
        print("second", y[0, 0])
        top = float(h.max())
        print("third", top)
        return h + y

    compiled, told = jit(fn), list[str]()
    for seed in range(3):
        fn(Array(batch(seed)))
        told.append(capsys.readouterr().out)
    for expected, seed in zip(told, range(3), strict=True):
        compiled(batch(seed))
        found = capsys.readouterr().out
        words, theirs = found.split(), expected.split()
        assert words[::2] == theirs[::2] == ["first", "second", "third"]
        np.testing.assert_allclose([*map(float, words[1::2])], [*map(float, theirs[1::2])], rtol=1e-5)
    assert compiled.compilations == 1 and len(compiled.host_calls) == 5


def test_a_gradient_inside_goes_by_what_a_line_gives_as_by_a_constant() -> None:
    def step(w, x):
        scale = float(np.median(x.numpy()))
        y = np.sort(x.numpy())
        return grad(lambda w: cnp.sum(cnp.square(x @ w) * scale + y @ w))(w)

    compiled = jit(step)
    for seed in range(3):
        w = batch(9).T[:, :1]
        same(compiled(w, batch(seed)), step(Array(w), Array(batch(seed))))
    assert (compiled.compilations, compiled.fallbacks, len(compiled.host_calls)) == (1, (), 1)


def test_a_line_of_python_reads_what_stands_around_it_anew_in_every_call() -> None:
    factor = 1.0

    def fn(x):
        h = cnp.tanh(x)
        y = h.numpy() * factor
        return h + y

    compiled = jit(fn)
    for factor in (1.0, 2.0, 3.0):  # noqa: B007  read by fn
        same(compiled(batch(1)), fn(Array(batch(1))))
    assert (compiled.compilations, compiled.fallbacks, len(compiled.host_calls)) == (1, (), 1)


def test_a_new_signature_and_autojit_have_lines_of_their_own() -> None:
    def fn(x, k=1):
        h = cnp.tanh(x)
        return h, float(h.max()) * k

    for made in (jit(fn), autojit(fn, after=1)):
        for x, k in ((batch(1), 1), (batch(2), 1), (batch(3)[:1], 1), (batch(4), 2), (batch(5), 2)):
            same(made(x, k), fn(Array(x), k))
    compiled = jit(fn)
    for x, k in ((batch(1), 1), (batch(3)[:1], 1), (batch(4), 2)):
        compiled(x, k)
    assert compiled.compilations == 3


def test_unrolled_graphs_have_lines_of_python_too() -> None:
    compiled = jit(a_number, unroll=True)
    same(compiled(batch(1)), a_number(Array(batch(1))))
    assert compiled.compilations == 1 and len(compiled.host_calls) == 1


# Statements on four variables: arrays of coterie (a, b) and what NumPy or Python makes of them (m, n).
STATEMENTS = [
    "a = cnp.tanh(a + b)",
    "b = a * n",
    "b = cnp.exp(-cnp.abs(b)) + a * 0.5",
    "m = np.sort(a.numpy(), axis=0)",
    "m = b.numpy() * 0.5",
    "m = m + 1.0",
    "m = m.copy(); m[0] = n",
    "a = a + m",
    "a = cnp.where(b > 0.0, a, m)",
    "n = float(np.median(b.numpy()))",
    "n = n / 2 + 0.25",
    "n = float(m.sum()) / 12",
    "n = b.mean().item()",
    "b = b @ a.T @ m",
    "a, m = b, np.tanh(m)",
    "if n > 0.1: b = -a",
    "if m[0, 0] > 0.0: a = b + 1.0",
    "for row in range(2): a = a + b[row] * n",
]


@pytest.mark.parametrize("seed", range(24))
def test_any_order_of_lines_is_what_python_does(seed: int) -> None:
    random = Random(seed)
    lines = ["    m, n = x.numpy(), 1.0", "    a, b = x, x * 2.0"]
    lines += [f"    {random.choice(STATEMENTS)}" for _ in range(random.randint(3, 9))]
    source = "\n".join(["def program(x):", *lines, "    return a, b * 1.0, m, n", ""])
    file = f"<lines of seed {seed}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"np": np, "cnp": cnp}
    exec(compile(source, file, "exec"), scope)
    program: Callable[..., Any] = scope["program"]
    compiled = jit(program)
    for point in range(3):
        x = batch(point) / 2
        same(compiled(x), program(Array(x)))
    assert (compiled.compilations, compiled.fallbacks) == (1, ()), source
