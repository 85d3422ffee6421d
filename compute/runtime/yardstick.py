"""The yardstick: one small inference, the same for ever, by which the speed of machines is compared.

It is LeNet's forward pass written out by operators, not made by the compiler: a later compiler must not change it.
"""

import time
from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from coterie.compute.ir import NDArray
from coterie.compute.runtime.executable import Executable

_SHAPES = {"w1": (6, 1, 5, 5), "w2": (16, 6, 5, 5), "w3": (400, 120), "w4": (120, 84), "w5": (84, 10)}
_SAME, _HALVED = {"pads": [2, 2, 2, 2]}, {"kernel_shape": [2, 2], "strides": [2, 2]}
_NODES: tuple[tuple[str, tuple[str, ...], str, dict[str, list[int]]], ...] = (
    ("Conv", ("x", "w1"), "c1", _SAME),
    ("Relu", ("c1",), "r1", {}),
    ("MaxPool", ("r1",), "p1", _HALVED),
    ("Conv", ("p1", "w2"), "c2", {}),
    ("Relu", ("c2",), "r2", {}),
    ("MaxPool", ("r2",), "p2", _HALVED),
    ("Flatten", ("p2",), "f", {}),
    ("MatMul", ("f", "w3"), "g1", {}),
    ("Relu", ("g1",), "r3", {}),
    ("MatMul", ("r3", "w4"), "g2", {}),
    ("Relu", ("g2",), "r4", {}),
    ("MatMul", ("r4", "w5"), "y", {}),
)
_BLOCK_S = 1e-3
_WARM_UP = 3


def yardstick() -> bytes:
    """The graph as an ONNX file of opset 17: x float32[1, 1, 28, 28] → y float32[1, 10]."""
    weights = [numpy_helper.from_array(_spread(shape), name) for name, shape in _SHAPES.items()]
    nodes = [helper.make_node(kind, inputs, [output]) for kind, inputs, output, _ in _NODES]
    for node, (_, _, _, settings) in zip(nodes, _NODES, strict=True):
        node.attribute.extend(helper.make_attribute(name, value) for name, value in settings.items())
    graph = helper.make_graph(
        nodes,
        "yardstick",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 1, 28, 28))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 10))],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString(deterministic=True)


def _spread(shape: tuple[int, ...]) -> NDArray:
    """Numbers spread over [-1, 1): which ones does not matter, but subnormal ones would be slow."""
    golden = np.arange(int(np.prod(shape)), dtype=np.uint64) * np.uint64(2654435769) % np.uint64(1 << 24)
    return (golden.astype(np.float32) * np.float32(2.0**-23) - np.float32(1)).reshape(shape)


def yardstick_us(*, threads: int = 1, rounds: int = 5, clock: Callable[[], float] = time.perf_counter) -> float:
    """Microseconds of the yardstick on ONNX Runtime's CPU provider here: the least of ``rounds`` blocks of at least a
    millisecond, after a few runs that are not counted. It takes about 20 ms with its loading.
    """
    executable = Executable(yardstick(), threads=threads)
    feeds = {"x": np.full((1, 1, 28, 28), 0.5, np.float32)}
    return least_seconds(lambda: executable.run(feeds), rounds=rounds, clock=clock) * 1e6


def least_seconds(
    run: Callable[[], object], *, rounds: int, clock: Callable[[], float] = time.perf_counter, block_s: float = _BLOCK_S
) -> float:
    """Seconds of one call: the least mean over ``rounds`` blocks of calls, each of at least ``block_s`` seconds.

    The least, because whatever else a machine does can only add to the time.
    """
    for _ in range(_WARM_UP):
        run()
    best = float("inf")
    for _ in range(rounds):
        start, calls = clock(), 0
        while True:
            run()
            calls += 1
            spent = clock() - start
            if spent >= block_s:
                break
        best = min(best, spent / calls)
    return best
