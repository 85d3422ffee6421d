"""Functions that compile themselves when they are hot (A7), or before they are ever called (A8)."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import pytest

from coterie.compute import Array, TensorSpec, aot_compile, autojit, grad, jit, shard, use_mode
from coterie.compute import numpy as cnp
from coterie.compute.runtime.executable import Executable
from coterie.errors import ArgumentTypeError, DTypeError, InputError, ShapeError, TraceError

X = np.arange(3, dtype=np.float32)


@pytest.mark.capability("A7")
def test_a7_the_third_call_of_one_shape_runs_compiled() -> None:
    seen: list[str] = []

    @autojit
    def fn(x: Array) -> Array:
        seen.append(type(x.value).__name__)  # a traced array has a value of the graph
        return cnp.tanh(x) * 2.0

    results = [fn(X).numpy() for _ in range(5)]
    assert seen == ["NoneType", "NoneType", "Value"] and fn.compilations == 1
    for result in results:
        np.testing.assert_allclose(result, np.tanh(X) * 2, rtol=1e-6)
    fn(X[:2])
    assert seen[3:] == ["NoneType"] and fn.compilations == 1, "another shape starts cold"


@pytest.mark.capability("A7")
def test_a7_the_number_of_compilations_is_bounded() -> None:
    fn = autojit(lambda x, k: cnp.sum(x) * k, after=1, limit=4)
    for size in range(1, 12):
        for _ in range(3):
            assert fn(np.ones(size, np.float32), 2).item() == 2 * size
    assert fn.compilations == 4
    for number in range(600):  # a static argument that is always new never pays
        fn(X, number)
    assert fn.compilations == 4 and len(fn._calls) <= 256  # pyright: ignore[reportPrivateUsage]


@pytest.mark.capability("A7")
def test_a7_what_is_no_graph_still_runs() -> None:
    def host(x: Array) -> Array:
        return x * float(np.asarray(x).max())

    fn = autojit(host)
    assert [fn(X).numpy().tolist() for _ in range(4)] == [[0, 2, 4]] * 4 and fn.compilations == 0
    assert autojit(lambda x, names: x)(X, {1, 2}).numpy().tolist() == [0, 1, 2], "a set is no part of a signature"


def test_a7_within_a_trace_and_in_eager_mode_it_is_the_function() -> None:
    fn = autojit(lambda x: cnp.sum(x * x), after=1)
    assert jit(grad(fn))(X).numpy().tolist() == [0, 2, 4]
    with use_mode("eager"):
        assert [fn(X).item() for _ in range(4)] == [5] * 4
    assert fn.compilations == 0
    with pytest.raises(InputError, match="after and limit must be whole numbers of at least 1"):
        autojit(fn, after=0)


MATRIX = TensorSpec((2, 3))


def annotated(x: Annotated[Array, MATRIX], w: Annotated[Array, TensorSpec((3, 4))]) -> Array:
    return cnp.tanh(x @ w)


def operands(rows: int = 2, dtype: str = "float32") -> list[np.ndarray]:
    return [np.full((rows, 3), 0.5, dtype), np.full((3, 4), 0.2, "float32")]


@pytest.mark.capability("A8")
def test_a8_an_annotated_function_is_exported_without_being_run(tmp_path: Path) -> None:
    compiled = aot_compile(annotated)
    compiled.save(tmp_path / "fn.onnx")
    graph = onnx.load(tmp_path / "fn.onnx").graph
    shapes = [[d.dim_value for d in value.type.tensor_type.shape.dim] for value in graph.input]
    assert shapes == [[2, 3], [3, 4]]
    x, w = operands()
    expected = np.tanh(x @ w)
    (found,) = Executable(compiled.onnx).run({"0": x, "1": w}).values()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(compiled(x, w).numpy(), expected, rtol=1e-6)


SIGNATURES: list[tuple[str, Any]] = [
    ("annotations", jit(annotated)),
    ("input_signature", jit(lambda x, w: cnp.tanh(x @ w), input_signature=(MATRIX, TensorSpec((3, 4))))),
    ("ahead of time", aot_compile(lambda x, w: cnp.tanh(x @ w), (MATRIX, TensorSpec((3, 4))))),
]


@pytest.mark.capability("A8")
@pytest.mark.parametrize("fn", [fn for _, fn in SIGNATURES], ids=[name for name, _ in SIGNATURES])
@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_a8_a_call_of_another_type_raises(fn: Any, mode: Any) -> None:
    with use_mode(mode):
        assert fn(*operands()).shape == (2, 4)
        with pytest.raises(ShapeError, match=r"argument 0 must be float32\[2,3\], got float32\[5,3\]"):
            fn(*operands(rows=5))
        with pytest.raises(DTypeError, match=r"argument 0 must be float32\[2,3\], got float64\[2,3\]"):
            fn(*operands(dtype="float64"))
        with pytest.raises(DTypeError, match="argument 1 must be an array"):
            fn(operands()[0], 3.0)
        with pytest.raises(InputError, match="declared for 2 arguments of another structure; it was called with 1"):
            fn(operands()[0])


@pytest.mark.capability("A8")
def test_a8_trees_and_static_values_can_be_declared() -> None:
    wanted = ({"a": TensorSpec((3,)), "b": TensorSpec((), "int32")}, 2)
    fn = jit(lambda tree, k: tree["a"] * k, input_signature=wanted)
    given = {"a": X, "b": np.int32(1)}
    assert fn(given, 2).numpy().tolist() == [0, 2, 4] and fn.compilations == 1
    with pytest.raises(InputError, match="argument 1 was declared as 2, got 3"):
        fn(given, 3)
    with pytest.raises(InputError, match="another structure"):
        fn({"a": X}, 2)


def test_static_floats_are_told_apart_by_their_bits() -> None:
    fn = jit(lambda x, k: x / k)
    one = np.ones(1, np.float32)
    with np.errstate(divide="ignore"):
        assert [fn(one, zero).item() for zero in (0.0, -0.0, 0.0)] == [np.inf, -np.inf, np.inf]
    assert fn.compilations == 2
    assert all(np.isnan(fn(one, float("nan")).item()) for _ in range(3)) and fn.compilations == 3


def test_arguments_by_name(tmp_path: Path) -> None:
    def scaled(x: Any, k: Any = 2.0) -> Any:
        return x * k

    hot, parts = autojit(scaled, after=1), shard(scaled, shards=3, out=0)
    for call in (hot, hot, hot, parts):
        assert call(X, k=3.0).numpy().tolist() == [0, 3, 6] and call(x=X).numpy().tolist() == [0, 2, 4]
    assert hot.compilations == 2
    ahead = aot_compile(scaled, (TensorSpec((3,)), TensorSpec(())))
    assert ahead(X, k=np.float32(4)).numpy().tolist() == [0, 4, 8]
    for call in (hot, parts, ahead):
        with pytest.raises(ArgumentTypeError, match="scaled: .*'rate'"):
            call(X, rate=1)
    for transform in (autojit, aot_compile, lambda fn: shard(fn, shards=2, out=0)):  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType, reportUnknownArgumentType]
        with pytest.raises(ArgumentTypeError, match="takes a function, got 3"):
            transform(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="ONNX file cannot be written"):
        ahead.save(tmp_path / "nowhere" / "a.onnx")


def test_a_scaled_product_of_float64_is_one_of_float64() -> None:
    x = np.random.default_rng(0).normal(size=(3, 3))
    for fn in (lambda x: (x * 5**-0.5) @ x, lambda x: (x @ x) * 5**-0.5):
        np.testing.assert_allclose(jit(fn)(x).numpy(), fn(Array(x)).numpy(), rtol=1e-14)


def test_a8_a_signature_is_a_sequence() -> None:
    with pytest.raises(InputError, match=r"input_signature must be a list or tuple .*TensorSpec\(shape"):
        aot_compile(cnp.tanh, MATRIX)  # pyright: ignore[reportArgumentType]


def test_an_array_of_another_machine_is_named() -> None:
    with pytest.raises(InputError, match="got float32.2. in another order of bytes"):
        jit(cnp.tanh)(np.ones(2, ">f4"))


def test_a8_what_is_not_declared_cannot_be_compiled_ahead() -> None:
    for fn in (lambda x: x, lambda: None):
        with pytest.raises(InputError, match="types of the arguments of <lambda> are not declared"):
            aot_compile(fn)

    def partly(x: Annotated[Array, MATRIX], w: Array) -> Array:
        return x @ w

    with pytest.raises(InputError, match="arguments of partly are not declared"):
        aot_compile(partly)
    assert jit(partly)(*operands()).shape == (2, 4), "under jit it is compiled for what it is given"
    with pytest.raises(TraceError, match="is being traced"):
        aot_compile(lambda x: x * float(x[0]), (TensorSpec((3,)),))


class Scaled:
    factor = 3.0

    @jit
    def compiled(self, x: Any) -> Any:
        if x > 0:
            x = x * self.factor
        return x

    @autojit
    def counted(self, x: Any) -> Any:
        return self.compiled(x) + 1


def test_what_is_compiled_may_be_compiled_again_and_be_a_method() -> None:
    scaled = Scaled()
    again: Callable[..., Any] = scaled.compiled
    assert float(jit(again)(np.float32(2.0))) == 6.0
    assert [float(scaled.counted(np.float32(2.0))) for _ in range(4)] == [7.0] * 4
    lazy = jit(lambda x: float(x) + x)
    assert float(lazy(np.float32(2.0))) == 4.0
    with pytest.raises(TraceError):
        jit(lazy, fullgraph=True)(np.float32(2.0))
