"""Files to export, for the tests of exports."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from coterie.compute.export import ExportOptions
from coterie.compute.ir import NDArray

FIXTURES = Path(__file__).parents[1] / "importer" / "fixtures"
QUICK = 3  # timed runs: what they say is not asked here


def quick(**options: object) -> ExportOptions:
    return ExportOptions(**{"repeats": QUICK, **options})  # pyright: ignore[reportArgumentType]  one name each


def rows(*shape: int, seed: int = 0) -> NDArray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def foreign(*nodes: onnx.NodeProto, **tensors: NDArray) -> bytes:
    """x[batch, 2, 4, 4] → y, by these nodes and initialisers."""
    graph = helper.make_graph(
        list(nodes),
        "foreign",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


CHANNELS = {name: np.abs(rows(3, seed=index)) + 0.5 for index, name in enumerate(("s", "t", "m", "v"))}
BATCH_NORM = foreign(
    helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
    helper.make_node("BatchNormalization", ["c", "s", "t", "m", "v"], ["y"]),
    w=rows(3, 2, 3, 3),
    **CHANNELS,
)
CONV = foreign(helper.make_node("Conv", ["x", "w"], ["y"]), w=rows(3, 2, 3, 3))
