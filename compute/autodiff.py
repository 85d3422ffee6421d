"""Reverse mode. The function is traced; its graph is replayed forward, then its gradient rules are applied backward in
the context of the caller.

Outside a trace the rules compute on NumPy data; inside they are recorded like any other code, so a gradient is a graph
made from a graph, and a gradient of a gradient needs nothing more. Only values between the wanted inputs and the
outputs are visited: the rest of the backward pass is never built.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from coterie.compute import tree
from coterie.compute.array import Array, as_array, bind, refuse
from coterie.compute.ir import Graph, Value
from coterie.compute.passes.algebra import pool_first
from coterie.compute.primitives.row import Call
from coterie.compute.primitives.table import PRIMITIVES
from coterie.compute.source import replaying, user_source
from coterie.compute.trace import Traced, replay, trace_flat
from coterie.errors import DTypeError, InputError, InternalError, ShapeError

Position: TypeAlias = int | tuple[int, ...] | None


def grad(
    fn: Callable[..., Any], grad_position: Position = 0, weights: Sequence[Array] | None = None, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns the gradient of the scalar that ``fn`` returns.

    grad_position: the argument to differentiate (a pytree of float arrays), or a tuple of them; None with ``weights``.
    weights: arrays that ``fn`` holds by closure, to differentiate too.
    has_aux: ``fn`` returns (scalar, aux, ...); only the scalar is differentiated and the result is (gradients, (aux,
    ...)). Without it several scalars are summed.

    An int position gives one gradient, a tuple gives a tuple; weights alone give a tuple; both give (gradients of
    positions, gradients of weights). Raises InputError for a position that is not an argument, ShapeError for a result
    that is not a scalar, DTypeError for an argument that is not a float.
    """
    both = value_and_grad(fn, grad_position, weights, has_aux)

    def gradient(*arguments: Any) -> Any:
        value, gradients = both(*arguments)
        return (gradients, value[1:]) if has_aux else gradients

    return gradient


def value_and_grad(
    fn: Callable[..., Any], grad_position: Position = 0, weights: Sequence[Array] | None = None, has_aux: bool = False
) -> Callable[..., Any]:
    """As :func:`grad`, but the function returns (value, gradients); with has_aux ((scalar, aux, ...), gradients)."""
    positions = _positions(grad_position, weights)
    held = tuple(weights or ())

    def both(*arguments: Any) -> Any:
        for position in positions:
            if position >= len(arguments):
                raise InputError(
                    f"{user_source()}: grad_position {position} but only {len(arguments)} arguments.",
                    hint="Positions count from 0.",
                )
        linear = _Linearised(fn, [_with_arrays(a) if i in positions else a for i, a in enumerate(arguments)], held)
        result = linear.result()
        scalars = [result[0]] if has_aux else tree.flatten(result)[0]
        seeds: dict[Value, Array] = {}
        for value, scalar in zip(linear.graph.outputs.values(), scalars, strict=False):  # aux outputs have no seed
            seeds[value] = seeds[value] + _one(scalar) if value in seeds else _one(scalar)
        by_argument = [linear.argument_values(position) for position in positions]
        wanted = [value for values, _ in by_argument for value in values]
        gradients = iter(linear.pull(seeds, [*wanted, *linear.weight_values()]))
        inputs = tuple(
            tree.unflatten(structure, [next(gradients) for _ in values]) for values, structure in by_argument
        )
        return result, _arrange(grad_position, inputs, tuple(gradients), weights is not None)

    return both


def vjp(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """The result of ``fn`` and its pullback: cotangents of the result (a tree like it) to those of all arguments."""
    linear = _Linearised(fn, [_with_arrays(primal) for primal in primals], ())
    outputs = list(linear.traced.graph.outputs.values())

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        leaves, structure = tree.flatten(cotangent)
        if structure != linear.traced.out_structure:
            raise InputError(
                f"{user_source()}: the cotangent is not a tree like the result.",
                hint="Use the keys and lengths of the result.",
            )
        seeds: dict[Value, Array] = {}
        for value, leaf in zip(outputs, leaves, strict=True):
            array = as_array(leaf)
            if array.type != value.type:
                refuse(ShapeError, "vjp", (array,), f"the cotangent must be like the result, {value.type}.")
            if value.type.is_float:
                seeds[value] = seeds[value] + array if value in seeds else array
        by_argument = [linear.argument_values(position) for position in range(len(primals))]
        gradients = iter(linear.pull(seeds, [value for values, _ in by_argument for value in values]))
        return tuple(tree.unflatten(structure, [next(gradients) for _ in values]) for values, structure in by_argument)

    return linear.result(), pullback


class _Linearised:
    """A traced function, replayed on its arguments, ready to pull cotangents back."""

    def __init__(self, fn: Callable[..., Any], arguments: Sequence[Any], weights: Sequence[Array]) -> None:
        self.traced: Traced = trace_flat(fn, arguments, weights)
        leaves = [as_array(leaf) for leaf in tree.flatten(tuple(arguments))[0] if _is_data(leaf)]
        self.graph: Graph = pool_first(self.traced.graph)
        self.environment = replay(self.graph, [*leaves, *weights, *self.traced.captures])
        self._weights = [self.graph.inputs[f"weight/{index}"] for index in range(len(weights))]

    def result(self) -> Any:
        """What the function returned, as arrays of the caller's context."""
        return tree.unflatten(
            self.traced.out_structure, [self.environment[value] for value in self.graph.outputs.values()]
        )

    def argument_values(self, position: int) -> tuple[list[Value], tree.Structure]:
        """The graph inputs of one argument and its structure."""
        structure = self.traced.in_structure.children[position]
        return [self.graph.inputs[path] for path in structure.paths(str(position))], structure

    def weight_values(self) -> list[Value]:
        """The graph inputs of the weights held by closure."""
        return self._weights

    def pull(self, seeds: Mapping[Value, Array], wanted: Sequence[Value]) -> list[Array]:
        """The cotangents of the wanted inputs; zeros for those on which the outputs do not depend."""
        for value in wanted:
            if not value.type.is_float:
                refuse(
                    DTypeError,
                    "grad",
                    (self.environment[value],),
                    "only floats have gradients.",
                    'Convert with astype(x, "float32"), or leave it out.',
                )
        cotangents = backward(self.graph, self.environment, seeds, wanted)
        return [
            cotangents[v]
            if v in cotangents
            else bind("broadcast_to", Array(np.zeros((), v.type.dtype)), shape=v.type.shape)
            for v in wanted
        ]


def backward(
    graph: Graph, environment: Mapping[Value, Array], seeds: Mapping[Value, Array], wanted: Sequence[Value]
) -> dict[Value, Array]:
    """Apply the gradient rules from the last node to the first, only along paths from ``wanted``. The cotangent of
    every value that has one.
    """
    active = set(wanted)
    for node in graph.nodes:
        if node.output.type.is_float and not active.isdisjoint(node.inputs):
            active.add(node.output)
    cotangents = {value: seed for value, seed in seeds.items() if value in active}
    for node in reversed(graph.nodes):
        cotangent = cotangents.get(node.output)
        if cotangent is None:
            continue
        call = Call(tuple(environment[value] for value in node.inputs), environment[node.output], node.attributes)
        rule = PRIMITIVES[node.primitive].gradient
        with replaying(node.source):
            for index, value in enumerate(node.inputs):
                if value not in active or not value.type.is_float:
                    continue
                part = rule(index, call, cotangent)
                if part is None:
                    continue
                if part.type != value.type:
                    raise InternalError(
                        f"The gradient of {node.primitive} for operand {index} is {part.type}, not {value.type}."
                    )
                cotangents[value] = cotangents[value] + part if value in cotangents else part
    return cotangents


def _is_data(leaf: Any) -> bool:
    return isinstance(leaf, (Array, np.ndarray, np.generic)) and not isinstance(leaf, float)


def _with_arrays(argument: Any) -> Any:
    """A differentiated argument: Python numbers in it become arrays."""

    def convert(leaf: Any) -> Any:
        return as_array(leaf) if isinstance(leaf, (int, float)) or _is_data(leaf) else leaf

    return tree.map_tree(convert, argument)


def _one(scalar: Array) -> Array:
    if scalar.size != 1:
        refuse(
            ShapeError,
            "grad",
            (scalar,),
            "the result to differentiate is not a scalar.",
            "Reduce it, e.g. with mean(loss); use vjp for other results.",
        )
    if not scalar.type.is_float:
        refuse(
            DTypeError,
            "grad",
            (scalar,),
            "the result to differentiate is not a float.",
            'Convert it with astype(x, "float32").',
        )
    return (
        bind("broadcast_to", Array(np.ones((), scalar.type.dtype)), shape=scalar.shape)
        if scalar.shape
        else Array(np.ones((), scalar.type.dtype))
    )


def _positions(grad_position: Any, weights: Sequence[Array] | None) -> tuple[int, ...]:
    if grad_position is None:
        if weights is None:
            raise InputError(
                "grad needs a grad_position or weights.",
                hint="Pass grad_position=0 to differentiate the first argument.",
            )
        return ()
    positions = cast("tuple[Any, ...]", grad_position if isinstance(grad_position, tuple) else (grad_position,))
    if any(isinstance(p, bool) or not isinstance(p, int) for p in positions):
        raise InputError(f"grad_position must be an int or a tuple of ints, not {grad_position!r}.")
    if any(p < 0 for p in positions) or len(set(positions)) != len(positions):
        raise InputError(f"grad_position {grad_position!r} must be at least 0, without duplicates.")
    return positions


def _arrange(grad_position: Position, inputs: tuple[Any, ...], weights: tuple[Array, ...], with_weights: bool) -> Any:
    if grad_position is None:
        return weights
    gradients = inputs if isinstance(grad_position, tuple) else inputs[0]
    return (gradients, weights) if with_weights else gradients
