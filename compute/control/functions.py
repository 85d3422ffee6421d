"""cond, while_loop and scan: choices and loops on arrays.

The functions that they take are traced, inside and outside of a trace alike, so that a graph does not depend on the
mode; arrays that a function takes from around it are differentiated like operands. Gradients of every order, vmap and
nesting work; the size of a gradient does not depend on the number of steps.
"""

from collections.abc import Callable, Sequence
from typing import Any

from coterie.compute import tree
from coterie.compute.array import Array, ArrayLike, as_array, bind_all
from coterie.compute.control.scan import scan_attributes
from coterie.compute.ir import Graph, Value
from coterie.compute.numpy import manipulation
from coterie.compute.signature import require_function
from coterie.compute.source import user_source
from coterie.compute.trace import TensorSpec, Traced, is_array, trace_flat
from coterie.errors import InputError, ShapeError, TraceError


def cond(pred: ArrayLike, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any) -> Any:
    """``true_fn(*operands)`` where the bool holds, else ``false_fn(*operands)``; only the chosen one is computed, but
    for what depends on known numbers alone, which is computed when the functions are traced.

    Both return trees of arrays of the same structure, shapes and dtypes; raises TraceError and its kinds otherwise.
    """
    for fn in (true_fn, false_fn):
        require_function("cond", fn, "Write cond(pred, true_fn, false_fn, *operands); where(c, a, b) takes arrays.")
    choice = as_array(pred)
    choice = manipulation.reshape(choice, ()) if choice.size == 1 else choice
    both = [trace_flat(fn, operands, ()) for fn in (true_fn, false_fn)]
    if both[0].out_structure != both[1].out_structure:
        raise TraceError(
            f"{user_source()}: the branches of cond return different trees.", hint="Use the same keys and lengths."
        )
    (true, false), captures = closed(both)
    leaves = [as_array(leaf) for leaf in tree.flatten(tuple(operands))[0] if is_array(leaf)]
    results = bind_all("cond", [choice, *leaves, *captures], {"true": true, "false": false})
    return tree.unflatten(both[0].out_structure, results)


def while_loop(cond_fn: Callable[[Any], Any], body_fn: Callable[[Any], Any], init: Any) -> Any:
    """The carry after ``carry = body_fn(carry)`` for as long as ``cond_fn(carry)`` holds.

    init: a tree of arrays or numbers; every step keeps its structure, shapes and dtypes. The number of steps may depend
    on data. A gradient keeps the carries of all steps, so its memory grows with their number. Raises TraceError and its
    kinds for a step that changes the carry, and for a condition that is not one bool.
    """
    for fn in (cond_fn, body_fn):
        require_function("while_loop", fn, "Write while_loop(cond_fn, body_fn, init).")
    leaves, structure = _carry(init)
    carry = tree.unflatten(structure, leaves)
    test, step = trace_flat(cond_fn, (carry,), ()), trace_flat(body_fn, (carry,), ())
    _same_tree("while_loop", structure, step.out_structure)
    (condition, body), captures = closed([test, step])
    attributes = {"cond": condition, "body": body, "carries": len(leaves)}
    return tree.unflatten(structure, bind_all("while", [*leaves, *captures], attributes))


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    *,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """``carry, y = f(carry, x)`` for every x along the leading axis of ``xs``: the last carry, and all y stacked.

    init: a tree of arrays or numbers; every step keeps its structure, shapes and dtypes. xs: a tree of arrays of one
    leading size, or None with a ``length`` (then x is None). reverse: from the last x to the first; y stands where its
    x does. Raises TraceError and its kinds for a step that changes the carry and for xs of different sizes.
    """
    leaves, structure = _carry(init)
    stacks, stack_structure = tree.flatten(tree.map_tree(as_array, xs))
    count = _length(stacks, length)
    elements = tree.unflatten(stack_structure, [TensorSpec(stack.shape[1:], stack.type.dtype) for stack in stacks])
    step = trace_flat(f, (tree.unflatten(structure, leaves), elements), ())
    results = step.out_structure
    if results.kind != "tuple" or len(results.children) != 2:
        raise TraceError(f"{user_source()}: the function of scan must return (carry, y).", hint="y may be None.")
    _same_tree("scan", structure, results.children[0])
    (graph,), captures = closed([step])
    inputs = list(graph.inputs.values())
    own = len(leaves) + len(stacks)
    ordered = [*inputs[: len(leaves)], *inputs[own:], *inputs[len(leaves) : own]]
    body = Graph({str(i): value for i, value in enumerate(ordered)}, graph.nodes, graph.outputs)
    attributes = scan_attributes(body, len(leaves), len(captures), count, reverse)
    found = bind_all("scan", [*leaves, *captures, *stacks], attributes)
    return (
        tree.unflatten(structure, found[: len(leaves)]),
        tree.unflatten(results.children[1], found[len(leaves) :]),
    )


def closed(traces: Sequence[Traced]) -> tuple[list[Graph], list[Array]]:
    """The graphs with one list of captures, which all of them take behind their own inputs."""
    captures: list[Array] = []
    for traced in traces:
        captures += [array for array in traced.captures if not any(_is_same(array, known) for known in captures)]
    graphs: list[Graph] = []
    for traced in traces:
        values = list(traced.graph.inputs.values())
        own, held = values[: len(values) - len(traced.captures)], values[len(values) - len(traced.captures) :]
        for array in captures:
            found = [v for v, mine in zip(held, traced.captures, strict=True) if _is_same(array, mine)]
            own.append(found[0] if found else Value(array.type))
        inputs = {str(index): value for index, value in enumerate(own)}
        graphs.append(Graph(inputs, traced.graph.nodes, dict(traced.graph.outputs)))
    return graphs, captures


def _is_same(a: Array, b: Array) -> bool:
    return a is b or (a.value is not None and a.value is b.value)


def _carry(init: Any) -> tuple[list[Array], tree.Structure]:
    leaves, structure = tree.flatten(init)
    return [as_array(leaf) for leaf in leaves], structure


def _same_tree(name: str, before: tree.Structure, after: tree.Structure) -> None:
    if before != after:
        raise TraceError(
            f"{user_source()}: a step of {name} returns a carry that is not a tree like the initial one.",
            hint="Use the same keys and lengths.",
        )


def _length(stacks: Sequence[Array], length: int | None) -> int:
    if any(not stack.shape for stack in stacks):
        raise ShapeError(f"{user_source()}: scan cannot take elements of a number.", hint="xs have a leading axis.")
    sizes = {stack.shape[0] for stack in stacks} | ({length} if length is not None else set[int]())
    if len(sizes) != 1:
        raise InputError(
            f"{user_source()}: scan needs one number of steps, and has {sorted(sizes) or 'none'}.",
            hint="Give xs of one leading size, or a length.",
        )
    steps = sizes.pop()
    if steps < 0:
        raise InputError(f"{user_source()}: scan cannot take {steps} steps.", hint="Give a length of at least 0.")
    return steps
