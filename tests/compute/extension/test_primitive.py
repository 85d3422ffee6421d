"""A primitive of a user's own obeys the laws of the core's, wherever it is used."""

# pyright: reportSelfClsParameterName=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.compute import (
    Array,
    Registry,
    TensorSpec,
    check_primitive,
    cond,
    grad,
    interpret,
    jit,
    optimise,
    parse,
    primitive,
    register,
    scan,
    to_onnx,
    to_text,
    trace,
    use_registry,
    value_and_grad,
    verify,
    vjp,
    vmap,
)
from coterie.compute import numpy as cnp
from coterie.compute.extension.row import UserPrimitive
from coterie.compute.ir import Graph, Node, Type, Value
from coterie.compute.runtime.executable import Executable
from coterie.compute.table import PLAIN
from coterie.errors import DTypeError, InputError, ShapeError, TraceError
from tests.compute.extension.primitives import CASES, bare, polar, reversed_sum, spread, swish, tensor_add


@pytest.fixture(autouse=True)
def registry() -> Any:
    with use_registry(Registry()) as held:
        for row in {row.name: row for row, _, _ in CASES.values()}.values():
            register(row)
        yield held


def results(returned: Any) -> list[Any]:
    return [array.numpy() for array in (returned if isinstance(returned, tuple) else (returned,))]


@pytest.mark.capability("E1")
def test_e1_tensor_add_checks_shapes_and_dtypes_and_names_itself() -> None:
    a = cnp.asarray(np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(tensor_add(a, a).numpy(), np.full((2, 3), 2.0))
    with pytest.raises(
        ShapeError,
        match=r"test_primitive.py:\d+: TensorAdd\(float32\[2,3\], float32\[3\]\): the shapes \[2, 3\] and \[3\]",
    ) as caught:
        tensor_add(a, cnp.ones(3))
    assert caught.value.details["operation"] == "TensorAdd"
    with pytest.raises(
        DTypeError, match=r"TensorAdd\(float32\[2,3\], float64\[2,3\]\): the dtypes float32 and float64"
    ):
        tensor_add(a, cnp.astype(a, "float64"))
    with pytest.raises(ShapeError, match=r"TensorAdd\(float32\[2,3\], float32\[3\]\)"):  # the same while traced
        trace(lambda x: tensor_add(x, cnp.ones(3)), a)


@pytest.mark.parametrize(("row", "operands", "attributes"), CASES.values(), ids=CASES.keys())
def test_the_laws_of_the_core_hold(row: UserPrimitive, operands: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    check_primitive(row, *operands, **attributes)
    check_primitive(row, *(x.astype(np.float32) for x in operands), **attributes)


@pytest.mark.parametrize(("row", "operands", "attributes"), CASES.values(), ids=CASES.keys())
def test_eager_graph_text_and_file_agree(
    row: UserPrimitive, operands: tuple[Any, ...], attributes: dict[str, Any]
) -> None:
    arrays = [Array(np.asarray(x, np.float32)) for x in operands]
    expected = results(row(*arrays, **attributes))
    traced = trace(lambda *given: row(*given, **attributes), *arrays)
    feeds = {name: array.numpy() for name, array in zip(traced.graph.inputs, arrays, strict=True)}
    assert [node.label for node in traced.graph.nodes] == [row.name]
    for graph in (traced.graph, parse(to_text(traced.graph)), optimise(traced.graph)):
        for made, value in zip(interpret(verify(graph), feeds).values(), expected, strict=True):
            np.testing.assert_allclose(made, value, rtol=1e-6, atol=1e-6)
    text = to_text(traced.graph)
    assert f"= {row.name}(" in text and to_text(parse(text)) == text
    compiled = jit(lambda *given: row(*given, **attributes))
    for made, value in zip(results(compiled(*arrays)), expected, strict=True):
        np.testing.assert_allclose(made, value, rtol=1e-5, atol=1e-6)
    if row.lower is None:
        assert compiled.compilations == 0 and row.name in compiled.fallbacks[0]
        return
    assert compiled.compilations == 1
    assert {node.primitive for node in optimise(traced.graph).nodes} <= PLAIN
    for target in ("portable", "cpu"):
        run = Executable(to_onnx(_named(traced.graph), name="user", target=target)).run
        made = run({name: x.reshape(x.shape or (1,)) for name, x in feeds.items()})
        for value, found in zip(expected, made.values(), strict=True):
            np.testing.assert_allclose(found.reshape(value.shape), value, rtol=1e-5, atol=1e-6)


def _named(graph: Graph) -> Graph:
    return Graph(graph.inputs, graph.nodes, {f"result/{name}": value for name, value in graph.outputs.items()})


def test_it_works_inside_of_everything() -> None:
    x = cnp.asarray(spread(4, dtype="float64"))

    def through_everything(v: Any) -> Any:
        chosen = cond(cnp.sum(v) > 0.0, lambda: swish(v), lambda: tensor_add(v, v))
        carried, _ = scan(lambda c, row: (tensor_add(c, swish(row * c)), row), chosen, cnp.stack([v, v * 0.5]))
        square, product = polar(carried, v)
        return cnp.sum(square * product)

    def plainly(v: Any) -> Any:
        plain_swish = lambda z: swish.lower(z, beta=1.0)  # type: ignore[misc]  # noqa: E731
        chosen = plain_swish(v) if float(cnp.sum(x)) > 0.0 else v + v
        for row in (v, v * 0.5):
            chosen = chosen + plain_swish(row * chosen)
        return cnp.sum((chosen * chosen + v * v) * chosen * v)

    second = lambda fn: grad(lambda v: cnp.sum(grad(fn)(v) ** 2.0))  # noqa: E731
    for transform in (value_and_grad, second):
        for made, value in zip(_leaves(transform(through_everything)(x)), _leaves(transform(plainly)(x)), strict=True):
            np.testing.assert_allclose(made, value, rtol=1e-8)
    np.testing.assert_allclose(
        jit(grad(through_everything), fullgraph=True)(x).numpy(), grad(plainly)(x).numpy(), rtol=1e-8
    )
    batch = cnp.stack([x, x * 2.0])
    np.testing.assert_allclose(
        vmap(grad(through_everything))(batch).numpy(),
        np.stack([grad(through_everything)(example).numpy() for example in batch]),
        rtol=1e-8,
    )


def _leaves(tree: Any) -> list[Any]:
    return [array.numpy() for array in (tree if isinstance(tree, tuple) else (tree,))]


def test_without_a_lowering_it_runs_on_the_host_and_an_export_refuses_it_by_name() -> None:
    x = cnp.asarray(np.asarray([1, 2, 3], np.float32))

    def fn(v: Any) -> Any:
        return cnp.sum(reversed_sum(v * 2.0) * v)

    compiled = jit(fn)
    assert float(compiled(x)) == float(fn(x)) == 50.0
    assert (compiled.compilations, compiled.fallbacks) == (1, ())
    assert len(compiled.host_calls) == 1 and "test_primitive.py:" in compiled.host_calls[0]
    with pytest.raises(TraceError, match=r"test_primitive.py:\d+: primitive 'test.reversed_sum' has no lowering"):
        jit(fn, fullgraph=True)(x)
    for target in ("portable", "cpu"):
        with pytest.raises(TraceError, match="primitive 'test.reversed_sum' has no lowering") as caught:
            to_onnx(_named(trace(fn, x).graph), name="user", target=target)
        assert caught.value.reason == "lowering_missing"
    expected = [2.0 * (cumulative + rest) for cumulative, rest in zip((1, 3, 6), (6, 5, 3), strict=True)]
    np.testing.assert_allclose(grad(fn)(x).numpy(), expected)
    inside = jit(lambda v: cond(cnp.sum(v) > 0.0, lambda: fn(v), lambda: 0.0 * fn(v)))
    assert float(inside(x)) == 50.0 and "has no lowering" in inside.host_calls[0]


V = cnp.asarray(np.asarray([1.0, 2.0, 3.0], np.float32))


def test_what_a_primitive_lacks_is_said() -> None:
    row = bare("test.bare", kernel=np.copy)
    for act in (lambda: grad(lambda v: cnp.sum(row(v)))(V), lambda: vmap(row)(cnp.stack([V, V]))):
        with pytest.raises(TraceError, match=r"test_primitive.py:\d+: primitive 'test.bare' has no .* and no lowering"):
            act()
    with pytest.raises(InputError, match=r"has no kernel for \(float32\); it has none at all"):
        bare("test.nothing")(V)


def test_a_node_carries_its_primitive_and_a_graph_needs_no_registry() -> None:
    own = primitive("test.swish", inputs=("x",))(lambda x: x * 3.0)  # not registered, and its name is another's
    graph = trace(own, TensorSpec((3,))).graph
    with use_registry(Registry()):
        np.testing.assert_array_equal(interpret(graph, {"0": V.numpy()})["output"], 3.0 * V.numpy())
        with pytest.raises(TraceError, match="no primitive of that name.*register"):
            parse(to_text(graph))


def test_the_verifier_holds_a_node_to_its_primitive() -> None:
    x = Value(Type("float32", (3,)))
    bad = Node("user", (x,), (Value(Type("float32", (4,))),), {"primitive": swish, "beta": 1.0}, "train.py:7")
    with pytest.raises(TraceError, match=r"node 0 \(test.swish, train.py:7\): wrongly typed"):
        verify(Graph({"x": x}, (bad,), {"y": bad.output}))
    bad = Node("user", (x,), (Value(x.type),), {"primitive": tensor_add})
    with pytest.raises(TraceError, match="takes 2 operands, not 1"):
        verify(Graph({"x": x}, (bad,), {"y": bad.output}))


def test_operands_come_by_name_too_and_numbers_become_arrays() -> None:
    np.testing.assert_array_equal(tensor_add(input2=V, input1=V).numpy(), 2 * V.numpy())
    assert float(tensor_add(1.0, 2.0)) == 3.0


def test_hooks_may_be_inherited_and_every_transform_takes_the_primitive_itself() -> None:
    class Elementwise:
        infer_shape = staticmethod(lambda x: x)

    class Cube(Elementwise):
        lower = staticmethod(lambda x: x * x * x)

    cube = primitive("test.cube", inputs=("x",))(Cube)
    assert jit(cube, fullgraph=True)(V).numpy().tolist() == vmap(cube)(V).numpy().tolist() == [1.0, 8.0, 27.0]
    assert vmap(grad(jit(cube)))(V).numpy().tolist() == [3.0, 12.0, 27.0]
    assert getattr(jit(cube), "__name__", "") == "test.cube"
    assert cube(Array(V.numpy()[::-1])).numpy().tolist() == [27.0, 8.0, 1.0]


def test_integers_have_no_cotangent() -> None:
    row = primitive("test.pick", inputs=("x", "i"))(lambda x, i: cnp.take(x, i, axis=0) * 2.0)
    ids = cnp.asarray(np.asarray([2, 0], np.int32))
    np.testing.assert_array_equal(grad(lambda v: cnp.sum(row(v, ids)))(V).numpy(), [2.0, 0.0, 2.0])
    value, pull = vjp(lambda v: row(v, ids), V)
    assert value.shape == (2,) and len(pull(cnp.ones(2))) == 1


def test_importing_the_compiler_neither_looks_for_plugins_nor_registers_anything(tmp_path: Path) -> None:
    program = (
        "import sys, coterie.compute, coterie.compute.verify; from coterie.compute.extension.registry import "
        "active_registry; print(sorted(active_registry().primitives), 'importlib.metadata' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[] False"
