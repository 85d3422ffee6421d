"""vmap: a function of one example becomes a function of many, by the batch rules of the primitives.

The function is traced on one example; its graph is replayed on all of them at once. Values that depend on no mapped
argument stay what they are, one for all. A graph of a batch is a graph like any other, so vmap and grad nest freely.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from coterie.compute import tree
from coterie.compute.array import Array, as_array, refuse
from coterie.compute.control.row import STEPS
from coterie.compute.ir import Graph, Node, Type, Value
from coterie.compute.numpy import manipulation
from coterie.compute.primitives import rules
from coterie.compute.primitives.row import Batched
from coterie.compute.replay import applied, build
from coterie.compute.signature import in_order, require_function
from coterie.compute.source import user_source
from coterie.compute.table import PRIMITIVES
from coterie.compute.trace import TensorSpec, is_array, trace_flat
from coterie.compute.walk import environment_of, outputs_of, walk
from coterie.errors import InputError, InternalError, ShapeError

Axes: TypeAlias = Any  # int, None, or a tree of them that stands above the leaves it speaks for


@dataclass(frozen=True, slots=True)
class Lane:
    """An array inside a mapped function: one for each example along axis 0 when mapped, else one for all."""

    array: Array
    mapped: bool


def vmap(fn: Callable[..., Any], in_axes: Axes = 0, out_axes: Axes = 0) -> Callable[..., Any]:
    """A function that applies ``fn`` to every example along an axis of its arguments; results stand side by side.

    in_axes: the axis of the examples, for all arguments (an int) or for each (a tuple); in place of an int may stand
    None for an argument that all examples share, or a tree of ints and None for an argument that is a tree. out_axes:
    the same for the result; a result that is equal for all examples is repeated along its axis, and given once where
    the axis is None. Negative axes count from the end; those of a result from the end of the result.

    Guarantees: the result is that of a loop over the examples. ``fn`` runs once, so whatever it draws from a generator
    of the host is the same for all examples: pass such numbers as mapped arguments. A loop whose condition differs
    between examples runs until the last one is done.

    Raises InputError when no argument is mapped, when numbers of examples differ, when axes do not fit the arguments,
    or for a mapped result whose axis is None; ShapeError for an axis that an array does not have.
    """

    require_function("vmap", fn)

    def mapped(*given_arguments: Any, **named: Any) -> Any:
        arguments = in_order(fn, given_arguments, named)
        leaves, structure = tree.flatten(tuple(arguments))
        wanted: Axes = tuple(cast("list[Axes]", in_axes)) if isinstance(in_axes, list) else in_axes
        count = len(cast("tuple[Axes, ...]", wanted)) if isinstance(wanted, tuple) else len(arguments)
        if count != len(arguments):
            raise InputError(
                f"{user_source()}: vmap has {count} in_axes for {len(arguments)} arguments.",
                hint="Give one for each argument, or one int for all.",
            )
        axes = _spread("in_axes", wanted, structure)
        size = _size(leaves, axes, list(structure.paths()))
        lanes: list[Lane] = []
        symbols: list[Any] = []
        for leaf, axis in zip(leaves, axes, strict=True):
            if axis is not None:
                array = manipulation.moveaxis(as_array(leaf), axis, 0)
                lanes.append(Lane(array, True))
                symbols.append(TensorSpec(array.shape[1:], array.type.dtype))
            elif is_array(leaf):
                lanes.append(Lane(as_array(leaf), False))
                symbols.append(leaf)
            else:
                symbols.append(leaf)
        traced = trace_flat(fn, tree.unflatten(structure, symbols), ())
        lanes += [Lane(array, False) for array in traced.captures]
        results = outputs_of(traced.graph, replay_batched(traced.graph, lanes, size))
        places = _spread("out_axes", out_axes, traced.out_structure)
        return tree.unflatten(
            traced.out_structure, [_placed(lane, axis, size) for lane, axis in zip(results, places, strict=True)]
        )

    return mapped


def replay_batched(graph: Graph, inputs: Sequence[Lane], size: int) -> dict[Value, Lane]:
    """Apply every node of a graph to all examples at once, in the context of the caller."""
    return walk(graph, environment_of(graph, inputs), lambda node, lanes: _apply(node, lanes, size))


def _apply(node: Node, lanes: Sequence[Lane], size: int) -> list[Lane]:
    arrays, mapped = tuple(lane.array for lane in lanes), tuple(lane.mapped for lane in lanes)
    if not any(mapped):
        return [Lane(array, False) for array in applied(node, arrays)]
    call = Batched(node.primitive, arrays, mapped, size, node.attributes, batch_graph)
    made = [Lane(array, is_mapped) for array, is_mapped in PRIMITIVES[node.primitive].batch(call)]
    for lane, value in zip(made, node.outputs, strict=True):
        expected = (size, *value.type.shape)
        if lane.mapped and lane.array.shape != expected and STEPS not in expected:
            raise InternalError(f"The batch rule of {node.primitive} makes {lane.array.type} of {value.type}.")
    return made


def batch_graph(graph: Graph, mapped: Sequence[bool], size: int, wanted: Sequence[bool]) -> tuple[Graph, list[bool]]:
    """The graph of all examples, and which outputs are mapped: those that must be, and the wanted ones."""
    types = [
        Type(value.type.dtype, (size, *value.type.shape)) if is_mapped else value.type
        for value, is_mapped in zip(graph.inputs.values(), mapped, strict=True)
    ]
    flags: list[bool] = []

    def batched(arrays: list[Array]) -> list[Array]:
        lanes = [Lane(array, is_mapped) for array, is_mapped in zip(arrays, mapped, strict=True)]
        results = outputs_of(graph, replay_batched(graph, lanes, size))
        flags.extend(lane.mapped or want for lane, want in zip(results, wanted, strict=True))
        return [
            rules.broadcast_to(lane.array, (size, *lane.array.shape)) if want and not lane.mapped else lane.array
            for lane, want in zip(results, wanted, strict=True)
        ]

    return build(types, batched), flags


def _spread(what: str, axes: Axes, structure: tree.Structure) -> list[int | None]:
    """The axis of every leaf. Raises InputError where the axes do not stand above the tree."""
    if axes is None or (isinstance(axes, int) and not isinstance(axes, bool)):
        return [axes] * structure.leaves
    children = _children(axes, structure)
    if children is not None:
        pairs = zip(children, structure.children, strict=True)
        return [axis for child, below in pairs for axis in _spread(what, child, below)]
    raise InputError(
        f"{user_source()}: vmap's {what} {axes!r} do not fit a {structure.kind} of {len(structure.children)}.",
        hint="Use an int, None, or a tree of them with the same keys and lengths.",
    )


def _children(axes: Axes, structure: tree.Structure) -> list[Axes] | None:
    """The axes of each child of a tree; None where they are no tree like it."""
    if structure.kind == "dict" and isinstance(axes, Mapping):
        keyed = cast("Mapping[str, Axes]", axes)
        return [keyed[key] for key in structure.keys] if set(keyed) == set(structure.keys) else None
    listed = list(cast("Sequence[Axes]", axes)) if type(axes).__name__ == structure.kind else []
    return listed if listed and len(listed) == len(structure.children) else None


def _size(leaves: Sequence[Any], axes: Sequence[int | None], paths: Sequence[str]) -> int:
    """The number of examples, on which all mapped arguments agree."""
    sizes: dict[str, int] = {}
    for leaf, axis, path in zip(leaves, axes, paths, strict=True):
        if axis is None:
            continue
        array = as_array(leaf) if is_array(leaf) or isinstance(leaf, (bool, int, float)) else None
        if array is None or not -array.ndim <= axis < array.ndim:
            what = "no array" if array is None else f"an array of {array.ndim} axes"
            refuse(
                ShapeError,
                "vmap",
                () if array is None else (array,),
                f"argument {path} is {what}, so it has no axis {axis} to map over.",
                "Use None in in_axes for an argument that all examples share.",
            )
        sizes[path] = array.shape[axis]
    if not sizes:
        raise InputError(f"{user_source()}: vmap has nothing to map over.", hint="Some in_axes must be an int.")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"argument {path}: {size}" for path, size in sizes.items())
        raise InputError(
            f"{user_source()}: the mapped axes of vmap have different sizes ({listed}).",
            hint="Check in_axes: every mapped argument holds the same number of examples.",
        )
    return next(iter(sizes.values()))


def _placed(lane: Lane, axis: int | None, size: int) -> Array:
    """A result with its examples along the wanted axis."""
    if not lane.mapped:
        if axis is None:
            return lane.array
        return manipulation.moveaxis(rules.broadcast_to(lane.array, (size, *lane.array.shape)), 0, axis)
    if axis is None:
        raise InputError(
            f"{user_source()}: a result of vmap differs between examples, but its axis in out_axes is None.",
            hint="Give it an int.",
        )
    return manipulation.moveaxis(lane.array, 0, axis)
