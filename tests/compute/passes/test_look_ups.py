"""The gradient of a look-up in a large table adds rows at their places; that of one in a small table is a product."""

from collections.abc import Callable, Mapping
from typing import get_args

import numpy as np
import onnx
import pytest

from coterie.compute import nn, ops
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.clipping.transform import NonFinite, clipped_grad
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, NDArray
from coterie.compute.onnx.writer import Target, to_onnx
from coterie.compute.passes import optimise
from coterie.compute.passes.tune import tune
from coterie.compute.runtime.executable import Executable
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.errors import InputError

TARGETS: tuple[Target, ...] = get_args(Target)
ROWS, LARGE, SIZE = 96, 3000, 8
FOR_CPU = ("portable", "cpu", "wasm")


def step(count: int = LARGE, *, dtype: str = "float32") -> Graph:
    """A gradient with respect to a table that two look-ups read, and what a step makes of it."""

    def moved(i: GraphInputs) -> dict[str, Array]:
        def loss(table: Array) -> Array:
            read = ops.embedding(table, i["ids"]) * i["x"]
            return cnp.sum(cnp.tanh(read)) + cnp.sum(cnp.take(table, i["more"], axis=0) ** 2)

        gradient = grad(loss)(i["table"])
        return {"next/table": i["table"] - 0.1 * gradient, "squares": gradient * gradient}

    specs = {
        "table": TensorSpec((count, SIZE), dtype),
        "ids": TensorSpec((ROWS // 8, 8), "int32"),
        "more": TensorSpec((ROWS,), "int64"),
        "x": TensorSpec((ROWS // 8, 8, SIZE), dtype),
    }
    return optimise(trace_named(moved, specs))


def numbers(graph: Graph, count: int = LARGE) -> dict[str, NDArray]:
    """Feeds in which rows are named twice, and ``more`` counts from the end too."""
    rng = np.random.default_rng(0)
    found: dict[str, NDArray] = {}
    for name, value in graph.inputs.items():
        shape, dtype = value.type.shape, value.type.dtype
        lowest = -count if name == "more" else 0
        whole = rng.integers(lowest, count, shape)
        found[name] = (rng.normal(size=shape) if value.type.is_float else whole).astype(dtype)
    found["ids"][0] = found["ids"][1]
    if "more" in found:
        found["more"][:9] = [-1, count - 1, 0, -count, *found["ids"][0, :5]]
    return found


def primitives(graph: Graph) -> list[str]:
    return [node.primitive for node in graph.nodes]


@pytest.mark.parametrize("target", TARGETS)
def test_a_large_table_is_written_with_sums_where_that_was_measured_to_pay_and_nowhere_else(target: Target) -> None:
    graph = step()
    after = tune(graph, target)
    assert "scatter_add" not in primitives(graph)
    if target in FOR_CPU:
        assert primitives(after).count("scatter_add") == 2 and "equal" not in primitives(after)
        assert len(after.nodes) < len(graph.nodes)
    else:
        assert after is graph
    assert tune(after, target) is after


@pytest.mark.parametrize("count", [2, 20, 64])
def test_a_small_table_keeps_its_product(count: int) -> None:
    assert "scatter_add" not in primitives(tune(step(count), "portable"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("target", FOR_CPU)
def test_both_forms_give_the_same(target: Target, dtype: str) -> None:
    graph = step(dtype=dtype)
    given = numbers(graph)
    expected, tolerance = interpret(graph, given), {"float16": 2e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    data = to_onnx(graph, name="step", target=target)
    assert "ScatterElements" in {node.op_type for node in onnx.load_from_string(data).graph.node}
    for found in (interpret(tune(graph, target), given), Executable(data).run(given)):
        for name, value in found.items():
            np.testing.assert_allclose(value, expected[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_rows_are_added_in_their_order_by_however_many_threads() -> None:
    data, graph = to_onnx(step(), name="step"), step()
    given = numbers(graph)
    given["ids"][:] = 7
    given["x"] *= np.float32(1e4)
    one, *more = [Executable(data, threads=threads).run(given) for threads in (1, 2, 2, 4, 4)]
    for found in more:
        for name, value in found.items():
            np.testing.assert_array_equal(value, one[name], err_msg=name)


def test_rows_that_are_no_numbers_reach_no_other_row() -> None:
    graph = step()
    given = numbers(graph)
    given["ids"][1] = given["ids"][0] = 5
    given["x"][0] = np.nan
    after = Executable(to_onnx(graph, name="step")).run(given)["next/table"]
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(after).any(1)), [5])


@pytest.mark.parametrize("id_", [LARGE, LARGE + 1, -1, -LARGE - 1])
def test_an_id_outside_the_table_is_refused_where_the_table_is_read(id_: int) -> None:
    executable = Executable(to_onnx(step(), name="step"))
    given = numbers(step())
    given["ids"][3, 3] = id_
    with pytest.raises(InputError, match="leaves the axis"):
        executable.run(given)


def gradient_alone(i: GraphInputs) -> Array:
    def loss(table: Array) -> Array:
        return cnp.sum(ops.embedding(table, i["ids"]) * i["x"])

    return grad(loss)(i["table"])


UNREAD: Mapping[str, Callable[[GraphInputs], Array]] = {
    "a one-hot matrix": lambda i: cnp.matrix_transpose(ops.one_hot(i["ids"], LARGE)) @ i["x"],
    "the gradient alone": gradient_alone,
    "a longer axis": lambda i: gradient_alone(i) * cnp.tanh(cnp.sum(ops.embedding(i["longer"], i["ids"]))),
}


@pytest.mark.parametrize("form", UNREAD)
def test_ids_outside_the_table_add_nothing_where_nothing_refuses_them(form: str) -> None:
    specs = {
        "ids": TensorSpec((ROWS,), "int32"),
        "x": TensorSpec((ROWS, SIZE)),
        "table": TensorSpec((LARGE, SIZE)),
        "longer": TensorSpec((2 * LARGE, SIZE)),
    }
    graph = optimise(trace_named(lambda i: {"y": UNREAD[form](i)}, specs))
    given = numbers(graph)
    given["ids"][:5] = [LARGE, LARGE + 1, 2 * LARGE - 1, 0, LARGE - 1]
    expected = interpret(graph, given)["y"]
    after = tune(graph, "portable")
    assert primitives(after).count("scatter_add") == 1 and "gemm" not in primitives(after)
    for found in (interpret(after, given), Executable(to_onnx(graph, name="y")).run(given)):
        np.testing.assert_allclose(found["y"], expected, rtol=1e-5, atol=1e-5)


def test_an_addend_is_what_rows_are_added_to() -> None:
    def tied(i: GraphInputs) -> dict[str, Array]:
        def loss(table: Array) -> Array:
            return cnp.sum(cnp.tanh(ops.embedding(table, i["ids"]) @ cnp.matrix_transpose(table)))

        return {"g": grad(loss)(i["table"])}

    specs = {"table": TensorSpec((LARGE, SIZE)), "ids": TensorSpec((ROWS,), "int32")}
    graph = optimise(trace_named(tied, specs))
    after = tune(graph, "portable")
    assert primitives(after).count("scatter_add") == 1 and "broadcast_to" not in primitives(after)
    rng = np.random.default_rng(0)
    given = {"table": rng.normal(0, 0.1, (LARGE, SIZE)).astype(np.float32), "ids": np.arange(ROWS, dtype=np.int32)}
    expected = interpret(graph, given)["g"]
    np.testing.assert_allclose(Executable(to_onnx(graph, name="g")).run(given)["g"], expected, rtol=1e-4, atol=1e-4)


READER = nn.Sequential(nn.Embedding(LARGE, SIZE), nn.Flatten(), nn.Linear(8 * SIZE, 2))


def clipped(nonfinite: NonFinite) -> Graph:
    """The sum of clipped gradients of a model that looks rows up in a large table."""

    def loss(params: Mapping[str, Array], x: Array, y: Array) -> Array:
        z = READER(params, x, nn.train())
        return ops.logsumexp(z) - cnp.sum(z * ops.one_hot(y, 2), axis=-1)

    def step(i: GraphInputs) -> dict[str, Array]:
        params = {name: i[name] for name in READER.specs()}
        found = clipped_grad(loss, 0.3, nonfinite=nonfinite)(params, i["ids"], i["y"]).gradient
        return {f"next/{name}": array for name, array in found.items()}

    specs = {name: TensorSpec(spec.shape) for name, spec in READER.specs().items()}
    specs |= {"ids": TensorSpec((12, 8), "int32"), "y": TensorSpec((12,), "int32")}
    return optimise(trace_named(step, specs))


@pytest.mark.parametrize("nonfinite", get_args(NonFinite))
def test_clipped_gradients_are_sums_into_rows_too(nonfinite: NonFinite) -> None:
    graph = clipped(nonfinite)
    given = numbers(graph)
    given["y"] %= 2
    after = tune(graph, "portable")
    assert primitives(after).count("scatter_add") == 1 and (12, 8, LARGE) not in {
        node.output.type.shape for node in after.nodes
    }
    expected = interpret(graph, given)
    for name, value in Executable(to_onnx(graph, name="clipped")).run(given).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_an_id_outside_the_table_ends_no_private_step() -> None:
    graph = clipped("zero")
    given = numbers(graph)
    given["y"] %= 2
    given["ids"][3, 3:6] = [LARGE, -1, 1 << 30]
    expected = interpret(graph, given)
    for name, value in Executable(to_onnx(graph, name="clipped")).run(given).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
    with pytest.raises(InputError, match="leaves the axis"):
        Executable(to_onnx(clipped("spread"), name="clipped")).run(given)
