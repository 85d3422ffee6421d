"""Whether this processor's integer kernels are exact.

ONNX Runtime multiplies unsigned by signed bytes with an instruction that adds two products in 16 bits where a processor
has no VNNI: 2 · 255 · 127 does not fit, and files in int8 answer otherwise than they were calibrated for.
"""

from functools import cache
from typing import Any

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
from onnx import TensorProto, helper


@cache
def saturate() -> bool:
    """Whether sums of products of bytes are cut to 16 bits here."""
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b"], ["y"])],
        "products",
        [
            helper.make_tensor_value_info("a", TensorProto.UINT8, [8, 64]),
            helper.make_tensor_value_info("b", TensorProto.INT8, [64, 64]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [8, 64])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session: Any = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"a": np.full((8, 64), 255, np.uint8), "b": np.full((64, 64), 127, np.int8)})
    return bool(np.any(np.asarray(found[0], np.int64) != 64 * 255 * 127))
