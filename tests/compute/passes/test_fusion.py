"""What is fused moves fewer bytes through fewer nodes, and gives the same numbers."""

from collections.abc import Callable

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.control.derived import checkpoint
from coterie.compute.onnx.writer import Target, to_onnx
from coterie.compute.passes import optimise
from coterie.compute.passes.cost import bytes_moved
from coterie.compute.runtime.executable import Executable
from coterie.compute.trace import GraphInputs, TensorSpec, trace, trace_named
from tests.compute.core.test_steps import MODELS, adam, feeds, sgd, step_graph


@pytest.mark.capability("E8")
@pytest.mark.parametrize("update", [sgd, adam])
@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_a_step_moves_fewer_bytes_and_gives_the_same_numbers(
    update: Callable[..., dict[str, Array]], target: Target
) -> None:
    raw = step_graph(MODELS["lenet"], update)
    fused = optimise(raw)
    assert len(fused.nodes) < len(raw.nodes) and bytes_moved(fused) < bytes_moved(raw)
    given = feeds(MODELS["lenet"], raw)
    on, off = (Executable(to_onnx(graph, name="step", target=target)).run(given) for graph in (fused, raw))
    for name, value in off.items():
        np.testing.assert_allclose(on[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.capability("E8")
def test_a_convolution_takes_its_bias_and_the_numbers_stay() -> None:
    def fn(i: GraphInputs) -> dict[str, Array]:
        y = ops.conv2d(i["x"], i["w"]) + cnp.reshape(i["b"], (1, 3, 1, 1))
        return {"y": ops.relu(y + ops.conv2d(i["x"], i["v"]))}

    kernel = TensorSpec((3, 2, 3, 3))
    raw = trace_named(fn, {"x": TensorSpec((2, 2, 8, 8)), "w": kernel, "v": kernel, "b": TensorSpec((3,))})
    fused = optimise(raw)
    assert [node.primitive for node in fused.nodes] == ["conv", "conv", "add", "relu"]
    assert bytes_moved(fused) < bytes_moved(raw)
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=value.type.shape).astype(np.float32) for name, value in raw.inputs.items()}
    on, off = (Executable(to_onnx(graph, name="layer")).run(given)["y"] for graph in (fused, raw))
    np.testing.assert_allclose(on, off, rtol=1e-5, atol=1e-5)


def test_what_a_call_moves_is_what_its_nodes_move() -> None:
    def twice(x: Array) -> Array:
        return cnp.tanh(cnp.exp(x))

    spec = TensorSpec((4, 4))
    called, plain = trace(checkpoint(twice), spec).graph, trace(twice, spec).graph
    assert bytes_moved(called) == bytes_moved(plain) == 4 * 4 * 4 * 4
