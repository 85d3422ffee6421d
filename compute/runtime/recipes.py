"""Small graphs that together use every primitive and every gradient rule: what a provider must compute rightly before
it is trusted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array, bind
from coterie.compute.autodiff import vjp
from coterie.compute.ir import Graph, NDArray
from coterie.compute.passes import optimise
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named

One = Callable[[Array], Array]
Two = Callable[[Array, Array], Array]
Three = Callable[[Array, Array, Array], Array]
Four = Callable[[Array, Array, Array, Array], Array]


@dataclass(frozen=True)
class Recipe:
    """A function and the inputs to try it on. A float input is filled with numbers in ``[low, high)``, an integer one
    with 0 .. ids - 1.

    graph() computes the function and, with differentiable, also its gradient for a random cotangent.
    """

    name: str
    function: One | Two | Three | Four
    inputs: tuple[TensorSpec, ...]
    low: float = -2.0
    high: float = 2.0
    ids: int = 5
    differentiable: bool = True
    optimised: bool = False

    def graph(self) -> Graph:
        """The graph: inputs "0", "1", ... and "cotangent"; outputs "value" and "gradient/0", ..."""
        specs = {str(index): spec for index, spec in enumerate(self.inputs)}
        function = cast("Callable[..., Array]", self.function)

        def build(inputs: GraphInputs) -> dict[str, Array]:
            def forward(given: Mapping[str, Array]) -> Array:
                return function(*(given.get(name, inputs[name]) for name in specs))

            floats = {name: inputs[name] for name, spec in specs.items() if spec.dtype == "float32"}
            if not self.differentiable:
                return {"value": forward(floats)}
            value, pull = vjp(forward, floats)
            (gradients,) = pull(inputs.request("cotangent", TensorSpec(value.shape)))
            return {"value": value} | {f"gradient/{name}": gradient for name, gradient in gradients.items()}

        graph = trace_named(build, specs)
        return optimise(graph) if self.optimised else graph

    def feeds(self, graph: Graph, draw: int = 0) -> dict[str, NDArray]:
        """Inputs that depend on the recipe's name and the number of the draw alone; tensors of rank 0 as [1]."""
        rng = np.random.default_rng([draw, *(ord(letter) for letter in self.name)])
        feeds: dict[str, NDArray] = {}
        for name, value in graph.inputs.items():
            shape = value.type.shape or (1,)
            if value.type.dtype == "float32":
                feeds[name] = (self.low + (self.high - self.low) * rng.random(shape)).astype(np.float32)
            else:
                feeds[name] = rng.integers(0, self.ids, shape).astype(value.type.dtype)
        return feeds


def _f(*shape: int) -> TensorSpec:
    return TensorSpec(shape)


def _i(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "int32")


def _fused_step(x: Array, w: Array, g: Array, rate: Array) -> Array:
    return w - rate * (xp.matrix_transpose(x) @ g)


IMAGE = _f(2, 4, 8, 6)

RECIPES: tuple[Recipe, ...] = (
    Recipe("add", lambda a, b: a + b, (_f(3, 4), _f(4))),
    Recipe("subtract", lambda a, b: a - b, (_f(3, 4), _f(3, 1))),
    Recipe("multiply", lambda a, b: a * b, (_f(3, 4), _f(1))),
    Recipe("divide", lambda a, b: a / b, (_f(3, 4), _f(3, 4)), low=0.5),
    Recipe("negative", lambda a: -a * 2.0, (_f(3, 4),)),
    Recipe("maximum", xp.maximum, (_f(3, 4), _f(3, 4))),
    Recipe("minimum", xp.minimum, (_f(3, 4), _f(3, 4))),
    Recipe("clip", lambda a: xp.clip(a, -1.0, 1.0), (_f(3, 4),)),
    Recipe("exp", xp.exp, (_f(3, 4),)),
    Recipe("log", xp.log, (_f(3, 4),), low=0.1),
    Recipe("sqrt", xp.sqrt, (_f(3, 4),), low=0.1),
    Recipe("tanh", xp.tanh, (_f(3, 4),)),
    Recipe("sigmoid", ops.sigmoid, (_f(3, 4),), low=-30, high=30),
    Recipe("relu", ops.relu, (_f(3, 4),)),
    Recipe("softplus", ops.softplus, (_f(3, 4),), low=-50, high=50),
    Recipe("gelu", ops.gelu, (_f(3, 4),)),
    Recipe("softmax", ops.softmax, (_f(3, 4),), low=-30, high=30),
    Recipe("softmax of the first axis", lambda a: ops.softmax(a, axis=0), (_f(3, 4),)),
    Recipe("log_softmax", ops.log_softmax, (_f(3, 4),), low=-30, high=30),
    Recipe("where", lambda a, b: xp.where(xp.greater(a, b), a, b * 2.0), (_f(3, 4), _f(3, 4))),
    Recipe("equal", lambda a, b: xp.astype(xp.equal(a, b), "float32"), (_i(20), _i(20)), differentiable=False),
    Recipe("one_hot", lambda ids: ops.one_hot(ids, 5), (_i(7),), differentiable=False),
    Recipe("astype", lambda ids: xp.astype(ids, "float32"), (_i(7),), differentiable=False),
    Recipe("stop_gradient", lambda a: a * ops.stop_gradient(a), (_f(3, 4),)),
    Recipe("barrier", lambda a: bind("barrier", a * 2.0), (_f(3, 4),)),
    Recipe("sum", lambda a: xp.sum(a, axis=1), (_f(3, 4, 2),)),
    Recipe("sum of all", xp.sum, (_f(3, 4),)),
    Recipe("mean", lambda a: xp.mean(a, axis=(0, 2), keepdims=True), (_f(3, 4, 2),)),
    Recipe("max", lambda a: xp.max(a, axis=-1), (_f(3, 4),)),
    Recipe("matmul", lambda a, b: a @ b, (_f(3, 4), _f(4, 5))),
    Recipe("matmul in batches", lambda a, b: a @ b, (_f(2, 3, 4), _f(2, 4, 5))),
    Recipe("gemm", _fused_step, (_f(8, 4), _f(4, 5), _f(8, 5), _f(1)), differentiable=False, optimised=True),
    Recipe("linear layer", lambda x, w, b: ops.relu(x @ w + b), (_f(8, 4), _f(4, 5), _f(5)), optimised=True),
    Recipe("reshape", lambda a: xp.reshape(a, (4, 3)) * 2.0, (_f(3, 4),)),
    Recipe("transpose", lambda a: xp.permute_dims(a, (2, 0, 1)) * 2.0, (_f(2, 3, 4),)),
    Recipe("broadcast_to", lambda a: xp.broadcast_to(a, (2, 3, 4)), (_f(3, 1),)),
    Recipe("slice", lambda a: a[1:, :2], (_f(3, 4),)),
    Recipe(
        "strided_slice",
        lambda a: bind("strided_slice", a, starts=(0, 1, 0), stops=(2, 5, 5), steps=(1, 2, 3)),
        (_f(2, 5, 7),),
    ),
    # On one provider each input after such a one takes another's values.
    Recipe("input that nothing reads", lambda a, b, c: a - c, (_f(3, 4), _f(3, 4), _f(3, 4)), differentiable=False),
    Recipe("pad", lambda a: xp.pad(a, ((1, 0), (0, 2))), (_f(3, 4),)),
    Recipe("concat", lambda a, b: xp.concat([a, b], axis=1), (_f(3, 4), _f(3, 2))),
    Recipe("embedding", ops.embedding, (_f(5, 3), _i(2, 4))),
    Recipe("sin", xp.sin, (_f(3, 4),)),
    Recipe("cos", xp.cos, (_f(3, 4),)),
    Recipe("atan", xp.atan, (_f(3, 4),)),
    Recipe("erf", ops.erf, (_f(3, 4),)),
    Recipe("floor", xp.floor, (_f(3, 4),), differentiable=False),
    Recipe("log1p", xp.log1p, (_f(3, 4),), low=-0.9),
    Recipe("power", xp.pow, (_f(3, 4), _f(4)), low=0.2),
    Recipe("floor_divide", lambda a, b: xp.floor_divide(a - 2, b - 2), (_i(20), _i(20)), differentiable=False),
    Recipe("cumsum", lambda a: xp.cumulative_sum(a, axis=1), (_f(3, 4),)),
    Recipe("sort", lambda a: xp.sort(a, axis=0), (_f(5, 3),)),
    Recipe("top_k", lambda a: ops.top_k(a, 3)[0], (_f(3, 5),)),
    Recipe("scatter_add", lambda x, i, u: ops.scatter_add(x, i, u), (_f(5, 3), _i(8), _f(8, 3))),
    Recipe("conv", lambda x, w, b: ops.conv2d(x, w, b, padding=1), (IMAGE, _f(6, 4, 3, 3), _f(6))),
    Recipe("conv with stride", lambda x, w: ops.conv2d(x, w, stride=2, padding=1), (IMAGE, _f(6, 4, 3, 3))),
    Recipe("conv with dilation", lambda x, w: ops.conv2d(x, w, dilation=2), (IMAGE, _f(6, 4, 2, 2))),
    # Wrong without an error on one provider: even inputs and a single output in each group.
    Recipe("conv in groups", lambda x, w: ops.conv2d(x, w, groups=2), (IMAGE, _f(2, 2, 3, 3))),
    Recipe("conv by channel", lambda x, w: ops.conv2d(x, w, groups=4), (IMAGE, _f(4, 1, 3, 3))),
    Recipe("max_pool", lambda x: ops.max_pool2d(x, 2), (IMAGE,)),
    Recipe("max_pool that overlaps", lambda x: ops.max_pool2d(x, 3, stride=2, padding=1), (IMAGE,)),
    Recipe("average_pool", lambda x: ops.avg_pool2d(x, 2), (IMAGE,)),
    Recipe("average_pool that overlaps", lambda x: ops.avg_pool2d(x, 3, stride=1), (IMAGE,)),
)
