"""Reverse mode. The function is traced; its graph is replayed forward, then its gradient rules are applied backward in
the context of the caller.

Outside a trace the rules compute on NumPy data; inside they are recorded like any other code, so a gradient is a graph
made from a graph, and a gradient of a gradient needs nothing more. Only values between the wanted inputs and the
outputs are visited: the rest of the backward pass is never built.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from coterie.compute import tree
from coterie.compute.array import Array, as_array, bind, bind_all, refuse
from coterie.compute.ir import Graph, Node, Value
from coterie.compute.primitives import rules
from coterie.compute.primitives.row import Call
from coterie.compute.replay import applied, build
from coterie.compute.signature import in_order, require_function
from coterie.compute.source import replaying, user_source
from coterie.compute.table import PRIMITIVES
from coterie.compute.trace import Traced, is_array, trace_flat
from coterie.compute.walk import environment_of, walk
from coterie.errors import ArgumentTypeError, ArgumentValueError, DTypeError, InputError, InternalError, ShapeError

Position: TypeAlias = int | tuple[int, ...] | None
Weights: TypeAlias = Sequence[Array] | Mapping[str, Array] | None


def grad(
    fn: Callable[..., Any],
    grad_position: Position = 0,
    weights: Weights = None,
    has_aux: bool = False,
    return_ids: bool = False,
) -> Callable[..., Any]:
    """A function that returns the gradient of the scalar that ``fn`` returns.

    grad_position: the argument to differentiate (a pytree of float arrays), or a tuple of them; None with ``weights``.
    weights: arrays that ``fn`` holds by closure, to differentiate too; in a mapping they have names.
    has_aux: ``fn`` returns (scalar, aux, ...); only the scalar is differentiated and the result is (gradients, (aux,
    ...)). Without it several scalars are summed.
    return_ids: every gradient becomes (id, gradient). The id is the position of an argument, the name of a weight of a
    mapping, or the number of a weight of a sequence.

    An int position gives one gradient, a tuple gives a tuple; weights alone give a tuple in their order; both give
    (gradients of positions, gradients of weights). Raises InputError for a position that is not an argument and for a
    result that has_aux does not fit, ShapeError for a result that is not a scalar, DTypeError for an argument that is
    not a float.
    """
    require_function("grad", fn)
    both = value_and_grad(fn, grad_position, weights, has_aux, return_ids)

    def gradient(*arguments: Any, **named: Any) -> Any:
        value, gradients = both(*arguments, **named)
        return (gradients, value[1:]) if has_aux else gradients

    return gradient


def value_and_grad(
    fn: Callable[..., Any],
    grad_position: Position = 0,
    weights: Weights = None,
    has_aux: bool = False,
    return_ids: bool = False,
    before: Callable[[Graph], Graph] | None = None,
) -> Callable[..., Any]:
    """As :func:`grad`, but the function returns (value, gradients); with has_aux ((scalar, aux, ...), gradients).

    before: a pass over the graph of ``fn``, of the same meaning, that runs before it is differentiated; for example
        what ``passes.tune.before_gradients`` gives for a target.
    """
    require_function("value_and_grad", fn)
    positions = _positions(grad_position, weights)
    names = list(weights) if isinstance(weights, Mapping) else range(len(weights or ()))
    held = _held(weights)

    def both(*given: Any, **named: Any) -> Any:
        arguments = in_order(fn, given, named)
        for position in positions:
            if position >= len(arguments):
                raise ArgumentValueError(
                    f"{user_source()}: grad_position {position} but only {len(arguments)} arguments.",
                    hint="Positions count from 0.",
                )
        prepared = [_with_arrays(a) if i in positions else a for i, a in enumerate(arguments)]
        linear = _Linearised(fn, prepared, positions, held, before)
        result = linear.result()
        if has_aux and not (isinstance(result, tuple) and result):
            raise InputError(
                f"{user_source()}: has_aux needs a function that returns a tuple (loss, aux, ...).",
                hint="Return a tuple, or leave has_aux out.",
            )
        scalars = tree.flatten(result[0] if has_aux else result)[0]
        if not scalars:
            raise InputError(
                f"{user_source()}: grad: the function returns {result!r}, which holds nothing to differentiate.",
                hint="Return the loss.",
            )
        ones = zip(linear.graph.outputs.values(), map(_one, scalars), strict=False)  # aux outputs have no seed
        inputs, gradients = linear.pull(ones)
        if return_ids:
            inputs = list(zip(positions, inputs, strict=True))
            gradients = tuple(zip(names, gradients, strict=True))
        return result, _arrange(grad_position, tuple(inputs), gradients, weights is not None)

    return both


def vjp(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """The result of ``fn`` and its pullback: cotangents of the result (a tree like it) to those of all arguments."""
    linear = _Linearised(fn, [_with_arrays(primal) for primal in primals], range(len(primals)), ())
    outputs = list(linear.graph.outputs.values())

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        leaves, structure = tree.flatten(cotangent)
        if structure != linear.traced.out_structure:
            raise InputError(
                f"{user_source()}: the cotangent is not a tree like the result.",
                hint="Use the keys and lengths of the result.",
            )
        seeds: list[tuple[Value, Array]] = []
        for value, leaf in zip(outputs, leaves, strict=True):
            array = as_array(leaf)
            if array.type != value.type:
                refuse(ShapeError, "vjp", (array,), f"the cotangent must be like the result, {value.type}.")
            if value.type.is_float:
                seeds.append((value, array))
        return tuple(linear.pull(seeds)[0])

    return linear.result(), pullback


class _Linearised:
    """A traced function, replayed on its arguments, ready to pull cotangents back to those at ``positions``."""

    def __init__(
        self,
        fn: Callable[..., Any],
        arguments: Sequence[Any],
        positions: Sequence[int],
        weights: Sequence[Array],
        before: Callable[[Graph], Graph] | None = None,
    ) -> None:
        self.traced: Traced = trace_flat(fn, arguments, weights)
        leaves = [as_array(leaf) for leaf in tree.flatten(tuple(arguments))[0] if is_array(leaf)]
        self.graph: Graph = self.traced.graph if before is None else before(self.traced.graph)
        inputs = [*leaves, *weights, *self.traced.captures]
        arrays = environment_of(self.graph, inputs)
        self.structures = [self.traced.in_structure.children[position] for position in positions]
        self.wanted = [
            self._input(path, arguments[position])
            for position, structure in zip(positions, self.structures, strict=True)
            for path in structure.paths(str(position))
        ] + [self.graph.inputs[f"weight/{index}"] for index in range(len(weights))]
        for value in self.wanted:
            if not value.type.is_float:
                fix = 'Convert with astype(x, "float32"), or leave it out.'
                refuse(DTypeError, "grad", (arrays[value],), "only floats have gradients.", fix)
        self._forward = Forward(self.graph, inputs, self.wanted)

    def _input(self, path: str, argument: Any) -> Value:
        if path not in self.graph.inputs:
            kind = type(argument).__name__
            raise ArgumentTypeError(
                f"{user_source()}: grad by argument {path.partition('.')[0]}, a {kind}: what it holds at {path!r} is "
                "no array.",
                hint="Differentiate by arrays, numbers, or dicts, lists and tuples of them.",
            )
        return self.graph.inputs[path]

    def result(self) -> Any:
        """What the function returned, as arrays of the caller's context."""
        values = self.graph.outputs.values()
        return tree.unflatten(self.traced.out_structure, [self._forward.environment[value] for value in values])

    def pull(self, seeds: Iterable[tuple[Value, Array]]) -> tuple[list[Any], tuple[Array, ...]]:
        """The cotangents of the arguments (trees like them) and of the weights; zeros for those on which the outputs do
        not depend.
        """
        cotangents = self._forward.pull(_summed(seeds))
        found = iter([cotangents[v] if v in cotangents else rules.zeros(v.type) for v in self.wanted])
        trees = [tree.unflatten(shape, [next(found) for _ in range(shape.leaves)]) for shape in self.structures]
        return trees, tuple(found)


class Forward:
    """A graph replayed on arrays in the context of the caller, with what gradients for ``wanted`` values will read.

    Nodes between the wanted values and the outputs run in their saving form. evaluated: arrays of values that are known
    already; their nodes are not replayed, but for those whose saving form has further results.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[Array],
        wanted: Sequence[Value],
        evaluated: Mapping[Value, Array] | None = None,
    ) -> None:
        self.graph = graph
        self._evaluated = evaluated or {}
        self.environment: dict[Value, Array] = {**environment_of(graph, inputs), **self._evaluated}
        self._active = set(wanted)
        self._saved: dict[Node, tuple[Array, ...]] = {}
        walk(graph, self.environment, self._apply)

    def _apply(self, node: Node, operands: list[Array]) -> Sequence[Array]:
        if node.primitive == "constant":
            return applied(node, operands)
        saving = node.attributes
        if any(value in self._active for value in node.inputs):
            self._active.update(value for value in node.outputs if value.type.is_float)
            saving = PRIMITIVES[node.primitive].saving(node.attributes)
        if saving is node.attributes and all(value in self._evaluated for value in node.outputs):
            self._saved[node] = tuple(self._evaluated[value] for value in node.outputs)
        else:
            self._saved[node] = bind_all(node.primitive, operands, saving)
        return self._saved[node][: len(node.outputs)]

    def pull(self, seeds: Mapping[Value, Array]) -> dict[Value, Array]:
        """Apply the gradient rules from the last node to the first, only along paths from the wanted values. The
        cotangent of every value that has one.
        """
        cotangents = {value: seed for value, seed in seeds.items() if value in self._active}
        for node in reversed(self.graph.nodes):
            told = [cotangents.get(value) for value in node.outputs]
            if all(g is None for g in told):
                continue
            with replaying(node.source):
                for value, part in zip(node.inputs, self._parts(node, told), strict=True):
                    if part is None:
                        continue
                    expected = self.environment[value].type
                    if part.type != expected:
                        raise InternalError(f"A gradient of {node.primitive} is {part.type}, not {expected}.")
                    cotangents[value] = cotangents[value] + part if value in cotangents else part
        return cotangents

    def _parts(self, node: Node, told: Sequence[Array | None]) -> list[Array | None]:
        wanted = [value in self._active and value.type.is_float for value in node.inputs]
        operands = tuple(self.environment[value] for value in node.inputs)
        call = Call(operands, self._saved[node], node.attributes)
        parts = PRIMITIVES[node.primitive].gradient(call, told, wanted, pullback_graph)
        return [part if want else None for part, want in zip(parts, wanted, strict=True)]


def pullback_graph(graph: Graph, wanted: Sequence[bool], seeded: Sequence[bool]) -> Graph:
    """The graph from the inputs and the cotangents of the seeded outputs to the cotangents of the wanted inputs."""
    inputs, outputs = list(graph.inputs.values()), list(graph.outputs.values())
    seeds = [value for value, is_seeded in zip(outputs, seeded, strict=True) if is_seeded]
    targets = [value for value, want in zip(inputs, wanted, strict=True) if want]

    def pulled(arrays: list[Array]) -> list[Array]:
        forward = Forward(graph, arrays[: len(inputs)], targets)
        cotangents = forward.pull(_summed(zip(seeds, arrays[len(inputs) :], strict=True)))
        return [cotangents[value] if value in cotangents else rules.zeros(value.type) for value in targets]

    return build([value.type for value in (*inputs, *seeds)], pulled)


def _summed(seeds: Iterable[tuple[Value, Array]]) -> dict[Value, Array]:
    """One cotangent for each value: a value that is returned twice has the sum."""
    found: dict[Value, Array] = {}
    for value, seed in seeds:
        found[value] = found[value] + seed if value in found else seed
    return found


def _with_arrays(argument: Any) -> Any:
    """A differentiated argument: Python numbers in it become arrays."""

    def convert(leaf: Any) -> Any:
        return as_array(leaf) if isinstance(leaf, (int, float)) or is_array(leaf) else leaf

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


def _positions(grad_position: Any, weights: Weights) -> tuple[int, ...]:
    if grad_position is None:
        if weights is None:
            raise ArgumentValueError(
                f"{user_source()}: grad needs a grad_position or weights.",
                hint="Pass grad_position=0 to differentiate the first argument.",
            )
        return ()
    positions = cast("tuple[Any, ...]", grad_position if isinstance(grad_position, tuple) else (grad_position,))
    if any(isinstance(p, bool) or not isinstance(p, int) for p in positions):
        raise ArgumentTypeError(
            f"{user_source()}: grad_position must be an int or a tuple of ints, not {grad_position!r}.",
            hint="It is the position of an argument, counted from 0.",
        )
    if any(p < 0 for p in positions) or len(set(positions)) != len(positions):
        raise ArgumentValueError(
            f"{user_source()}: grad_position {grad_position!r} must be at least 0, without duplicates.",
            hint="It is the position of an argument, counted from 0.",
        )
    return positions


def _held(weights: Weights) -> list[Array]:
    given: list[Any] = list(weights.values()) if isinstance(weights, Mapping) else list(weights or ())
    for weight in given:
        if not isinstance(weight, Array):
            raise ArgumentTypeError(
                f"{user_source()}: a weight is a {type(weight).__name__}, not an array of coterie that the function "
                "holds.",
                hint="Make it one with asarray, once, and use that in the function.",
            )
    if len({id(weight) for weight in given}) < len(given):
        raise ArgumentValueError(
            f"{user_source()}: the same array is among the weights twice.", hint="Name every weight once."
        )
    return given


def _arrange(grad_position: Position, inputs: tuple[Any, ...], weights: tuple[Any, ...], with_weights: bool) -> Any:
    if grad_position is None:
        return weights
    gradients = inputs if isinstance(grad_position, tuple) else inputs[0]
    return (gradients, weights) if with_weights else gradients
