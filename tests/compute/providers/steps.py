"""A training step with a frozen front, as graph and as file, and what it is fed."""

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.ir import Graph, NDArray
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.choice import StepCase
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named

SPECS = {
    "batch/x": TensorSpec((4, 1, 4, 4)),
    "batch/y": TensorSpec((4,), "int32"),
    "frozen/kernel": TensorSpec((4, 1, 3, 3)),
    "shared/w": TensorSpec((16, 3)),
    "optimizer/m": TensorSpec((16, 3)),
    "hyper/lr": TensorSpec((1,)),
}
CARRY = {"next/shared/w": "shared/w", "next/optimizer/m": "optimizer/m"}
FED = ("batch/x", "batch/y", "hyper/lr")


def _step(i: GraphInputs) -> dict[str, Array]:
    features = xp.reshape(ops.max_pool2d(ops.relu(ops.conv2d(i["batch/x"], i["frozen/kernel"], padding=1)), 2), (4, 16))

    def loss(p: dict[str, Array]) -> Array:
        z = features @ p["w"]
        return xp.mean(ops.logsumexp(z) - xp.sum(z * ops.one_hot(i["batch/y"], 3), axis=1))

    value, gradients = value_and_grad(loss)({"w": i["shared/w"]})
    momentum = 0.9 * i["optimizer/m"] + gradients["w"]
    return {
        "loss": value,
        "next/optimizer/m": momentum,
        "next/shared/w": i["shared/w"] - i["hyper/lr"] * momentum,
    }


def graph() -> Graph:
    """The optimised step: a frozen convolution, then a linear layer trained with momentum."""
    return optimise(trace_named(_step, SPECS))


def feeds(seed: int = 0) -> dict[str, NDArray]:
    """Every input, by name."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=spec.shape).astype(np.float32)
        if spec.dtype == "float32"
        else rng.integers(0, 3, spec.shape).astype(np.int32)
        for name, spec in SPECS.items()
    }


def case(seed: int = 0) -> StepCase:
    """The step as what a loop takes."""
    given = feeds(seed)
    return StepCase(
        data=to_onnx(graph(), name="train"),
        carry=CARRY,
        constants={"frozen/kernel": given["frozen/kernel"]},
        state={name: given[name] for name in CARRY.values()},
        feeds={name: given[name] for name in FED},
    )
