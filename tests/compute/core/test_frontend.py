"""Python's own control flow on traced values means under jit what it means on numbers (A6, D5, D6, and refusals)."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import tree
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.interactive.frontend.rewrite import rewrite
from coterie.compute.interactive.jit import jit
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.text import parse, to_text
from coterie.compute.trace import TensorSpec, trace, trace_named
from coterie.errors import TraceError


def branches(x: Array) -> Array:
    if cnp.sum(x) > 2:
        y = x * 2.0
    elif cnp.sum(x) < -2:
        y = x * 3.0
        y = y + 1.0
    else:
        y = -x
    return y + x


def early_returns(x: Array) -> Any:
    if cnp.sum(x) > 2:
        return x * 2.0
    y = cnp.tanh(x)
    if cnp.sum(y) < -1:
        y = y * 3.0
        return y
    return y - 1.0


def nested_ifs(x: Array) -> Array:
    y = x
    if cnp.sum(x) > 0:
        if x[0] > x[1]:
            y = x[0] * x
        y = y + 1.0
    return y


def expressions(x: Array) -> Array:
    top = x[0] if x[0] > x[1] else x[1]
    inside = x[0] > 0 and x[1] > 0 or not x[0] < 5
    both = 1.0 if -1 < top < 4 else 2.0
    return top * x * both if inside else x - top


def growing(x: Array) -> Any:
    steps = 0
    total = 0.0
    while cnp.sum(x * x) < 50.0:
        x = x * 1.5 + 0.1
        total = total + cnp.sum(x)
        steps += 1
    return x, steps, total


def leaving(x: Array) -> Any:
    n = 0
    while True:
        n = n + 1
        x = x * 1.3
        if cnp.sum(x * x) > 40.0:
            break
        if n == 3:
            continue
        x = x + 0.05
    return x, n


def rows(x: Array) -> Array:
    total = x[0] * 0.0
    for row in x:
        square = row * row
        if row > 1.0:
            total = total + square
        else:
            total = total - row
    return total


def searched(x: Array) -> Any:
    found = -1
    for i in range(x.shape[0]):
        if x[i] > 1.0:
            found = i
            break
    return found


def counted(x: Array, n: Array) -> Array:
    y = x
    for i in range(1, n + 1):
        if cnp.sum(y) > 100.0:
            break
        y = y * 0.5 + x * cnp.astype(i, "float64")
    return y


def counted_down(x: Array, n: Array) -> Array:
    y = x
    for i in range(n, 0, -1):
        y = y * 0.5 + x * cnp.astype(i, "float64")
    return y


def static_loops(x: Array) -> Array:
    layers: list[Callable[[Array], Array]] = [cnp.tanh, cnp.negative]
    for layer in layers * 2:
        x = layer(x)
    for i, scale in enumerate((1.0, 2.0)):
        if i == 1:
            x = x * scale
        else:
            continue
    k = 3
    while k:
        x = x + 1.0
        k -= 1
    return x


def inner_functions(x: Array) -> Array:
    def clip(v: Array) -> Array:
        if v[0] > 1.0:
            return v / v[0]
        return v

    def loss(v: Array) -> Array:
        return cnp.sum(clip(v * v))

    return grad(loss)(x)


def trees(x: Array) -> Any:
    state: Any = {"a": x, "b": (x[0], 0)}
    while cnp.sum(state["a"]) < 10.0 and state["b"][1] < 7:
        state = {"a": state["a"] + 1.0, "b": (state["b"][0] * 2.0, state["b"][1] + 1)}
    return state


def nested_loops(x: Array) -> Array:
    total = x[0] * 0.0
    while total < 20.0:
        for row in x:
            v = row
            while v < 4.0:
                v = v + 1.5
            total = total + v
    return total


def power(x: Array, n: int = 4) -> Array:
    return x if n == 0 else power(x, n - 1) * x  # calls itself by its global name


POINTS = [[1.5, 3.0], [-1.5, -3.0], [0.5, -0.25], [2.0, 0.5]]
PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    **{
        fn.__name__: (fn, [(np.asarray(p),) for p in POINTS])
        for fn in (
            branches,
            early_returns,
            nested_ifs,
            expressions,
            growing,
            leaving,
            rows,
            searched,
            static_loops,
            trees,
            nested_loops,
            power,
        )
    },
    **{
        fn.__name__: (fn, [(np.asarray([1.0, 2.0]), np.asarray(n, np.int32)) for n in (0, 1, 4, 60)])
        for fn in (counted, counted_down)
    },
}


def plain(result: Any) -> list[Any]:
    leaves = tree.flatten(result)[0]
    return [leaf.numpy() if isinstance(leaf, Array) else np.asarray(leaf) for leaf in leaves]


@pytest.mark.parametrize(("fn", "points"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_compiled_function_takes_the_path_that_python_takes(fn: Callable[..., Any], points: Any) -> None:
    compiled = jit(fn, fullgraph=True)
    for point in points:
        expected, found = plain(fn(*map(Array, point))), plain(compiled(*point))
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-9)  # Python's numbers become float32
    assert compiled.compilations == 1


@pytest.mark.parametrize("fn", [branches, early_returns, growing, leaving, rows, expressions])
def test_gradients_pass_through_pythons_control_flow(fn: Callable[..., Any]) -> None:
    def scalar(x: Array) -> Array:
        return sum((cnp.sum(cnp.astype(y, "float64")) for y in tree.flatten(jit(fn)(x))[0]), Array(np.asarray(0.0)))

    for point in POINTS:
        told = jit(grad(scalar))(np.asarray(point)).numpy()
        step = 1e-6
        for i, direction in enumerate(np.eye(2)):
            ends = [
                sum(float(np.sum(y)) for y in plain(fn(Array(np.asarray(point) + sign * step * direction))))
                for sign in (1, -1)
            ]
            assert told[i] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-5)


def test_functions_inside_are_rewritten_too() -> None:
    gradient = jit(inner_functions, fullgraph=True)  # it differentiates a function that decides on an array
    a, b = 1.5, 3.0
    np.testing.assert_allclose(gradient(np.asarray([a, b])).numpy(), [-2 * b * b / a**3, 2 * b / (a * a)])
    np.testing.assert_allclose(gradient(np.asarray([0.5, b])).numpy(), [1.0, 6.0])


@pytest.mark.capability("A6", "D6")
def test_ast_handles_what_trace_refuses_and_never_bakes_in() -> None:
    point = Array(np.asarray(POINTS[0]))
    with pytest.raises(TraceError, match=r"test_frontend.py:\d+: .*whether it is true"):
        jit(branches, capture_mode="trace", fullgraph=True)(point)
    with pytest.raises(TraceError, match="whether it is true"):
        trace(branches, point)
    assert jit(branches)(point).numpy().tolist() == branches(point).numpy().tolist()
    # What both can take becomes the same graph.
    graphs = [trace(fn, TensorSpec((2,))).graph for fn in (rewrite(static_loops), static_loops)]
    assert to_text(graphs[0]) == to_text(graphs[1]) == to_text(parse(to_text(graphs[0])))


def test_functions_without_decisions_and_lambdas_are_left_alone() -> None:
    same = lambda x: x  # noqa: E731
    assert rewrite(same) is same and rewrite(cnp.tanh) is cnp.tanh and rewrite(np.sin) is np.sin
    rewritten = rewrite(branches)
    assert rewritten is not branches
    assert (rewritten.__name__, rewritten.__module__) == (branches.__name__, branches.__module__)


def test_the_closure_is_shared_and_defaults_stay() -> None:
    scale = 2.0

    @jit(fullgraph=True)
    def fn(x: Array, *, power: int = 2) -> Array:
        return x * scale if cnp.sum(x) > 0 else x**power

    x = cnp.asarray([1.0, 3.0])
    scale = 5.0
    assert fn(x).numpy().tolist() == [5.0, 15.0]
    assert fn(-x).numpy().tolist() == [1.0, 9.0]


def test_loops_over_data_are_not_written_out() -> None:
    def count(n: int) -> int:
        return len(to_onnx(trace(rewrite(rows), TensorSpec((n,))).graph, name="rows", target="cpu"))

    assert abs(count(1000) - count(100)) < 50
    assert [node.primitive for node in trace(rewrite(rows), TensorSpec((9,))).graph.nodes].count("scan") == 1


def test_exports_of_rewritten_functions_obey_the_target() -> None:
    graph = trace_named(lambda i: {"y": jit(branches)(i["x"])}, {"x": TensorSpec((2,))})
    to_onnx(graph, name="plan")
    loop = trace_named(lambda i: {"y": jit(leaving)(i["x"])[0]}, {"x": TensorSpec((2,))})
    with pytest.raises(TraceError, match=r"test_frontend.py:\d+: the number of steps of while depends on data"):
        to_onnx(loop, name="plan")


class Holder:
    value: Any = None


def attribute_write(x: Array) -> Any:
    holder = Holder()
    if cnp.sum(x) > 0:
        holder.value = x
    return x


def types_differ(x: Array) -> Any:
    if cnp.sum(x) > 0:
        y = x
    else:
        y = x[0]
    return y


def kinds_differ(x: Array) -> Any:
    y: Any = x
    if cnp.sum(x) > 0:
        y = "text"
    return x if y is x else y


def trees_differ(x: Array) -> Any:
    if cnp.sum(x) > 0:
        return x, x
    return x


def changing_loop(x: Array) -> Any:
    y = x
    while cnp.sum(y) < 10.0:
        y = cnp.concat([y, y])
    return y


def text_in_loop(x: Array) -> Any:
    name = "a"
    while cnp.sum(x) < 10.0:
        name = name + "b"
        x = x + 1.0
    return x


def only_in_loop(x: Array) -> Any:
    while cnp.sum(x) < 10.0:
        last = x
        x = x + 1.0
    return last + 1.0  # type: ignore[reportPossiblyUnboundVariable]


REFUSALS: list[tuple[Callable[[Array], Any], str, int]] = [
    (attribute_write, "a write into an attribute or an item", 2),
    (types_differ, r"'y' the type float64\[2\] in one branch and float64\[\] in the other", 1),
    (kinds_differ, "'y' an array in one branch and something else", 2),
    (trees_differ, "different trees", 1),
    (changing_loop, r"carry 0 from float64\[2\] into float64\[4\]", 2),
    (text_in_loop, "changes 'name'", 2),
]


@pytest.mark.parametrize(("fn", "message", "line"), REFUSALS, ids=[r[0].__name__ for r in REFUSALS])
def test_what_a_graph_cannot_express_is_refused_with_its_line_or_runs_on_the_host(
    fn: Callable[[Array], Any], message: str, line: int
) -> None:
    first = inspect.getsourcelines(fn)[1]
    with pytest.raises(TraceError, match=message) as caught:
        jit(fn, fullgraph=True)(np.asarray([1.0, 2.0]))
    assert f"test_frontend.py:{first + line}: " in str(caught.value)
    assert caught.value.hint
    on_host = jit(fn)
    for a, b in zip(plain(on_host(np.asarray([1.0, 2.0]))), plain(fn(Array(np.asarray([1.0, 2.0])))), strict=True):
        assert np.array_equal(a, b)
    assert len(on_host.fallbacks) == 1


def test_a_name_without_a_value_says_so_or_the_host_knows_one() -> None:
    with pytest.raises(TraceError, match="'last' has no value here. In a graph a name has one in any case"):
        jit(only_in_loop, fullgraph=True)(np.asarray([1.0, 2.0]))
    assert jit(only_in_loop)(np.asarray([1.0, 2.0])).numpy().tolist() == [5.0, 6.0]
    with pytest.raises(UnboundLocalError, match="'last' has no value here"):
        rewrite(only_in_loop)(Array(np.asarray([10.0, 2.0])))
