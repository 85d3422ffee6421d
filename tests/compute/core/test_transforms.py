"""The meaning of grad and value_and_grad in MindSpore's terms (B6, C6; section 4.1 of the capabilities), jit's
signatures and its fallback (B9, D3, D4), and the switch of modes (D1).
"""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import ops, tree
from coterie.compute.array import Array
from coterie.compute.autodiff import grad, value_and_grad
from coterie.compute.batching import vmap
from coterie.compute.control.derived import custom_vjp
from coterie.compute.control.functions import cond, scan, while_loop
from coterie.compute.interactive.jit import jit
from coterie.compute.interactive.mode import get_mode, set_mode, use_mode
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.trace import TensorSpec, trace
from coterie.errors import InputError, ShapeError, TraceError

A, B = Array(np.asarray([1.0, 2.0])), Array(np.asarray([3.0, 5.0]))
W, V = Array(np.asarray([2.0, 4.0])), Array(np.asarray([1.0, 1.0]))


def loss(a: Array, b: Array) -> Array:
    return cnp.sum(a * b * b * W + V)


def with_aux(a: Array, b: Array) -> tuple[Array, Array, Array]:
    return loss(a, b), a * 10.0, cnp.sum(b)


def plain(result: Any) -> Any:
    """Arrays as lists, so that results compare."""
    return tree.map_tree(lambda leaf: leaf.numpy().tolist() if isinstance(leaf, Array) else leaf, result)


GA, GB, GW, GV = [18.0, 100.0], [12.0, 80.0], [9.0, 50.0], [1.0, 1.0]
VALUE, AUX = 220.0, ([10.0, 20.0], 8.0)
SEMANTICS: list[tuple[str, dict[str, Any], Any]] = [
    ("B6 the default is the first argument", {}, GA),
    ("B6 an int position gives one gradient", {"grad_position": 1}, GB),
    ("B6 a tuple gives a tuple", {"grad_position": (0, 1)}, (GA, GB)),
    ("B6 in the order of the tuple", {"grad_position": (1, 0)}, (GB, GA)),
    ("B6 a tuple of one gives a tuple of one", {"grad_position": (1,)}, (GB,)),
    ("B6 weights alone give a tuple aligned with them", {"grad_position": None, "weights": [W, V]}, (GW, GV)),
    ("B6 one weight gives a tuple of one", {"grad_position": None, "weights": (V,)}, (GV,)),
    ("B6 a mapping of weights gives a tuple too", {"grad_position": None, "weights": {"w": W, "v": V}}, (GW, GV)),
    ("B6 both give a pair", {"weights": [W]}, (GA, (GW,))),
    ("B6 a tuple and weights", {"grad_position": (0, 1), "weights": [V, W]}, ((GA, GB), (GV, GW))),
    ("B6 ids of a position", {"return_ids": True}, (0, GA)),
    ("B6 ids of positions", {"grad_position": (1, 0), "return_ids": True}, ((1, GB), (0, GA))),
    (
        "B6 names of weights",
        {"grad_position": None, "weights": {"w": W, "v": V}, "return_ids": True},
        (("w", GW), ("v", GV)),
    ),
    (
        "B6 ids of both",
        {"grad_position": 1, "weights": [W], "return_ids": True},
        ((1, GB), ((0, GW),)),
    ),
]


@pytest.mark.capability("B6")
@pytest.mark.parametrize(("options", "expected"), [s[1:] for s in SEMANTICS], ids=[s[0] for s in SEMANTICS])
def test_the_shape_of_gradients(options: dict[str, Any], expected: Any) -> None:
    assert plain(grad(loss, **options)(A, B)) == expected
    value, gradients = value_and_grad(loss, **options)(A, B)
    assert (value.item(), plain(gradients)) == (VALUE, expected)
    # With aux: grad gives (gradients, (aux, ...)), and value_and_grad ((loss, aux, ...), gradients).
    found, aux = grad(with_aux, has_aux=True, **options)(A, B)
    assert isinstance(aux, tuple) and (plain(found), plain(aux)) == (expected, AUX)
    values, found = value_and_grad(with_aux, has_aux=True, **options)(A, B)
    assert isinstance(values, tuple) and (plain(values), plain(found)) == ((VALUE, *AUX), expected)


@pytest.mark.capability("B6")
def test_b6_without_aux_the_gradients_of_all_results_are_summed() -> None:
    several = lambda a: (cnp.sum(a * a), 3.0 * cnp.sum(a))  # noqa: E731
    assert plain(grad(several)(A)) == [5.0, 7.0]
    assert plain(grad(several, has_aux=True)(A)) == ([2.0, 4.0], (9.0,))
    values, _ = value_and_grad(several)(A)
    assert plain(values) == (5.0, 9.0)


@pytest.mark.capability("B6")
def test_b6_one_aux_is_still_a_tuple_and_aux_may_be_a_tree() -> None:
    _, aux = grad(lambda a: (cnp.sum(a), {"x": a}), has_aux=True)(A)
    assert plain(aux) == ({"x": [1.0, 2.0]},)
    _, aux = grad(lambda a: (cnp.sum(a),), has_aux=True)(A)
    assert aux == ()


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("B6 neither", {"grad_position": None}, "grad_position or weights"),
    ("B6 negative", {"grad_position": -1}, "at least 0"),
    ("B6 twice", {"grad_position": (1, 1)}, "without duplicates"),
    ("B6 a list", {"grad_position": [0]}, "int or a tuple of ints"),
    ("B6 a float", {"grad_position": 0.0}, "int or a tuple of ints"),
    ("B6 a bool", {"grad_position": True}, "int or a tuple of ints"),
    ("B6 a tuple of names", {"grad_position": ("a",)}, "int or a tuple of ints"),
    ("B6 out of range", {"grad_position": 2}, "only 2 arguments"),
    ("B6 out of range in a tuple", {"grad_position": (0, 5)}, "grad_position 5 but only 2"),
    ("B6 aux of no tuple", {"has_aux": True}, r"returns a tuple \(loss, aux"),
]


@pytest.mark.capability("B6")
@pytest.mark.parametrize(("options", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    for transform in (grad, value_and_grad):
        with pytest.raises(InputError, match=message):
            transform(loss, **options)(A, B)


@pytest.mark.capability("B6")
def test_a_result_that_is_no_scalar_is_an_error_where_mindspore_would_sum_it() -> None:
    with pytest.raises(ShapeError, match="not a scalar.*Reduce it"):
        grad(lambda a: a * a)(A)


ORDERS = (0.0706508, -0.1362187, 0.2526541)


@pytest.mark.capability("B6")
def test_b6_gradients_stop_where_told_and_follow_a_functions_own_rule() -> None:
    stopped = lambda a: cnp.sum(a * ops.stop_gradient(a))  # noqa: E731
    assert plain(grad(stopped)(A)) == [1.0, 2.0]

    @custom_vjp(lambda a, out, dout: dout * 10.0)
    def own(a: Array) -> Array:
        return a * a

    assert plain(grad(lambda a: cnp.sum(own(a)))(A)) == [10.0, 10.0]
    assert plain(grad(lambda a: cnp.sum(grad(lambda b: cnp.sum(b * b * b))(a)))(A)) == [6.0, 12.0]


@pytest.mark.capability("A10")
def test_a10_the_gradient_of_a_function_is_a_function_to_evaluate() -> None:
    """f(x, y) = x @ y of 2 by 3 and 3 by 3: GradNet's example, whose gradient has each row of x alike."""
    x = Array(np.asarray([[0.5, 0.6, 0.4], [1.2, 1.3, 1.1]], np.float32))
    y = Array(np.asarray([[0.01, 0.3, 1.1], [0.1, 0.2, 1.3], [2.1, 1.2, 3.3]], np.float32))
    gradient = grad(lambda x, y: cnp.sum(x @ y), (0, 1))
    for run in (gradient, jit(gradient)):
        dx, dy = run(x, y)
        np.testing.assert_allclose(dx.numpy(), [[1.41, 1.6, 6.6]] * 2, rtol=1e-6)
        np.testing.assert_allclose(dy.numpy(), [[1.7] * 3, [1.9] * 3, [1.5] * 3], rtol=1e-6)


@pytest.mark.capability("A12", "A10")
def test_a12_tanh_to_the_third_order_in_every_way() -> None:
    fn: Callable[[Array], Array] = cnp.tanh
    x = Array(np.asarray(2.0))
    for expected in ORDERS:
        fn = grad(fn)
        assert fn(x).item() == pytest.approx(expected, abs=5e-8)
        assert jit(fn)(x).item() == pytest.approx(expected, abs=5e-8)
        assert vmap(fn)(x[None]).numpy()[0] == pytest.approx(expected, abs=5e-8)


def nodes(fn: Any, *specs: TensorSpec) -> list[str]:
    return [node.primitive for node in optimise(trace(fn, *specs).graph).nodes]


@pytest.mark.capability("C6")
def test_c6_the_backward_pass_stops_at_the_last_wanted_parameter() -> None:
    def net(first: Array, last: Array, x: Array) -> Array:
        return cnp.sum(cnp.square(cnp.tanh(cnp.tanh(x @ first) @ first) @ last))

    spec = TensorSpec((4, 4))
    products = [
        sum(name in ("matmul", "gemm") for name in nodes(grad(net, position), spec, spec, spec))
        for position in (1, 0, (0, 1))
    ]
    assert products == [4, 7, 8]  # three forward, one for `last`; four back to `first`; one more for both


@pytest.mark.capability("C2")
def test_c2_gradients_pass_through_a_returned_closure() -> None:
    def power(n: int) -> Callable[[Array], Array]:
        return (lambda x: x) if n == 0 else (lambda x: power(n - 1)(x) * x)

    assert grad(power(5))(Array(np.asarray(1.5))).item() == pytest.approx(6 * 1.5**5)


@pytest.mark.capability("B9")
def test_b9_jit_compiles_again_only_for_a_new_signature() -> None:
    @jit
    def fn(x: Array, k: Any = 1) -> Array:
        return x * k

    for arguments in [(A,), (B,), (A, 2), (B, 2), (A, 2.0), (A, True), (A[:1],), (A[:1],)]:
        fn(*arguments)
    assert (fn.compilations, fn.fallbacks) == (5, ())
    with pytest.raises(InputError, match="argument that is not an array .set. cannot be hashed"):
        fn(A, {1})


def host(x: Array) -> Array:
    """NumPy's own code on the numbers: nothing that could be a graph."""
    return x * float(np.asarray(x).max())


@pytest.mark.capability("D4")
def test_d4_python_that_cannot_be_traced_runs_on_the_host_and_says_so() -> None:
    compiled = jit(host)
    assert plain(compiled(A)) == [2.0, 4.0] and plain(compiled(B)) == [15.0, 25.0]
    assert compiled.compilations == 0
    (reason,) = compiled.fallbacks
    assert "test_transforms.py:" in reason and "NumPy array" in reason


@pytest.mark.capability("D4")
@pytest.mark.parametrize(("fn", "known"), [(cnp.atan, np.arctan), (ops.erf, np.vectorize(erf))], ids=["atan", "erf"])
def test_d4_what_no_provider_has_in_float64_runs_on_the_host(fn: Any, known: Any) -> None:
    x = np.linspace(-2, 2, 5)
    compiled = jit(lambda x: fn(x) * 2.0)
    np.testing.assert_allclose(compiled(Array(x)).numpy(), 2 * known(x), rtol=1e-12)
    assert (compiled.compilations, compiled.fallbacks) == (1, ())
    (reason,) = compiled.host_calls
    assert "test_transforms.py:" in reason and "double precision" in reason
    compiled(Array(x.astype(np.float32)))
    assert compiled.compilations == 2 and compiled.host_calls == (reason,)
    with pytest.raises(TraceError, match=r"test_transforms.py:\d+: .*double precision"):
        jit(fullgraph=True)(lambda x: fn(x) * 2.0)(Array(x))


@pytest.mark.capability("D4")
def test_d4_fullgraph_and_export_refuse_it() -> None:
    with pytest.raises(TraceError, match=r"test_transforms.py:\d+: .*NumPy array"):
        jit(fullgraph=True)(host)(A)
    with pytest.raises(TraceError, match="NumPy array"):
        to_onnx(trace(lambda x: {"y": jit(host)(x)}, A).graph, name="export")


@pytest.mark.capability("D4")
def test_d4_a_mistake_is_no_reason_to_fall_back() -> None:
    with pytest.raises(ShapeError, match="broadcast"):
        jit(lambda x: x + cnp.ones(3))(A)


@pytest.mark.capability("D3")
def test_d3_graph_eager_and_host_functions_mix() -> None:
    inner = jit(cnp.tanh)
    outer = jit(lambda x: inner(x) * 2.0)
    mixed = lambda x: jit(host)(inner(x)) + outer(x)  # noqa: E731
    t = np.tanh(A.numpy())
    np.testing.assert_allclose(mixed(A).numpy(), t * t.max() + 2 * t)
    assert (inner.compilations, outer.compilations) == (1, 1)
    gradient = grad(lambda x: cnp.sum(outer(x)))(A).numpy()
    np.testing.assert_allclose(gradient, 2 * (1 - t * t))


MODES: list[tuple[str, Callable[..., Any]]] = [
    ("value_and_grad", value_and_grad(loss, (0, 1))),
    ("vmap", vmap(grad(lambda a: cnp.sum(ops.softmax(a[None] * W))))),
    ("scan", lambda a: scan(lambda c, x: (cnp.tanh(c + x), c), W, cnp.stack([a, a]))),
    ("while", grad(lambda a: cnp.sum(while_loop(lambda c: cnp.sum(c) < 50.0, lambda c: c * c + a, a)))),
    ("cond", lambda a: cond(cnp.sum(a) > 0.0, lambda: a, lambda: -a)),
]


@pytest.mark.capability("D1")
@pytest.mark.parametrize("fn", [m[1] for m in MODES], ids=[m[0] for m in MODES])
def test_d1_one_switch_runs_the_same_code_eagerly_or_as_a_graph(fn: Callable[..., Any]) -> None:
    arguments = (A, B) if fn is MODES[0][1] else (A,)
    compiled = jit(fn)
    with use_mode("eager"):
        eager = compiled(*arguments)
        assert compiled.compilations == 0
    graph = compiled(*arguments)
    assert compiled.compilations == 1
    for a, b in zip(tree.flatten(eager)[0], tree.flatten(graph)[0], strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9)


@pytest.mark.capability("D1")
def test_d1_eager_mode_shows_numbers_and_the_switch_can_be_set_back() -> None:
    seen: list[float] = []

    @jit
    def fn(x: Array) -> Array:
        seen.append(float(cnp.sum(x)))
        return x

    set_mode("eager")
    try:
        fn(A)
        assert (seen, get_mode()) == ([3.0], "eager")
    finally:
        set_mode("graph")
    with pytest.raises(InputError, match="no mode 'static'.*graph, eager"):
        set_mode("static")  # type: ignore[arg-type]
