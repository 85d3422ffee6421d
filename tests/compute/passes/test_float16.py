"""float16 stands where it keeps the meaning, and there alone."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.passes.inference import in_float16, optimise_for_inference
from tests.compute.passes.graphs import answers, numbers, of

A32 = numbers(4, 4).astype(np.float32)
HALVED: Mapping[str, tuple[Callable[[Array], Array], set[str]]] = {
    "what follows a product": (lambda x: ops.relu(x @ A32) + np.float32(1), {"gemm", "relu", "add"}),
    "not an exponential": (lambda x: cnp.exp(x @ A32), {"gemm"}),
    "not a sum": (lambda x: cnp.sum(x @ A32, axis=1), {"gemm"}),
    "not a square": (lambda x: (x @ A32) ** np.float32(2), {"gemm"}),
    "not with a number beyond 65504": (lambda x: cnp.tanh(x @ A32) * np.float32(1e6), {"gemm", "tanh"}),
    "not with a number below 6e-8": (lambda x: cnp.tanh(x @ A32) * np.float32(1e-9), {"gemm", "tanh"}),
    "not with weights beyond 65504": (lambda x: x @ (A32 * np.float32(1e6)), set[str]()),
    "again from the next product on": (lambda x: ops.softmax(x @ A32) @ A32, {"gemm"}),
    "not without a product": (lambda x: ops.relu(x), set[str]()),
}


@pytest.mark.parametrize("case", HALVED)
def test_float16_is_where_it_keeps_the_meaning(case: str) -> None:
    fn, half = HALVED[case]
    graph = optimise_for_inference(of(fn, 3, 4, dtype="float32"))
    after = in_float16(graph)
    assert {v.type.dtype for v in (*after.inputs.values(), *after.outputs.values())} == {"float32"}
    made = {node.primitive for node in after.nodes if node.output.type.dtype == "float16"}
    assert made - {"constant", "astype"} == half
    np.testing.assert_allclose(answers(after), answers(graph), rtol=0.02, atol=0.02)
