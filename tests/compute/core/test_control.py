"""cond, while_loop and scan mean what Python's own control flow means: values, gradients of first and second order,
batches and ONNX, against the same program written out (C4, C5, D5).
"""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.autodiff import grad, value_and_grad
from coterie.compute.batching import vmap
from coterie.compute.control.functions import cond, scan, while_loop
from coterie.compute.interactive.jit import jit
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, Node
from coterie.compute.onnx.checker import check_graph
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.text import parse, to_text
from coterie.compute.trace import TensorSpec, trace
from coterie.compute.verify import verify
from coterie.errors import GraphRefused, InputError, TraceError

RNG = np.random.default_rng(0)
W = RNG.normal(size=(3, 3)) * 0.6
H = RNG.normal(size=(3,))
XS = RNG.normal(size=(5, 3))


Decide = Callable[[Array], bool]


@dataclass(frozen=True)
class Program:
    """A scalar function of float arrays, with control flow of ours and of Python's (on eager arrays)."""

    ours: Callable[..., Array]
    python: Callable[..., Array]  # with one argument more, which makes a Python bool of an array
    operands: tuple[Any, ...]
    portable: bool = True  # whether its number of steps is known when it is traced

    def written_out(self) -> Callable[..., Array]:
        """The steps that Python's control flow takes for these operands, without any control flow."""
        taken: list[bool] = []

        def note(condition: Array) -> bool:
            taken.append(bool(condition))
            return taken[-1]

        self.python(*map(Array, self.operands), note)

        def again(*arrays: Array) -> Array:
            path = iter(taken)
            return self.python(*arrays, lambda condition: next(path))

        return again


def rnn(w: Array, h: Array, xs: Array) -> Array:
    def step(h: Array, x: Array) -> tuple[Array, Array]:
        h = cnp.tanh(w @ h + x)
        return h, cnp.sum(h * h)

    h, ys = scan(step, h, xs)
    return cnp.sum(h) + cnp.sum(ys * ys)


def rnn_python(w: Array, h: Array, xs: Array, decide: Decide) -> Array:
    total = cnp.asarray(0.0, dtype="float64")
    for i in range(xs.shape[0]):
        h = cnp.tanh(w @ h + xs[i])
        total = total + cnp.square(cnp.sum(h * h))
    return cnp.sum(h) + total


def backwards(w: Array, xs: Array) -> Array:
    def step(carry: dict[str, Array], x: Array) -> tuple[dict[str, Array], Array]:
        new = {"a": carry["a"] * x + w[0], "n": carry["n"] + 1}
        return new, carry["a"] * cnp.astype(carry["n"], "float64")

    carry, ys = scan(step, {"a": w[1], "n": 0}, xs, reverse=True)
    return cnp.sum(carry["a"]) + cnp.sum(ys * xs) + cnp.sum(cnp.astype(carry["n"], "float64"))


def backwards_python(w: Array, xs: Array, decide: Decide) -> Array:
    a, total = w[1], cnp.asarray(0.0, dtype="float64")
    for count, i in enumerate(reversed(range(xs.shape[0]))):
        total = total + cnp.sum(a * float(count) * xs[i])
        a = a * xs[i] + w[0]
    return cnp.sum(a) + total + float(xs.shape[0])


def counted(h: Array) -> Array:
    last, ys = scan(lambda c, _: (c * c * 0.5 + h, {"y": c}), h, length=4)
    return cnp.sum(last) + cnp.sum(cnp.tanh(ys["y"]))


def counted_python(h: Array, decide: Decide) -> Array:
    c, total = h, cnp.asarray(0.0, dtype="float64")
    for _ in range(4):
        total = total + cnp.sum(cnp.tanh(c))
        c = c * c * 0.5 + h
    return cnp.sum(c) + total


def newton(x: Array, limit: Array) -> Array:
    x, _ = while_loop(lambda s: cnp.sum(s[0]) < limit, lambda s: (s[0] * s[0] * 0.5 + s[0] * 1.3 + x, s[1] + 1), (x, 0))
    return cnp.sum(x * x)


def newton_python(x: Array, limit: Array, decide: Decide) -> Array:
    start = x
    while decide(cnp.sum(x) < limit):
        x = x * x * 0.5 + x * 1.3 + start
    return cnp.sum(x * x)


def chosen(w: Array, h: Array, threshold: Array) -> Array:
    return cond(cnp.sum(h) > threshold, lambda v: cnp.sum(cnp.tanh(w @ v)), lambda v: cnp.sum(v * v * w[0]), h)


def chosen_python(w: Array, h: Array, threshold: Array, decide: Decide) -> Array:
    return cnp.sum(cnp.tanh(w @ h)) if decide(cnp.sum(h) > threshold) else cnp.sum(h * h * w[0])


def nested(w: Array, xs: Array, limit: Array) -> Array:
    def step(h: Array, x: Array) -> tuple[Array, Array]:
        grown = while_loop(lambda v: cnp.sum(v * v) < limit, lambda v: v * 1.5 + 0.1 * w[0], x)
        h = cond(cnp.sum(h) > 0.0, lambda a: cnp.tanh(w @ a), lambda a: a * 0.5 + grown, h)
        return h, cnp.sum(grown)

    h, ys = scan(step, w[1], xs)
    return cnp.sum(h * h) + cnp.sum(ys)


def nested_python(w: Array, xs: Array, limit: Array, decide: Decide) -> Array:
    h, total = w[1], cnp.asarray(0.0, dtype="float64")
    for i in range(xs.shape[0]):
        grown = xs[i]
        while decide(cnp.sum(grown * grown) < limit):
            grown = grown * 1.5 + 0.1 * w[0]
        h = cnp.tanh(w @ h) if decide(cnp.sum(h) > 0.0) else h * 0.5 + grown
        total = total + cnp.sum(grown)
    return cnp.sum(h * h) + total


POSITIVE = np.asarray([0.3, 0.7, 0.2])
PROGRAMS: dict[str, Program] = {
    "scan": Program(rnn, rnn_python, (W, H, XS)),
    "scan of one": Program(rnn, rnn_python, (W, H, XS[:1])),
    "reverse": Program(backwards, backwards_python, (W, XS)),
    "length": Program(counted, counted_python, (H,)),
    "while": Program(newton, newton_python, (POSITIVE, np.asarray(30.0)), False),
    "while once": Program(newton, newton_python, (POSITIVE, np.asarray(1.3)), False),
    "while never": Program(newton, newton_python, (POSITIVE, np.asarray(0.5)), False),
    "cond true": Program(chosen, chosen_python, (W, H, np.asarray(-9.0))),
    "cond false": Program(chosen, chosen_python, (W, H, np.asarray(9.0))),
    "nested": Program(nested, nested_python, (W, XS, np.asarray(4.0)), False),
}
ALL = pytest.mark.parametrize("p", PROGRAMS.values(), ids=PROGRAMS.keys())


def of_order(fn: Callable[..., Array], order: int, count: int) -> Callable[..., Any]:
    """The function (0), its gradients (1), or those of the sum of their squares (2)."""
    if order == 0:
        return lambda *a: (fn(*a),)
    everything = tuple(range(count))
    gradients = grad(fn, everything)
    zero = cnp.asarray(0.0, dtype="float64")
    return gradients if order == 1 else grad(lambda *a: sum((cnp.sum(g * g) for g in gradients(*a)), zero), everything)


@ALL
@pytest.mark.parametrize("order", [0, 1, 2])
def test_control_flow_is_the_program_written_out_with_gradients_and_in_onnx(p: Program, order: int) -> None:
    operands = tuple(map(Array, p.operands))
    ours, python = (of_order(fn, order, len(operands)) for fn in (p.ours, p.written_out()))
    for expected, eager, compiled in zip(python(*operands), ours(*operands), jit(ours)(*operands), strict=True):
        np.testing.assert_allclose(eager.numpy(), expected.numpy(), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(compiled.numpy(), expected.numpy(), rtol=1e-8, atol=1e-8)


@ALL
def test_gradients_are_finite_differences(p: Program) -> None:
    operands = p.operands
    gradients = grad(p.ours, tuple(range(len(operands))))(*map(Array, operands))
    rng, step = np.random.default_rng(5), 1e-6
    for _ in range(3):
        direction = [rng.normal(size=x.shape) for x in operands]
        plus, minus = (
            p.ours(*(Array(np.asarray(x + sign * step * d)) for x, d in zip(operands, direction, strict=True))).item()
            for sign in (1, -1)
        )
        told = sum(float((g.numpy() * d).sum()) for g, d in zip(gradients, direction, strict=True))
        assert told == pytest.approx((plus - minus) / (2 * step), rel=1e-6, abs=1e-6)


@ALL
@pytest.mark.parametrize("derive", [lambda f: f, grad], ids=["value", "gradient"])
def test_a_batch_is_a_loop_even_where_examples_take_different_paths(p: Program, derive: Any) -> None:
    rng = np.random.default_rng(4)
    # The last operand of a program with a choice is the number that decides it; spread it to get different paths.
    batch = [
        np.stack([x + 0.3 * rng.normal(size=x.shape) * (x.ndim > 0) + 2.0 * i * (x.ndim == 0) for i in range(4)])
        for x in p.operands
    ]
    function = derive(p.ours)
    expected = np.stack([function(*(Array(np.asarray(x[i])) for x in batch)).numpy() for i in range(4)])
    for run in (lambda f: f, jit):
        np.testing.assert_allclose(run(vmap(function))(*map(Array, batch)).numpy(), expected, rtol=1e-8, atol=1e-9)
    shared = (0, *(None,) * (len(batch) - 1))
    expected = np.stack(
        [function(Array(batch[0][i]), *(Array(np.asarray(x[0])) for x in batch[1:])).numpy() for i in range(4)]
    )
    mapped = vmap(function, in_axes=shared)(Array(batch[0]), *(Array(np.asarray(x[0])) for x in batch[1:]))
    np.testing.assert_allclose(mapped.numpy(), expected, rtol=1e-8, atol=1e-9)
    if derive is grad:
        total = grad(lambda *a: cnp.sum(vmap(p.ours)(*a)))(*map(Array, batch)).numpy()
        each = np.stack([grad(p.ours)(*(Array(np.asarray(x[i])) for x in batch)).numpy() for i in range(4)])
        np.testing.assert_allclose(total, each, rtol=1e-8, atol=1e-9)


def single(p: Program) -> tuple[Any, ...]:
    return tuple(np.asarray(x, np.float32) for x in p.operands)


@ALL
def test_graphs_verify_round_trip_through_text_and_survive_passes(p: Program) -> None:
    names = tuple(range(len(p.operands)))
    graph = trace(value_and_grad(p.ours, names), *p.operands).graph
    text = to_text(graph)
    assert to_text(parse(text)) == text
    feeds = dict(zip(graph.inputs, p.operands, strict=True))
    expected = interpret(graph, feeds)
    after = optimise(graph)
    assert optimise(after) is after
    for other in (parse(text), after):
        for name, value in interpret(other, feeds).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-9, atol=1e-9)


def count(graph: Graph) -> int:
    """All nodes, also those inside nodes."""
    inner = [held for node in graph.nodes for held in node.attributes.values() if isinstance(held, Graph)]
    return len(graph.nodes) + sum(map(count, inner))


@pytest.mark.capability("C4")
@pytest.mark.parametrize("fn", [rnn, lambda *a: cnp.sum(grad(rnn)(*a))], ids=["first order", "second order"])
def test_c4_the_size_of_a_gradient_does_not_depend_on_the_number_of_steps(fn: Any) -> None:
    sizes = {
        len(to_onnx(optimise(trace(grad(fn), W, H, TensorSpec((n, 3), "float64")).graph), name="f", target="cpu"))
        // 100
        for n in (50, 99)
    }
    nodes = {count(optimise(trace(grad(fn), W, H, TensorSpec((n, 3), "float64")).graph)) for n in (3, 500)}
    assert len(nodes) == len(sizes) == 1


@pytest.mark.capability("C4")
def test_c4_a_gradient_through_a_number_of_steps_that_only_the_data_tells() -> None:
    def power(x: Array, n: Array) -> Array:
        return while_loop(lambda s: s[1] < n, lambda s: (s[0] * x, s[1] + 1), (cnp.ones_like(x), 0))[0]

    gradient = jit(grad(power))
    for n in (0, 1, 7, 300):
        x, steps = Array(np.asarray(1.01)), cnp.asarray(n)
        assert gradient(x, steps).item() == pytest.approx(n * 1.01 ** (n - 1), rel=1e-9)
    assert gradient.compilations == 1


def operators(data: bytes) -> set[str]:
    return {node.op_type for node in onnx.load_from_string(data).graph.node}


@ALL
def test_portable_files_have_no_control_flow(p: Program) -> None:
    graph = optimise(trace(grad(p.ours), *single(p)).graph) if p.portable else trace(p.ours, *single(p)).graph
    if not p.portable:
        with pytest.raises(
            TraceError, match=r"test_control.py:\d+: the number of steps of while depends on data.*scan"
        ):
            to_onnx(graph, name="plan")
        return
    summary = check_graph(to_onnx(graph, name="plan"))
    assert not {"Loop", "Scan", "If"} & set(summary.operators)
    with pytest.raises(GraphRefused):
        check_graph(to_onnx(graph, name="plan", target="cpu"))


@pytest.mark.capability("C4", "C5")
def test_c5_an_unrolled_loop_has_the_same_values_and_grows_with_the_steps() -> None:
    def graph(n: int) -> Graph:
        return optimise(
            trace(lambda *a: {"g": grad(rnn)(*a)}, *(np.asarray(x, np.float32) for x in (W, H, XS[:n]))).graph
        )

    sizes = [len(onnx.load_from_string(to_onnx(graph(n), name="f")).graph.node) for n in (2, 4)]
    assert sizes[1] > 1.6 * sizes[0]
    from coterie.compute.runtime.executable import Executable

    feeds = {name: np.asarray(x, np.float32) for name, x in zip(("0", "1", "2"), (W, H, XS[:4]), strict=True)}
    for target in ("portable", "cpu"):
        found = Executable(to_onnx(graph(4), name="f", target=target)).run(feeds)["g"]
        np.testing.assert_allclose(found, grad(rnn)(*map(Array, (W, H, XS[:4]))).numpy(), rtol=1e-4, atol=1e-5)


def test_only_the_chosen_branch_of_a_cond_is_computed() -> None:
    def safe(flag: Array, ids: Array) -> Array:
        return cond(flag, lambda i: cnp.take(Array(H), i), lambda i: cnp.zeros(1, dtype="float64"), ids)

    flag, ids = cnp.asarray(False), cnp.asarray([7])
    assert safe(flag, ids).numpy().tolist() == [0.0]
    assert jit(safe)(flag, ids).numpy().tolist() == [0.0]
    with pytest.raises(InputError, match="indices 7"):
        safe(cnp.asarray(True), ids)


def test_a_predicate_of_one_element_and_a_python_bool_will_do() -> None:
    assert cond(cnp.asarray([True]), lambda: 1.0, lambda: 2.0).item() == 1.0
    assert cond(False, lambda x: x, lambda x: -x, cnp.asarray(3.0)).item() == -3.0


def test_arrays_from_around_a_loop_are_differentiated_also_as_weights() -> None:
    scale = Array(np.asarray(0.5))
    body = lambda c, x: (c * scale + x, None)  # noqa: E731
    (g,) = grad(lambda h: cnp.sum(scan(body, h, XS)[0]), None, weights=[scale])(Array(H))
    alone = grad(lambda s: cnp.sum(scan(lambda c, x: (c * s + x, None), H, XS)[0]))(scale)
    assert g.item() == pytest.approx(alone.item(), rel=1e-12)


def test_a_scan_without_steps_gives_back_its_carry() -> None:
    last, ys = scan(lambda c, x: (c + x, c), H, np.zeros((0, 3)))
    np.testing.assert_array_equal(last.numpy(), H)
    assert ys.shape == (0, 3)


MISTAKES: list[tuple[str, Callable[[Array], Any], str]] = [
    ("carry shape", lambda h: scan(lambda c, x: (cnp.sum(c), None), h, length=2), r"carry 0 from float64\[3\] into"),
    (
        "carry dtype",
        lambda h: while_loop(lambda c: cnp.sum(c) < 1.0, lambda c: cnp.astype(c, "float32"), h),
        "keeps its",
    ),
    ("carry tree", lambda h: scan(lambda c, x: ((c, c), None), h, length=2), "not a tree like the initial"),
    ("no pair", lambda h: scan(lambda c, x: c, h, length=2), r"return \(carry, y\)"),
    ("no length", lambda h: scan(lambda c, x: (c, c), h), "one number of steps, and has none"),
    ("lengths", lambda h: scan(lambda c, x: (c, c), h, (h, XS)), r"has \[3, 5\]"),
    ("number", lambda h: scan(lambda c, x: (c, c), h, cnp.sum(h)), "elements of a number"),
    ("condition", lambda h: while_loop(lambda c: c < 1.0, lambda c: c, h), r"bool\[3\] and not one bool.*cnp.sum"),
    ("predicate", lambda h: cond(h > 0.0, lambda: h, lambda: h), "must be one bool.*cnp.sum"),
    ("float predicate", lambda h: cond(cnp.sum(h), lambda: h, lambda: h), "must be one bool"),
    (
        "branches",
        lambda h: cond(True, lambda: h, lambda: h[:2]),
        r"\(float64\[3\]\) if true, \(float64\[2\]\) if false",
    ),
    ("trees", lambda h: cond(True, lambda: h, lambda: (h, h)), "different trees"),
]


@pytest.mark.parametrize(("fn", "message"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_named_with_its_line_in_both_modes(fn: Callable[[Array], Any], message: str) -> None:
    for run in (lambda: fn(Array(H)), lambda: trace(fn, H)):
        with pytest.raises(InputError, match=r"test_control.py:\d+: (?s:.)*" + message):
            run()


def test_a_node_that_breaks_the_laws_inside_is_refused() -> None:
    (node,) = trace(lambda h: scan(lambda c, _: (ops.relu(c), None), h, length=2)[0], H).graph.nodes
    body: Graph = node.attributes["body"]
    bad = Graph(body.inputs, (Node("frobnicate", body.nodes[0].inputs, body.nodes[0].outputs),), body.outputs)
    outer = Node("scan", node.inputs, node.outputs, {**node.attributes, "body": bad})
    with pytest.raises(TraceError, match="node 0 .*in its graph 'body': node 0.*no primitive of that name"):
        verify(Graph({"h": node.inputs[0]}, (outer,), {"y": node.outputs[0]}))
    stranger = Node("relu", (node.inputs[0],), body.nodes[0].outputs)
    leaking = Graph(body.inputs, (stranger,), body.outputs)
    outer = Node("scan", node.inputs, node.outputs, {**node.attributes, "body": leaking})
    with pytest.raises(TraceError, match="in its graph 'body': node 0.*dangles"):
        verify(Graph({"h": node.inputs[0]}, (outer,), {"y": node.outputs[0]}))
