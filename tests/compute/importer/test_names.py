"""Names of weights: a tensor keeps its own numbers whatever nodes and tensors are called, and is found by its name."""

from collections.abc import Callable

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from coterie.compute.ir import NDArray
from coterie.compute.onnx import load
from coterie.errors import InputError

ONES = np.ones(3, np.float32)
X = np.full((2, 3), 5.0, np.float32)
node = helper.make_node


def model(nodes: list[NodeProto], **held: NDArray) -> bytes:
    """A graph from x to y."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 3)) for name in "xy")
    tensors = [numpy_helper.from_array(values, name) for name, values in held.items()]
    graph = helper.make_graph(nodes, "names", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


FACTOR = model([node("Mul", ["x", "layers[0].w"], ["y"])], **{"layers[0].w": 2 * ONES})


def test_a_tensor_told_apart_takes_no_name_that_another_one_has() -> None:
    nodes = [
        node("Mul", ["x", "scale"], ["a"], name="first"),
        node("Mul", ["a", "scale"], ["b"], name="second"),
        node("Mul", ["b", "second.B"], ["y"], name="third"),
    ]
    found = load(model(nodes, **{"scale": ONES, "second.B": 2 * ONES}))
    np.testing.assert_array_equal(found(found.parameters, X).numpy(), 2 * X)
    assert set(found.parameters) == {"scale", "second.B", "second.B.2"}


def test_nodes_of_one_name_get_a_tensor_each() -> None:
    nodes = [
        node("Mul", ["x", "scale"], ["a"], name="norm"),
        node("Mul", ["a", "scale"], ["b"], name="norm"),
        node("Mul", ["b", "scale"], ["y"], name="norm"),
    ]
    found = load(model(nodes, scale=ONES))
    assert list(found.parameters) == ["scale", "norm.B", "norm.B.2"]
    moved = {**found.parameters, "norm.B.2": 3 * ONES}
    np.testing.assert_array_equal(found(moved, X).numpy(), 3 * X)


def test_a_name_with_brackets_is_a_name() -> None:
    found = load(FACTOR)
    assert list(found.freeze("layers[0].w").frozen) == ["layers[0].w"]
    assert list(found.freeze("*").unfreeze("layers[0].w").parameters) == ["layers[0].w"]


WRONG: list[tuple[str, Callable[[], object]]] = [
    (r"\['w'\] is no name of a weight", lambda: load(FACTOR).freeze(["w"])),  # pyright: ignore[reportArgumentType]
    ("outputs is a list of names of tensors, got 'y'", lambda: load(FACTOR, outputs="y")),
    (r"outputs is a list of names of tensors, got \[\]", lambda: load(FACTOR, outputs=[])),
    ("'int32' is no float dtype", lambda: load(FACTOR).astype("int32")),
    ("'bfloat16' is no float dtype", lambda: load(FACTOR).astype("bfloat16")),
    ("a dict by names, got NoneType", lambda: load(FACTOR)(None, X)),  # pyright: ignore[reportArgumentType]
]


@pytest.mark.parametrize(("message", "make"), WRONG, ids=[message for message, _ in WRONG])
def test_what_names_nothing_is_refused_with_a_way_out(message: str, make: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert caught.value.hint
