"""What people who come from NumPy, PyTorch, JAX or MindSpore try first works, or is answered with what to write."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import random
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from coterie.compute import (
    Array,
    TensorSpec,
    bytes_moved,
    checkpoint,
    cond,
    custom_vjp,
    flops,
    grad,
    interpret,
    jit,
    legalise,
    memory_report,
    noised_mean,
    optimise,
    profile,
    to_dot,
    to_onnx,
    to_text,
    trace,
    trace_named,
    value_and_grad,
    vmap,
    while_loop,
)
from coterie.compute import numpy as cnp
from coterie.compute.runtime.executable import Executable
from coterie.errors import ArgumentTypeError, CoterieError, DTypeError, InputError, ShapeError, TraceError

X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def _forgot_return(x: Array) -> None:
    cnp.sum(x)


MISTAKES: list[tuple[str, Callable[[Any], Any], type[CoterieError], str]] = [
    (
        "grad of a value",
        lambda x: grad(cast("Any", cnp.sum(x))),
        ArgumentTypeError,
        r"grad takes a function.*grad\(f\)",
    ),
    ("jit of a value", lambda x: jit(x + 1), ArgumentTypeError, r"jit takes a function.*float32\[2,2\]"),
    ("vmap of a value", lambda x: vmap(cast("Any", 3)), ArgumentTypeError, "vmap takes a function, got 3"),
    ("checkpoint of a value", lambda x: checkpoint(x), ArgumentTypeError, "checkpoint takes a function"),
    ("no derivative", lambda x: custom_vjp(cnp.exp)(x), ArgumentTypeError, "the derivative first"),
    ("no return", lambda x: grad(_forgot_return)(x), InputError, "returns None.*Return the loss"),
    ("position", lambda x: grad(cnp.sum, cast("Any", "x")), ArgumentTypeError, "grad_position must be an int.*from 0"),
    ("name", lambda x: grad(lambda w: cnp.sum(w))(x, z=x), ArgumentTypeError, "unexpected keyword argument 'z'"),
    (
        "no names",
        lambda x: trace_named(cast("Any", lambda i: i["x"]), {"x": TensorSpec((3,))}),
        TraceError,
        "not arrays by name",
    ),
    ("size", lambda x: TensorSpec(cast("Any", 3)), InputError, r"tuple of whole numbers, got 3.*\(5,\) for one axis"),
    ("no size", lambda x: TensorSpec((cast("Any", None), 3)), InputError, "Shapes are static"),
    ("no dtype", lambda x: TensorSpec((3,), "floaty"), DTypeError, "'floaty' is not a dtype"),
    ("one argument", lambda x: profile(cnp.tanh, x), InputError, "a Array. Give a function its arguments in a list"),
    ("cond of arrays", lambda x: cond(True, x, x), ArgumentTypeError, "cond takes a function.*where"),
    ("while of arrays", lambda x: while_loop(x, x, x), ArgumentTypeError, r"while_loop\(cond_fn, body_fn, init\)"),
    ("negative size", lambda x: cnp.zeros((2, -1)), ShapeError, r"zeros\(\): the shape \[2, -1\] has a negative size"),
    ("text", lambda x: x + "a", DTypeError, "'a' is no array: coterie has no arrays of dtype"),
    ("nothing", lambda x: x + None, DTypeError, "None is no array"),
    ("trees", lambda x: noised_mean({"a": x}, {"b": x}, grid=1.0, count=1.0), InputError, "one has a, another b"),
    ("axis", lambda x: cnp.sum(x, axis=cast("Any", "0")), DTypeError, "axis '0' is not a whole number"),
]


@pytest.mark.parametrize(("fn", "kind", "message"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_a_first_mistake_names_the_line_and_a_fix(
    fn: Callable[[Any], Any], kind: type[CoterieError], message: str
) -> None:
    with pytest.raises(kind, match=rf"test_first_mistakes.py:\d+: .*{message}"):
        fn(cnp.asarray(X))


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("concatenate", "concat"),
        ("array", "asarray"),
        ("random", "as an argument"),
        ("arctan2", "atan2"),
        ("relu", "ops"),
    ],
)
def test_a_function_of_numpy_under_another_name_is_told(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute {name!r}.*: use .*{instead}"):
        getattr(cnp, name)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("copy", "never written"),
        ("tolist", "numpy"),
        ("backward", "grad"),
        ("view", "reshape"),
        ("cumulative_sum", "cum"),
    ],
)
def test_a_method_of_other_arrays_is_told(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"an Array has no attribute {name!r}.*: use .*{instead}"):
        getattr(cnp.asarray(X), name)
    assert not hasattr(cnp.asarray(X), "__array_interface__") and getattr(cnp, "nothing", None) is None


def test_a_tensor_that_does_not_give_its_numbers_is_told_how() -> None:
    class Tensor:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")

    with pytest.raises(ArgumentTypeError, match=r"this Tensor is no array: Can't call numpy.*grad\. Make it a NumPy"):
        cnp.sum(cast("Any", Tensor()))
    with pytest.raises(ArgumentTypeError, match="bytes of an ONNX file, not of a Graph.*to_onnx"):
        Executable(cast("Any", trace(cnp.tanh, X).graph))


def test_what_is_told_instead_is_there() -> None:
    from coterie.compute.numpy import elsewhere

    told = {word for text in elsewhere.METHODS.values() for word in text.replace("(", " ").split() if word in dir(cnp)}
    assert {"abs", "asarray", "concat", "permute_dims", "expand_dims", "cumulative_sum"} <= told
    assert not [name for name in elsewhere.FUNCTIONS if name in dir(cnp)], "what is there is not to be replaced"


@pytest.mark.parametrize(
    "function",
    [memory_report, optimise, to_dot, to_text, flops, bytes_moved, lambda g: to_onnx(g, name="g")]
    + [lambda g: legalise(g, "cpu"), lambda g: interpret(g, {})],
)
def test_what_takes_graphs_says_how_a_function_becomes_one(function: Callable[[Any], Any]) -> None:
    for given in (cnp.tanh, trace(cnp.tanh, X), jit(cnp.tanh)):
        with pytest.raises(ArgumentTypeError, match=r"test_first_mistakes.py:\d+: .* takes a graph, got.*trace\(f"):
            function(given)


def test_arguments_may_be_given_by_name() -> None:
    def loss(w: Array, x: Array, scale: float = 1.0) -> Array:
        return cnp.sum(w * x) * scale

    np.testing.assert_array_equal(grad(loss)(X, x=X * 3.0, scale=2.0).numpy(), X * 6.0)
    np.testing.assert_array_equal(value_and_grad(loss, 1)(x=X * 3.0, w=X)[1].numpy(), X)
    np.testing.assert_array_equal(jit(loss)(x=X, w=X, scale=2.0).numpy(), 2 * np.sum(X * X))
    np.testing.assert_array_equal(vmap(loss, in_axes=(0, None, None))(X, x=X[0]).numpy(), X @ X[0])

    def only(x: Array, *, scale: float) -> Array:
        return x * scale

    with pytest.raises(ArgumentTypeError, match="scale can be given by name only.*partial"):
        jit(only)(X, scale=2.0)


def test_jit_works_on_methods() -> None:
    class Model:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        @jit
        def __call__(self, x: Array) -> Array:
            return x * self.scale

        @jit(fullgraph=True)
        def twice(self, x: Array) -> Array:
            return self(self(x))

    two, three = Model(2.0), Model(3.0)
    np.testing.assert_array_equal(two(X).numpy(), 2 * X)
    np.testing.assert_array_equal(three(X).numpy(), 3 * X)
    np.testing.assert_array_equal(three.twice(X).numpy(), 9 * X)
    np.testing.assert_array_equal(grad(lambda x: cnp.sum(two.twice(x)))(X).numpy(), np.full((2, 2), 4.0))
    assert Model.twice.compilations == 1


@pytest.mark.parametrize(
    "make", [np.random.default_rng, np.random.RandomState, random.Random], ids=["default_rng", "RandomState", "Random"]
)
def test_numbers_of_a_generator_around_the_function_are_not_baked_in(make: Callable[[int], Any]) -> None:
    draws = make(0)

    def noisy(x: Array) -> Array:
        return x + draws.random()

    compiled = jit(noisy)
    found = [float(compiled(np.float32(0))) for _ in range(3)]
    draws = make(0)
    np.testing.assert_allclose(found, [float(noisy(cnp.asarray(0.0))) for _ in range(3)], rtol=1e-6)
    assert compiled.compilations == 0 and "draws random numbers" in compiled.fallbacks[0]
    with pytest.raises(TraceError, match=r"test_first_mistakes.py:\d+: .*draws random numbers.*as arguments"):
        jit(noisy, fullgraph=True)(np.float32(0))
