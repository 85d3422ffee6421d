"""Numbers at the edges: infinities, NaN, nothing at all, integers that do not fit, positions outside, odd trees."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest

from coterie.compute import grad, jit, ops, scan, to_onnx, trace, value_and_grad, vmap, while_loop
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    CoterieError,
    DTypeError,
    InputError,
    ShapeError,
    TraceError,
)

HERE = "test_edges.py:[0-9]+: "


def numbers(*values: float) -> NDArray:
    return np.asarray(values, np.float32)


class Pair(NamedTuple):
    first: Any
    second: Any


REFUSED: list[tuple[str, Callable[[], Any], type[CoterieError], str]] = [
    ("int beyond int32", lambda: cnp.asarray(2**40), DTypeError, "1099511627776 does not fit into int32"),
    ("list beyond int32", lambda: cnp.asarray([0, -(2**40)]), DTypeError, "-1099511627776 does not fit into int32"),
    ("int beside int32", lambda: cnp.asarray([1]) + 2**31, DTypeError, r"add\(int32\[1\]\).*2147483648 does not fit"),
    ("int beside uint8", lambda: cnp.asarray([1], dtype="uint8") - 256, DTypeError, "256 does not fit dtype uint8"),
    ("int with a dtype", lambda: cnp.asarray(-1, dtype="uint8"), DTypeError, "-1 does not fit into uint8"),
    ("no dtype", lambda: cnp.asarray(1, dtype="number"), DTypeError, "'number' is not a dtype"),
    ("lists of unequal lengths", lambda: cnp.asarray([[1], [2, 3]]), ShapeError, "list is no array.*"),
    ("nothing to concat", lambda: cnp.concat([]), ShapeError, r"concat\(\): there are no arrays"),
    ("truth of two", lambda: bool(cnp.asarray([1, 2])), ArgumentValueError, r"int32\[2\] has 2 elements"),
    ("softmax of nothing", lambda: ops.softmax(cnp.zeros((2, 0))), ShapeError, "the softmax of nothing"),
    ("int to a float", lambda: cnp.asarray([2]) ** 2.0, DTypeError, "2.0 does not fit dtype int32"),
    ("int to a negative", lambda: cnp.asarray([2]) ** -1, DTypeError, "an integer to the power -1 is no integer"),
    ("position outside", lambda: cnp.take(numbers(1, 2), [2]), InputError, "the indices 2 to 2 leave axis 0 of size 2"),
    ("position that is a truth", lambda: Array(numbers(1, 2))[True], TraceError, r"index\(float32\[2\]\): a mask"),
    ("uint8 position", lambda: Array(numbers(1))[np.zeros(1, np.uint8)], TraceError, "positions are int32 or int64"),
    ("range beyond int32", lambda: cnp.arange(2**31 - 1, 2**31 + 1), DTypeError, "2147483648 does not fit into int32"),
    ("range that never ends", lambda: cnp.arange(0, 1, 0), InputError, "a step of 0"),
    ("less than nothing", lambda: cnp.eye(-1), ShapeError, r"eye\(\): -1 is no number of elements"),
    ("fractions beside int32", lambda: cnp.pad([1], [(1, 0)], value=0.5), DTypeError, r"pad\(.*0.5 does not fit"),
    ("NaN beside int32", lambda: cnp.pad([1], [(1, 0)], value=np.nan), DTypeError, r"pad\(.*nan does not fit"),
    ("an axis flipped twice", lambda: cnp.flip(numbers(1), axis=(0, -1)), ShapeError, "not different"),
    ("less than no steps", lambda: scan(lambda c, _: (c, c), 0.0, None, -1), InputError, "cannot take -1 steps"),
    ("keys without an order", lambda: jit(lambda p: p)({1: 1.0, "1": 2.0}), InputError, r"keys \[1, '1'\]"),
    ("a named tuple", lambda: grad(lambda p: p.first)(Pair(1.0, 2.0)), InputError, "a Pair is a tuple of a kind"),
    ("a named tuple returned", lambda: jit(lambda x: Pair(x, x))(1.0), InputError, "a Pair is a tuple of a kind"),
    ("no array", lambda: grad(lambda p: cnp.asarray(1.0))("text"), ArgumentTypeError, "argument 0, a str"),
    ("equal paths in", lambda: grad(lambda p: p["a.b"])({"a.b": 1.0, "a": {"b": 1.0}}), InputError, r"path '0.a.b'"),
    ("equal paths out", lambda: jit(lambda x: {"a.b": x, "a": {"b": x}})(1.0), InputError, "path 'a.b'"),
    ("NumPy weight", lambda: grad(abs, None, [numbers(1)]), ArgumentTypeError, "a weight is a ndarray"),  # pyright: ignore[reportArgumentType]
    ("weight named twice", lambda: grad(abs, None, [WEIGHT, WEIGHT]), ArgumentValueError, "among the weights twice"),
]
WEIGHT = Array(numbers(1))


@pytest.mark.parametrize(("call", "kind", "words"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED])
def test_what_has_no_meaning_is_refused_at_the_users_line(
    call: Callable[[], Any], kind: type[CoterieError], words: str
) -> None:
    with pytest.raises(kind, match=HERE + ".*" + words) as refused:
        call()
    assert type(refused.value) is kind
    assert refused.value.hint


INFINITE = [numbers(-np.inf, -np.inf), numbers(np.inf, 1), numbers(np.inf, -np.inf), numbers(-np.inf, 3), numbers(1, 2)]


@pytest.mark.parametrize("x", INFINITE, ids=str)
def test_logsumexp_of_infinities_is_that_of_exact_numbers(x: NDArray) -> None:
    expected = np.logaddexp(*x)
    assert ops.logsumexp(x).item() == pytest.approx(expected)
    assert jit(ops.logsumexp)(x).item() == pytest.approx(expected)


def test_asinh_of_infinity_is_infinite() -> None:
    x = numbers(np.inf, -np.inf, 1e38, -1e20)
    np.testing.assert_allclose(cnp.asinh(x).numpy(), np.arcsinh(x), rtol=1e-6)
    np.testing.assert_allclose(jit(cnp.asinh)(x).numpy(), np.arcsinh(x), rtol=1e-6)
    np.testing.assert_allclose(
        grad(lambda x: cnp.sum(cnp.asinh(x)))(numbers(1e20, -1e10)).numpy(), [1e-20, 1e-10], 1e-5
    )


def test_a_choice_among_none_is_that_of_the_standard() -> None:
    nothing = cnp.zeros((3, 0))
    assert not bool(cnp.any(nothing)) and bool(cnp.all(nothing))
    np.testing.assert_array_equal(cnp.any(nothing, axis=1).numpy(), [False] * 3)
    np.testing.assert_array_equal(cnp.all(nothing, axis=1, keepdims=True).numpy(), [[True]] * 3)


@pytest.mark.parametrize("position", [cnp.argmax, cnp.argmin])
def test_a_position_among_nan_is_inside_of_the_axis(position: Callable[..., Array]) -> None:
    x = np.asarray([[np.nan, 1, 2], [1, np.nan, 2], [np.nan] * 3, [np.inf, -np.inf, 0]], np.float32)
    for found in (position(x, axis=1), jit(lambda x: position(x, axis=1))(x)):
        assert np.all((found.numpy() >= 0) & (found.numpy() < 3))
        assert found.numpy()[3] == (0 if position is cnp.argmax else 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_expm1_and_sinh_neither_cancel_nor_meet_infinity(dtype: str) -> None:
    x = np.asarray([-300, -100, -20, -17, -3, -1, -1e-3, 0, 1e-3, 1, 3, 20, 100, 1e4], dtype)
    first = grad(lambda x: cnp.sum(cnp.expm1(x)))
    second = grad(lambda x: cnp.sum(first(x)))
    tight = 1e-5 if dtype == "float32" else 1e-12
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(cnp.expm1(x).numpy(), np.expm1(x), rtol=tight)
        np.testing.assert_allclose(first(x).numpy(), np.exp(x), rtol=tight)
        np.testing.assert_allclose(second(x).numpy(), np.exp(x), rtol=tight)
        np.testing.assert_allclose(grad(lambda x: cnp.sum(cnp.sinh(x)))(x).numpy(), np.cosh(x), rtol=tight)


OUTSIDE: list[tuple[str, Callable[..., Array]]] = [
    ("take", lambda x, i: cnp.take(x, i)),
    ("take_along_axis", lambda x, i: cnp.take_along_axis(x, i)),
    ("scatter_add", lambda x, i: ops.scatter_add(x, i, cnp.ones((1,)))),
]


@pytest.mark.parametrize(("name", "fn"), [pytest.param(*row, id=row[0]) for row in OUTSIDE])
@pytest.mark.parametrize("place", [2, -3])
def test_a_position_outside_is_refused_in_every_mode(name: str, fn: Callable[..., Array], place: int) -> None:
    x, places = numbers(1, 2), np.asarray([place], np.int32)
    with pytest.raises(InputError, match=f"indices {place} to {place} leave axis 0"):
        fn(x, places)
    # Known positions also where the slices themselves are not needed: the gradient would go to another row.
    with pytest.raises(InputError, match=f"{HERE}{name}: the indices {place}"):
        jit(grad(lambda x: cnp.sum(fn(x, places))))(x)
    with pytest.raises(InputError, match="leaves the axis that it picks from"):
        jit(fn)(x, places)


def test_a_scan_of_no_steps_leaves_the_carry_and_is_unrolled() -> None:
    def carry(x: Array) -> Array:
        return scan(lambda c, _: (c * 2.0, None), x, None, 0)[0]

    def stack(x: Array) -> Array:
        return cnp.sum(scan(lambda c, _: (c, c), x, None, 0)[1])

    x = numbers(1, 2)
    np.testing.assert_array_equal(jit(carry)(x).numpy(), x)
    assert to_onnx(trace(carry, x).graph, name="carry")
    assert stack(Array(x)).item() == 0.0
    with pytest.raises(InputError, match=HERE + ".*has no elements"):
        to_onnx(trace(stack, x).graph, name="stack")


def test_gradients_of_loops_inside_of_scans_may_meet_in_a_stack() -> None:
    """Both the test and the step of the inner loop read what it saved, whose number of rows is not known."""

    def slope(e: Array) -> Array:
        return grad(lambda u: while_loop(lambda v: v < 3.0, lambda v: v * v + u, u + 1.0))(e)

    def fn(x: Any) -> Array:
        return cnp.sum(scan(lambda c, e: (c + slope(e) * c, c), x, x)[0])

    x = np.asarray([0.28, 0.52, 0.84])
    steps = np.eye(3) * 1e-6
    expected = [(fn(x + step).item() - fn(x - step).item()) / 2e-6 for step in steps]
    np.testing.assert_allclose(grad(fn)(x).numpy(), expected, rtol=1e-6)
    many = np.stack([x, 1.1 * x])
    np.testing.assert_allclose(vmap(grad(fn))(many).numpy(), [grad(fn)(row).numpy() for row in many], rtol=1e-9)
    value, _ = value_and_grad(fn)(x)
    assert value.item() == pytest.approx(fn(x).item())


@pytest.mark.parametrize("examples", [1, 3])
def test_gradients_of_mapped_loops_compile_for_any_number_of_examples(examples: int) -> None:
    """Of one example, axes of size 1 stand beside the number of steps, which is not known."""

    def fn(x: Array, w: Array) -> Array:
        return cnp.sum(while_loop(lambda v: cnp.sum(v) < 30.0, lambda v: v * w + cnp.sin(w), x))

    x = np.ones((examples, 3), np.float32) * np.arange(1, examples + 1, dtype=np.float32)[:, None]
    w = numbers(1.5, 1.2, 1.7)
    gradients = vmap(grad(fn, (0, 1)), in_axes=(0, None))
    expected = [grad(fn, (0, 1))(row, w) for row in x]
    for index, found in enumerate(jit(gradients, fullgraph=True)(x, w)):
        np.testing.assert_allclose(found.numpy(), [row[index].numpy() for row in expected], rtol=1e-5)


INDICES: list[Callable[..., Any]] = [
    lambda x, i: x[i],
    lambda x, i: x[:, i],
    lambda x, i: x[i, 1:, None],
    lambda x, i: x[None, ..., i, 0],
    lambda x, i: x[1, i],
    lambda x, i: x[i, i, ::-1],
    lambda x, i: x[i, 0, i],
]


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("place", [1, -2])
def test_a_traced_number_is_an_index_beside_slices(index: Callable[..., Any], place: int) -> None:
    x, i = np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.asarray(place, np.int32)
    np.testing.assert_array_equal(jit(index, fullgraph=True)(x, i).numpy(), index(x, place))
    slope = jit(grad(lambda x, i: cnp.sum(index(x, i) ** 2)), fullgraph=True)(x, i)
    expected = np.zeros_like(x)
    np.add.at(expected.reshape(-1), index(np.arange(24).reshape(2, 3, 4), place), 1.0)
    np.testing.assert_allclose(slope.numpy(), 2.0 * x * expected)


def test_loops_with_masks_among_their_carries_are_mapped_and_compiled() -> None:
    def fn(x: Array) -> Array:
        def step(carry: Any) -> Any:
            value, _ = carry
            return value * 1.5, value < 2.0

        return while_loop(lambda carry: carry[1], step, (x, x > 0.0))[0]

    x = numbers(-1.0, 0.3, 1.1, 3.0)
    expected = [fn(Array(row)).item() for row in x]
    np.testing.assert_allclose(jit(vmap(fn), fullgraph=True)(x).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("places", ["one", "few often", "each some times", "every second"])
def test_gradients_at_many_known_positions_make_no_matrix_of_them(places: str) -> None:
    draw = np.random.default_rng(4)
    known = {
        "one": np.zeros(500, np.int32),
        "few often": draw.integers(-3, 3, 500).astype(np.int32),
        "each some times": draw.integers(-400, 400, 700).astype(np.int32),
        "every second": np.arange(0, 400, 2, dtype=np.int32),
    }[places]
    x, weight = draw.normal(size=(2, 400, 2)), draw.normal(size=(2, known.size, 2))

    def fn(x: Array) -> Array:
        return cnp.sum(cnp.take(x, known, axis=1) ** 3 * weight)

    first, second = np.zeros_like(x), np.zeros_like(x)
    np.add.at(np.moveaxis(first, 1, 0), known, np.moveaxis(3.0 * x[:, known] ** 2 * weight, 1, 0))
    np.add.at(np.moveaxis(second, 1, 0), known, np.moveaxis(6.0 * x[:, known] * weight, 1, 0))
    np.testing.assert_allclose(grad(fn)(x).numpy(), first, rtol=1e-9, atol=1e-12)
    twice = grad(lambda x: cnp.sum(grad(fn)(x)))
    np.testing.assert_allclose(twice(x).numpy(), second, rtol=1e-9, atol=1e-12)
    largest = max(value.type.size for node in trace(twice, x).graph.nodes for value in node.outputs)
    assert largest <= 1 << 16 < known.size * x.shape[1]


@pytest.mark.parametrize("name", ["mean", "var", "std"])
@pytest.mark.parametrize("options", [{}, {"axis": 1}, {"axis": -1, "keepdims": True}, {"axis": 0}])
def test_moments_of_nothing_are_no_numbers(name: str, options: dict[str, Any]) -> None:
    nothing = np.zeros((2, 0), np.float32)
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning) if options.get("axis") != 0 else nullcontext():
        expected = getattr(np, name)(nothing, **options)
    np.testing.assert_array_equal(getattr(cnp, name)(nothing, **options).numpy(), expected)
