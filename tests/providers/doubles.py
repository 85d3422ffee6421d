"""Files of float64: every rule that can be written so, with its gradient, products behind transpositions, and layers.

No plan is of float64. ``jit`` and ``to_onnx`` write it, and ONNX Runtime has fewer kernels of it than of float32.
"""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from coterie.compute import TensorSpec, nn, ops, optimise, to_onnx, trace_named
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import vjp
from coterie.compute.ir import Graph
from coterie.compute.runtime.recipes import RECIPES, Recipe
from coterie.compute.trace import GraphInputs
from coterie.errors import InputError
from tests.providers.emitted import EmittedCase, judged_by_numpy

Function = Callable[..., Array]
Shapes = tuple[tuple[int, ...], ...]


def _turned(x: Array) -> Array:
    return xp.matrix_transpose(x)


def _both_ways(x: Array) -> Array:
    # A runtime moves the first transposition below the change of sign, where it cancels the second.
    y = xp.negative(_turned(x))
    return xp.matmul(y, _turned(y))


PRODUCTS: Mapping[str, tuple[Function, Shapes]] = MappingProxyType(
    {
        "of a transposed matrix": (lambda a, b: xp.matmul(_turned(a), b), ((3, 4), (3, 5))),
        "by a transposed matrix": (lambda a, b: xp.matmul(a, _turned(b)), ((3, 4), (5, 4))),
        "in batches": (lambda a, b: xp.matmul(_turned(a), b), ((2, 3, 4), (2, 3, 5))),
        "in batches, right": (lambda a, b: xp.matmul(a, _turned(b)), ((2, 3, 4), (2, 5, 4))),
        "with batches moved": (
            lambda a, b: xp.matmul(xp.permute_dims(a, (1, 2, 0)), b),
            ((3, 2, 4), (2, 3, 5)),
        ),
        "of a batch by one matrix": (lambda a, b: xp.matmul(_turned(a), b), ((2, 3, 4), (3, 5))),
        "of one matrix by a batch": (lambda a, b: xp.matmul(_turned(a), b), ((3, 4), (2, 3, 5))),
        "of a sum": (lambda a: xp.matmul(_turned(a) + _turned(a) * 2.0, a), ((2, 3, 4),)),
        "with itself": (_both_ways, ((2, 3, 4),)),
        "with itself, a matrix": (_both_ways, ((3, 4),)),
        "behind an exponential": (lambda a, b: xp.matmul(xp.exp(_turned(a)), b), ((2, 3, 4), (2, 3, 5))),
        "behind a reshape": (
            lambda a, b: xp.matmul(xp.reshape(xp.permute_dims(a, (1, 0, 2)), (3, 8)), b),
            ((2, 3, 4), (8, 2)),
        ),
        "scaled": (lambda a, b: xp.matmul(a * 0.5, _turned(b)) * 0.125, ((2, 3, 4), (2, 5, 4))),
        "whose result is turned": (lambda a, b: _turned(xp.matmul(_turned(a), b)), ((3, 4), (3, 5))),
    }
)
"""Products that a runtime would join with what is before them: a function, and the shapes of its operands."""

SINGLE_ONLY: Mapping[str, tuple[Function, Shapes, str]] = MappingProxyType(
    {
        "a convolution": (ops.conv2d, ((1, 2, 5, 5), (3, 2, 3, 3)), "Conv"),
        "a transposed convolution": (ops.conv_transpose2d, ((1, 2, 5, 5), (2, 3, 3, 3)), "ConvTranspose"),
        "a mean of windows": (lambda x: ops.avg_pool2d(x, 2), ((1, 2, 4, 4),), "AveragePool"),
        "an arc tangent": (xp.atan, ((3,),), "Atan"),
        "an error function": (ops.erf, ((3,),), "Erf"),
    }
)
"""What no CPU provider has in double precision: a function, shapes, and the operator that is named."""

_FUNCTIONS: Mapping[str, tuple[Function, Shapes]] = MappingProxyType(
    {
        "a product with its sigmoid": (lambda x: x * ops.sigmoid(x), ((3, 4),)),
        "a product with the sigmoid of a multiple": (lambda x: x * ops.sigmoid(1.702 * x), ((3, 4),)),
        "tangents": (xp.tan, ((3, 4),)),
        "deviations": (lambda x: (x - xp.mean(x)) / xp.sqrt(xp.mean((x - xp.mean(x)) ** 2) + 1e-5), ((3, 4),)),
    }
)

_LAYERS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = MappingProxyType(
    {
        "a layer norm": (lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU()), (3, 4)),
        "a root mean square norm": (lambda: nn.Sequential(nn.Linear(4, 8), nn.RMSNorm(8)), (3, 4)),
        "a group norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3, 3)),
        "a gated cell": (lambda: nn.GRU(4, 5), (2, 3, 4)),
        "a transformer block": (lambda: nn.TransformerBlock(8, 2), (2, 3, 8)),
    }
)


def double_cases(provider: str) -> Iterator[EmittedCase]:
    """Every file of float64, written as the rules stand and optimised, portably and for a provider by its name in
    ``PROVIDERS``.
    """
    for name, graph, low, high, ids in _graphs():
        written: set[bytes] = set()
        for each in (graph, optimise(graph)):
            for target in ("portable", provider):
                data = to_onnx(each, name="double", target=cast(Any, target))
                if data not in written:
                    written.add(data)
                    feeds = _feeds(each, low, high, ids)
                    yield judged_by_numpy(f"{name}, {target}", each, data, feeds, "float64")


def _graphs() -> Iterator[tuple[str, Graph, float, float, int]]:
    for recipe in RECIPES:
        graph = _with_gradient(recipe.function, _doubled(recipe), recipe.differentiable)
        if _writable(graph):
            yield recipe.name, graph, recipe.low, recipe.high, recipe.ids
    for name, (function, shapes) in {**PRODUCTS, **_FUNCTIONS}.items():
        yield name, _with_gradient(function, [TensorSpec(shape, "float64") for shape in shapes]), 0.1, 1.0, 2
    for name, (made, shape) in _LAYERS.items():
        yield name, _of_layer(made(), shape), 0.1, 1.0, 2


def _doubled(recipe: Recipe) -> list[TensorSpec]:
    return [replace(spec, dtype="float64") if spec.dtype == "float32" else spec for spec in recipe.inputs]


def _writable(graph: Graph) -> bool:
    """Whether it is not one that no CPU has in double precision."""
    try:
        to_onnx(graph, name="tried")
    except InputError as error:
        if "of float64 cannot be written" in error.message:
            return False
        raise
    return True


def _with_gradient(function: Any, specs: list[TensorSpec], differentiable: bool = True) -> Graph:
    named = {str(place): spec for place, spec in enumerate(specs)}

    def build(inputs: GraphInputs) -> dict[str, Array]:
        def forward(given: Mapping[str, Array]) -> Array:
            return function(*(given.get(name, inputs[name]) for name in named))

        floats = {name: inputs[name] for name, spec in named.items() if spec.dtype == "float64"}
        if not differentiable:
            return {"value": forward(floats)}
        value, pull = vjp(forward, floats)
        (gradients,) = pull(inputs.request("cotangent", TensorSpec(value.shape, value.dtype)))
        return {"value": value} | {f"gradient/{name}": gradient for name, gradient in gradients.items()}

    return trace_named(build, named)


def _of_layer(layer: nn.Module, shape: tuple[int, ...]) -> Graph:
    names = list(layer.init(0))
    specs = [TensorSpec(value.shape, "float64") for value in layer.init(0).values()]

    def function(x: Array, *weights: Array) -> Array:
        return layer(dict(zip(names, weights, strict=True)), x)

    return _with_gradient(function, [TensorSpec(shape, "float64"), *specs])


def _feeds(graph: Graph, low: float, high: float, ids: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(0)
    return {
        name: rng.uniform(low, high, value.type.shape or (1,))
        if value.type.dtype == "float64"
        else rng.integers(0, ids, value.type.shape or (1,)).astype(value.type.dtype)
        for name, value in graph.inputs.items()
    }
