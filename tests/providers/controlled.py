"""Files with loops and choices: Scan, Loop and If for a CPU, and the same written out, with gradients and batches."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from coterie.compute import TensorSpec, cond, grad, optimise, scan, to_onnx, trace_named, vmap, while_loop
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.ir import Graph
from coterie.errors import TraceError
from tests.providers.emitted import EmittedCase, judged_by_numpy

Function = Callable[..., Array]
SIZE, STEPS, BATCH = 3, 4, 4


def _recurrent(w: Array, h: Array, xs: Array) -> Array:
    def step(h: Array, x: Array) -> tuple[Array, Array]:
        h = xp.tanh(w @ h + x)
        return h, xp.sum(h * h)

    h, ys = scan(step, h, xs)
    return xp.sum(h) + xp.sum(ys * ys)


def _backwards(w: Array, h: Array, xs: Array) -> Array:
    last, ys = scan(lambda c, x: (c * x + w[0], c * 2.0), h, xs, reverse=True)
    return xp.sum(last) + xp.sum(ys * xs)


def _turned(w: Array, h: Array, xs: Array) -> Array:
    """A product behind a transposition in every step."""

    def step(c: Array, x: Array) -> tuple[Array, Array]:
        c = xp.tanh(xp.matrix_transpose(w) @ c + xp.matrix_transpose(c) @ w) * 0.5 + x
        return c, xp.sum(c)

    last, ys = scan(step, w * 0.1, xs)
    return xp.sum(last @ h) + xp.sum(ys)


def _counted(w: Array, h: Array, xs: Array) -> Array:
    last, ys = scan(lambda c, _: (c * c * 0.5 + h, c), h, length=STEPS)
    return xp.sum(last) + xp.sum(xp.tanh(ys))


def _grown(w: Array, h: Array, xs: Array) -> Array:
    start = xp.abs(h) + 0.1
    found, _ = while_loop(
        lambda s: xp.sum(s[0]) < 20.0, lambda s: (s[0] * s[0] * 0.5 + s[0] * 1.3 + start, s[1] + 1), (start, 0)
    )
    return xp.sum(found * found)


def _chosen(w: Array, h: Array, xs: Array) -> Array:
    return cond(xp.sum(h) > 0.0, lambda v: xp.sum(xp.tanh(w @ v)), lambda v: xp.sum(v * v * w[0]), h)


def _nested(w: Array, h: Array, xs: Array) -> Array:
    def step(h: Array, x: Array) -> tuple[Array, Array]:
        grown = while_loop(lambda v: xp.sum(v * v) < 4.0, lambda v: v * 1.5 + 0.1, xp.abs(x) + 0.1)
        h = cond(xp.sum(h) > 0.0, lambda a: xp.tanh(w @ a), lambda a: a * 0.5 + grown, h)
        return h, xp.sum(grown)

    h, ys = scan(step, h, xs)
    return xp.sum(h * h) + xp.sum(ys)


_PROGRAMS: Mapping[str, Function] = MappingProxyType(
    {
        "a scan": _recurrent,
        "a scan backwards": _backwards,
        "a scan of turned products": _turned,
        "a counted scan": _counted,
        "a loop until": _grown,
        "a choice": _chosen,
        "a choice and a loop in a scan": _nested,
    }
)
_SHAPES = ((SIZE, SIZE), (SIZE,), (STEPS, SIZE))


def controlled_cases() -> Iterator[EmittedCase]:
    """Every program: its value, gradient, gradient of a gradient and batches of both; float32 and float64; as it stands
    and optimised; with control flow, and written out where that can be.
    """
    for name, program in _PROGRAMS.items():
        for what, function, batched in _derived(program):
            for dtype in ("float32", "float64"):
                graph = _graph(function, dtype, batched)
                feeds = _feeds(graph)
                for each in (graph, optimise(graph)):
                    for target in ("cpu", "portable"):
                        if data := _written(each, target):
                            yield judged_by_numpy(f"{what} of {name}, {dtype}, {target}", each, data, feeds, dtype)


def _derived(program: Function) -> Iterator[tuple[str, Function, bool]]:
    first = grad(program, (0, 1, 2))

    def size(*given: Array) -> Array:
        parts = [xp.sum(xp.tanh(part) ** 2) for part in first(*given)]
        return parts[0] + parts[1] + parts[2]

    def gradients(*given: Array) -> Array:
        return xp.concat([xp.reshape(part, (-1,)) for part in first(*given)])

    yield "the value", program, False
    yield "the gradient", gradients, False
    yield "the gradient of the gradient", grad(size), False
    yield "a batch", vmap(program), True
    yield "a batch of gradients", vmap(gradients), True


def _graph(function: Function, dtype: str, batched: bool) -> Graph:
    lead = (BATCH,) if batched else ()
    specs = {name: TensorSpec((*lead, *shape), dtype) for name, shape in zip("whx", _SHAPES, strict=True)}
    return trace_named(lambda given: {"value": function(*(given[name] for name in specs))}, specs)


def _written(graph: Graph, target: str) -> bytes:
    """The file; empty for a loop that cannot be written out, because its steps depend on data."""
    try:
        return to_onnx(graph, name="controlled", target=cast(Any, target))
    except TraceError:
        if target == "cpu":
            raise
        return b""


def _feeds(graph: Graph) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(3)
    return {name: rng.normal(0, 0.6, value.type.shape).astype(value.type.dtype) for name, value in graph.inputs.items()}
