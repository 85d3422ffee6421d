"""Primitives of a user's own, with all hooks and with few: the table over which their laws are tested."""

# Hooks are functions in a class that is never made: they have no self, and their parameters no declared types.
# pyright: reportSelfClsParameterName=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportGeneralTypeIssues=false, reportUnknownLambdaType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from typing import Any

import numpy as np

from coterie.compute import numpy as cnp
from coterie.compute import ops, primitive
from coterie.compute.extension.row import UserPrimitive
from coterie.compute.primitives.row import Batched


@primitive("TensorAdd", inputs=("input1", "input2"), outputs=("sum",))
class tensor_add:
    """The sum of two tensors of one shape and one dtype: nothing is broadcast and nothing converted."""

    def infer_shape(input1: Any, input2: Any) -> Any:
        if input1 != input2:
            raise ValueError(f"the shapes {list(input1)} and {list(input2)} must be equal")
        return input1

    def infer_dtype(input1: str, input2: str) -> str:
        if input1 != input2:
            raise TypeError(f"the dtypes {input1} and {input2} must be equal")
        return input1

    def kernel(input1: Any, input2: Any) -> Any:
        return input1 + input2

    def vjp(input1: Any, input2: Any, total: Any, dtotal: Any) -> Any:
        return dtotal, dtotal

    def batch(call: Batched) -> Any:
        a, b = (
            x if mapped else cnp.broadcast_to(x, (call.size, *x.shape))
            for x, mapped in zip(call.inputs, call.mapped, strict=True)
        )
        return tensor_add(a, b)

    def lower(input1: Any, input2: Any) -> Any:
        return input1 + input2


@primitive("test.swish", inputs=("x",), outputs=("y",), attributes={"beta": 1.0})
def swish(x: Any, *, beta: float) -> Any:
    """Only a lowering: everything else follows."""
    return x * ops.sigmoid(x * beta)


@primitive("test.polar", inputs=("x", "y"), outputs=("square", "product"), attributes={"power": 2})
class polar:
    """Two results, a kernel of its own, gradient and batch rule from the lowering."""

    def infer_shape(x: Any, y: Any, *, power: int) -> Any:
        shape = np.broadcast_shapes(x, y)
        return shape, shape

    def infer_dtype(x: str, y: str, *, power: int) -> Any:
        return x, y

    def kernel(x: Any, y: Any, *, power: int) -> Any:
        return np.add(x**power, y**power), np.multiply(x, y)

    def lower(x: Any, y: Any, *, power: int) -> Any:
        return cnp.pow(x, power) + cnp.pow(y, power), x * y


@primitive("test.reversed_sum", inputs=("x",), outputs=("y",))
class reversed_sum:
    """No lowering: sums from the end, by NumPy alone; its gradient and batch rule use another such primitive."""

    def infer_shape(x: Any) -> Any:
        if len(x) != 1:
            raise ValueError(f"{list(x)} is not a vector")
        return x

    def kernel(x: Any) -> Any:
        return np.cumsum(x[::-1])[::-1].astype(x.dtype)

    def vjp(x: Any, y: Any, dy: Any) -> Any:
        return cnp.flip(reversed_sum(cnp.flip(dy, axis=0)), axis=0)

    def batch(call: Batched) -> Any:
        return cnp.stack([reversed_sum(call.inputs[0][i]) for i in range(call.size)])


def spread(*shape: int, seed: int = 0, dtype: str = "float64") -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


CASES: dict[str, tuple[UserPrimitive, tuple[Any, ...], dict[str, Any]]] = {
    "TensorAdd": (tensor_add, (spread(2, 3), spread(2, 3, seed=1)), {}),
    "TensorAdd of numbers": (tensor_add, (spread(), spread(seed=1)), {}),
    "swish": (swish, (spread(3, 2),), {"beta": 0.5}),
    "swish by default": (swish, (spread(4),), {}),
    "polar": (polar, (spread(2, 3), spread(2, 3, seed=2)), {}),
    "polar of cubes": (polar, (spread(3), spread(3, seed=2)), {"power": 3}),
    "reversed sum": (reversed_sum, (spread(5),), {}),
}


def bare(name: str, **hooks: Any) -> UserPrimitive:
    """A primitive of one vector with these hooks."""
    hooks = {"infer_shape": lambda x: x, **hooks}
    members = {key: staticmethod(hook) for key, hook in hooks.items()}
    return primitive(name, inputs=("x",), outputs=("y",))(type(name, (), members))
