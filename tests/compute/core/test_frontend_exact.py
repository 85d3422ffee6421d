"""Programs that do more than choose between numbers: under jit they end as in Python, or say why they are no graph
(A6, D5). Everything that a program changes besides its result is compared too.
"""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportPossiblyUnboundVariable=false, reportConstantRedefinition=false, reportUnusedExpression=false
# pyright: reportUndefinedVariable=false, reportOptionalOperand=false

import itertools
import linecache
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie.compute.array import Array
from coterie.compute.interactive.jit import jit
from coterie.errors import ArgumentValueError, TraceError

POINTS = [np.float32(value) for value in (2.0, -2.0, 0.0)]


def read_later(x):
    y = x

    def read():
        return y

    if x > 0:
        y = x * 2
        z = read()
    else:
        z = x
    y = y + 1
    return z * read()


def made_in_a_loop(x):
    y = x
    read = lambda: y  # noqa: E731
    for i in range(3):
        y = y * 2
        if i == 1:
            read = lambda: y  # noqa: E731, B023
    y = y + 1
    return read()


def while_else_walrus(x):
    n = 5
    while (n := n - 1) > 2:
        x = x + n
    else:
        x = x * 2
    return x + n


def comprehension_walrus(x):
    y = 0.0
    for i in range(2):
        _ = [y := v for v in (1.0, 2.0 + i)]
    if x > 0:
        x = x * 3
    return x + y


def matched(x):
    a = 10.0
    for _ in range(2):
        match (1.0, 2.0, 3.0):
            case (a, *rest):
                x = x + rest[1]
    if x > 0:
        x = x * a
    return x + rest[0]


def caught(x):
    for text in ("1", "two"):
        try:
            x = x + float(text)
        except ValueError as error:
            x = x + len(error.args)
    if x > 0:
        x = x * 2
    return x


class Private:
    def __init__(self) -> None:
        self.__factor = 3.0

    def scaled(self, x):
        __factor = self.__factor
        if x > 0:
            x = x * __factor
        return x


private = Private().scaled


def class_inside(x):
    class Settings:
        size = 3
        doubled = size * 2 if size > 2 else 0

    if x > 0:
        x = x * Settings.doubled
    return x


def late_annotation(x):
    def inner(v: "Unknown") -> "Unknown":  # noqa: F821
        return v * 2

    if x > 0:
        x = inner(x)
    return x


def nested_text() -> Callable[..., Any]:
    def inner(x):
        text = """a
            b"""
        if x > 0:
            x = x * len(text)
        return x

    return inner


text_inside = nested_text()


def or_gives_a_value(x):
    return (x or 5.0) + 1


def and_gives_a_value(x):
    return (x and x + 5.0) * 2


GRAPHS = [
    read_later,
    made_in_a_loop,
    while_else_walrus,
    comprehension_walrus,
    matched,
    caught,
    private,
    class_inside,
    late_annotation,
    text_inside,
    or_gives_a_value,
    and_gives_a_value,
]


@pytest.mark.capability("A6", "D5")
@pytest.mark.parametrize("fn", GRAPHS, ids=lambda fn: fn.__name__)
def test_names_and_values_are_those_of_python(fn: Callable[..., Any]) -> None:
    compiled = jit(fn, fullgraph=True)
    for point in POINTS:
        assert float(compiled(point)) == float(fn(Array(np.asarray(point))))
    assert compiled.compilations == 1


def array_in_place(x):
    a = np.zeros(2, np.float32)
    if x > 0:
        a += 1
    return x + a


def list_in_place(x):
    a = [1.0]
    if x > 0:
        a += [2.0]
    return x + len(a)


def dict_in_place(x):
    a = {"k": 1.0}
    if x > 0:
        a |= {"k": 5.0}
    return x + a["k"]


def set_in_a_loop(x):
    a = {1}
    while x > 0:
        a |= {2}
        x = x - 1
    return x + len(a)


def told(x):
    said = []
    say = said.append
    if x > 0:
        say("positive")
    else:
        say("negative")
    return x + len(said) + len("".join(said))


def told_in_short(x):
    said = []
    x > 0 and said.append(1)
    return x + len(said)


def told_in_a_value(x):
    said = []
    y = (said.append(1) or 1.0) if x > 0 else 2.0
    return x + y + len(said)


def popped(x):
    a = [1.0, 2.0, 3.0]
    y = a.pop() if x > 0 else 0.0
    if x > 1:
        y = y + a.pop(0)
    return x + y + len(a)


def next_one(x):
    a = iter([1.0, 2.0, 3.0])
    y = next(a) if x > 0 else 10.0 * next(a)
    return x + y


def counted_inside(x):
    n = 0.0

    def bump(v):
        nonlocal n
        n = n + 1
        return v

    if x > 0:
        x = bump(x)
    return x + n


TOTAL = 0.0


def global_behind_a_return(x):
    global TOTAL
    TOTAL = 0.0
    if x > 0:
        return x + TOTAL
    TOTAL = 5.0
    return x + TOTAL


def number_that_is_caught(x):
    try:
        y = float(x)
    except Exception:
        y = 100.0
    return x + y


def decision_that_is_caught(x):
    y = 7.0
    try:
        while x > 0:
            assert x > -5
            x = x - 1
    except Exception:
        y = 100.0
    return x + y


def broken_off_by_data(x):
    for _ in itertools.count():
        x = x * 0.5 - 1
        if x < -0.5:
            break
    return x


HOST = [
    array_in_place,
    list_in_place,
    dict_in_place,
    set_in_a_loop,
    told,
    told_in_short,
    told_in_a_value,
    popped,
    next_one,
    counted_inside,
    global_behind_a_return,
    number_that_is_caught,
    decision_that_is_caught,
]


@pytest.mark.capability("A6", "D5")
@pytest.mark.parametrize("fn", HOST, ids=lambda fn: fn.__name__)
def test_what_happens_on_a_traced_condition_happens_on_the_host_or_is_refused(fn: Callable[..., Any]) -> None:
    compiled = jit(fn)
    for point in POINTS:
        np.testing.assert_array_equal(compiled(point), fn(Array(np.asarray(point))))
    assert compiled.compilations == 0
    assert all("test_frontend_exact.py:" in reason for reason in compiled.fallbacks)
    with pytest.raises(TraceError):
        jit(fn, fullgraph=True)(POINTS[0])


def test_an_endless_iterator_that_only_data_end_is_refused() -> None:
    compiled = jit(broken_off_by_data)
    assert float(compiled(np.float32(2.0))) == float(broken_off_by_data(np.float32(2.0)))
    assert "iterator without a length" in compiled.fallbacks[0]


def unbound(x):
    if x is None:
        y = 1
    return x if y == 1 else x * 2


def several(x):
    return x > 0 and x < 1


@pytest.mark.parametrize(("fn", "kind"), [(unbound, UnboundLocalError), (several, ArgumentValueError)])
def test_what_raises_in_python_raises_under_jit(fn: Callable[..., Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        jit(fn)(np.asarray([0.5, 2.0], np.float32))


def noisy(x):
    return x * 0 + np.random.rand() + random.random()


def test_random_numbers_of_the_process_are_not_baked_in() -> None:
    np.random.seed(3)
    random.seed(4)
    compiled = jit(noisy)
    found = [float(compiled(np.float32(1.0))) for _ in range(2)]
    np.random.seed(3)
    random.seed(4)
    np.testing.assert_allclose(found, [np.random.rand() + random.random() for _ in range(2)], rtol=1e-6)
    assert "draws random numbers" in compiled.fallbacks[0]
    with pytest.raises(TraceError, match="draws random numbers"):
        compiled.export(np.float32(1.0))


def endless(x):
    return endless(x) + 1


def test_a_recursion_without_end_is_python_s_or_names_the_function() -> None:
    with pytest.raises(RecursionError):
        jit(endless)(np.float32(1.0))
    with pytest.raises(TraceError, match=r"test_frontend_exact.py:\d+: jit: endless calls itself"):
        jit(endless, fullgraph=True)(np.float32(1.0))


def written(lines: list[str], name: str) -> Callable[..., Any]:
    """A function of these lines that can be read again."""
    source = "\n".join(["def program(x):", *(f"    {line}" for line in lines), "    return x", ""])
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {}
    exec(compile(source, name, "exec"), scope)
    return scope["program"]


@pytest.mark.parametrize(
    ("line", "count", "reason"),
    [
        ("if x > {0}: return x * {0}", 45, "stands inside of 30 others"),
        ("if x > {0}:\n        x = x + 1\n        if x > 5{0}: return x", 40, "return in a part of their branches"),
    ],
)
def test_many_returns_end_in_a_reason_and_not_in_an_explosion(line: str, count: int, reason: str) -> None:
    fn = written([line.format(i) for i in range(count, 0, -1)], f"<{reason}>")
    compiled = jit(fn)
    assert float(compiled(np.float32(2.0))) == float(fn(np.float32(2.0)))
    assert reason in compiled.fallbacks[0]
    assert f"<{reason}>:" in compiled.fallbacks[0]


class Hidden:
    __factor = 3.0

    def method(self, x):
        def inner(v):
            if v > 0:
                return v * self.__factor
            return v

        return jit(inner, fullgraph=True)(x)


class Plain:
    pass


plain = Plain()
setattr(plain, "__factor", 2.0)


def outside(x):
    if x > 0:
        return x * plain.__factor  # pyright: ignore[reportAttributeAccessIssue]
    return x


def test_private_names_belong_to_the_class_around() -> None:
    assert float(Hidden().method(np.float32(2.0))) == 6.0
    assert float(jit(outside, fullgraph=True)(np.float32(2.0))) == 4.0


@pytest.mark.parametrize("later", ["if x > 0: x = x * 777", "if x > 0: x = x + 2", "if x < 0: x = x * 2"])
def test_a_file_that_was_edited_since_is_not_believed(later: str) -> None:
    fn = written(["if x > 0: x = x * 2"], "<edited>")
    written([later], "<edited>")
    compiled = jit(fn)
    assert float(compiled(np.float32(2.0))) == 4.0
    assert "not what is running" in compiled.fallbacks[0]
