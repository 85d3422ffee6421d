"""The laws of primitives, tried on a user's own: those that every primitive of the core obeys."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from coterie.compute.array import Array, as_array
from coterie.compute.autodiff import vjp
from coterie.compute.batching import vmap
from coterie.compute.extension.kernels import launch
from coterie.compute.extension.lowering import decomposed, types_of_results
from coterie.compute.extension.registry import active_registry
from coterie.compute.extension.row import UserPrimitive, broken, plain
from coterie.compute.interpret import run
from coterie.compute.ir import NDArray, Type
from coterie.compute.runtime.reference import distance


def check_primitive(primitive: UserPrimitive, *operands: Any, tolerance: float = 1e-4, **attributes: Any) -> None:
    """Try the laws of a primitive on these operands, as far as it has the hooks:

    1. every kernel for their dtypes makes the inferred types and computes what the lowering computes; 2. the cotangents
    of float operands are those of finite differences, to second order (float64 operands only, where rounding leaves
    room for them); 3. mapped over two examples it is the loop over them.

    Distances are |a - b| / (1 + |b|). Raises InputError "primitive_broken" that names the law.
    """
    arrays = [as_array(operand) for operand in operands]
    static = {
        name: plain(primitive.name, name, value) for name, value in {**primitive.attributes, **attributes}.items()
    }
    data = [array.numpy() for array in arrays]
    _check_kernels(primitive, data, static, tolerance)

    def apply(*given: Array) -> tuple[Array, ...]:
        returned = primitive(*given, **static)
        return cast("tuple[Array, ...]", returned) if isinstance(returned, tuple) else (returned,)

    if primitive.batch is not None or primitive.lower is not None:
        _check_batch(primitive, apply, arrays, tolerance)
    if primitive.vjp is not None or primitive.lower is not None:
        _check_gradient(primitive, apply, arrays, tolerance)


def _check_kernels(primitive: UserPrimitive, data: Sequence[NDArray], static: dict[str, Any], tolerance: float) -> None:
    types = [Type(array.dtype.name, array.shape) for array in data]
    inferred = types_of_results(primitive, types, static)
    dtypes = tuple(type_.dtype for type_ in types)
    kernels = [kernel for kernel in (primitive.kernel, active_registry().kernel(primitive, dtypes)) if kernel]
    results = [launch(primitive, kernel, data, inferred, static) for kernel in kernels]
    if primitive.lower is not None:
        with np.errstate(all="ignore"):
            results.append(run(decomposed(primitive, types, static), data))
    for found in results[:-1]:
        for name, a, b in zip(primitive.outputs, found, results[-1], strict=True):
            _compare(
                primitive, f"a kernel and {'its lowering' if primitive.lower else 'another'}", name, a, b, tolerance
            )


def _compare(primitive: UserPrimitive, what: str, name: str, a: NDArray, b: NDArray, tolerance: float) -> None:
    apart = distance(a, b)
    if not apart <= tolerance:
        raise broken(primitive, f"{what} differ by {apart:.2g} in {name}.")


def _check_batch(
    primitive: UserPrimitive,
    apply: Callable[..., tuple[Array, ...]],
    arrays: Sequence[Array],
    tolerance: float,
) -> None:
    for index, operand in enumerate(arrays):
        first = operand.numpy()
        reverse = first[..., ::-1] if first.ndim else first
        pair = [first, np.asarray(reverse * np.asarray(0.5, first.dtype) if operand.type.is_float else reverse)]
        given = [Array(np.stack(pair)) if i == index else array for i, array in enumerate(arrays)]
        axes = tuple(0 if i == index else None for i in range(len(arrays)))
        mapped = vmap(apply, in_axes=axes)(*given)
        for example, own in enumerate(pair):
            looped = apply(*(Array(own) if i == index else array for i, array in enumerate(arrays)))
            for name, a, b in zip(primitive.outputs, mapped, looped, strict=True):
                _compare(primitive, "vmap and the loop", name, a.numpy()[example], b.numpy(), tolerance)


_Function: TypeAlias = "Callable[[Sequence[Array]], list[Array]]"


def _check_gradient(
    primitive: UserPrimitive, apply: Callable[..., tuple[Array, ...]], arrays: Sequence[Array], tolerance: float
) -> None:
    floats = [index for index, array in enumerate(arrays) if array.type.dtype == "float64"]

    def function(given: Sequence[Array]) -> list[Array]:
        placed = dict(zip(floats, given, strict=True))
        results = apply(*(placed.get(index, array) for index, array in enumerate(arrays)))
        return [result for result in results if result.type.dtype == "float64"]

    start = [arrays[index].numpy() for index in floats]
    rng = np.random.default_rng(0)
    aside: list[NDArray] = [x * (1 + 0.02 * rng.random(x.shape)) for x in start]  # a rule may be right at one point
    _check_derivative(primitive, "first", function, aside, rng, tolerance)
    pulled = _check_derivative(primitive, "first", function, start, rng, tolerance)
    _check_derivative(primitive, "second", pulled, start, rng, tolerance)


def _check_derivative(
    primitive: UserPrimitive,
    order: str,
    function: _Function,
    start: Sequence[NDArray],
    rng: np.random.Generator,
    tolerance: float,
) -> _Function:
    """Compare differences of a function along one direction with its cotangents along it; return the cotangents, as a
    function.
    """
    direction: list[NDArray] = [rng.normal(size=x.shape) for x in start]
    step = 1e-6
    ahead, behind = (
        function([Array(np.asarray(x + sign * step * d)) for x, d in zip(start, direction, strict=True)])
        for sign in (1, -1)
    )
    seeds = [Array(np.asarray(rng.normal(size=result.shape))) for result in ahead]

    def pulled(given: Sequence[Array]) -> list[Array]:
        (cotangents,) = vjp(function, list(given))[1](seeds)
        return cotangents

    differences = [
        float(np.sum(seed.numpy() * (a.numpy() - b.numpy()))) / (2 * step)
        for seed, a, b in zip(seeds, ahead, behind, strict=True)
    ]
    exact = [float(np.sum(g.numpy() * d)) for g, d in zip(pulled([Array(x) for x in start]), direction, strict=True)]
    told, numeric = sum(exact), sum(differences)
    if not distance(np.asarray(told), np.asarray(numeric)) <= tolerance:
        raise broken(primitive, f"its {order} derivative is {told:.6g} where differences give {numeric:.6g}.")
    return pulled
