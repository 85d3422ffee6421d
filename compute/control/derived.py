"""checkpoint and custom_vjp: functions that are differentiated in another way than by the rules of their nodes."""

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from coterie.compute import tree
from coterie.compute.array import Array, as_array, bind_all
from coterie.compute.control.functions import closed
from coterie.compute.recorder import RECORDER
from coterie.compute.signature import in_order, require_function
from coterie.compute.source import user_source
from coterie.compute.trace import TensorSpec, is_array, trace_flat
from coterie.errors import InputError


def checkpoint(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose gradient computes its intermediate values again instead of keeping them.

    It saves memory between the forward and the backward pass and costs one more evaluation. What it computes of arrays
    from around it alone, and of no argument, is kept. Gradients of every order are those of ``fn``.
    """

    require_function("checkpoint", fn)

    @wraps(fn)
    def checkpointed(*told: Any, **named: Any) -> Any:
        arguments = in_order(fn, told, named)
        if RECORDER.get() is None:
            return fn(*arguments)
        traced = trace_flat(fn, arguments, ())
        (graph,), captures = closed([traced])
        given = _arrays(arguments)
        results = bind_all("checkpoint", [*given, *captures], {"graph": graph, "arguments": len(given)})
        return tree.unflatten(traced.out_structure, results)

    return checkpointed


def custom_vjp(bprop: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a function its gradient: ``bprop(*arguments, out, dout)``, as in MindSpore's Cell.bprop.

    ``out`` is what the function returned and ``dout`` the cotangent of that; ``bprop`` returns the cotangent of the
    argument, or a tuple with that of every argument, each a tree like the argument (a leaf that is no float array gets
    None). It is itself differentiated for higher orders.

    The function's arrays must come in as arguments. Raises InputError for arrays taken from around it, whose gradient
    ``bprop`` could not tell, and for cotangents that are not like the arguments.

        @custom_vjp(lambda x, y, dy: dy * y * (1.0 - y))
        def sigmoid(x): return 1.0 / (1.0 + cnp.exp(-x))
    """

    before = "Give the derivative first: @custom_vjp(lambda x, y, dy: ...)."
    require_function("custom_vjp", bprop, before)

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        require_function("custom_vjp", fn, before)

        @wraps(fn)
        def customised(*told_arguments: Any, **named: Any) -> Any:
            arguments = in_order(fn, told_arguments, named)
            if RECORDER.get() is None:
                return fn(*arguments)
            traced = trace_flat(fn, arguments, ())
            _refuse_captures(fn, traced.captures)
            outputs = [TensorSpec(v.type.shape, v.type.dtype) for v in traced.graph.outputs.values()]
            result = tree.unflatten(traced.out_structure, outputs)

            def rule(given: tuple[Any, ...], out: Any, told: list[Any]) -> list[Array]:
                seeds = iter(told)

                def told_or_none(y: Array) -> Array | None:
                    return next(seeds) if y.type.is_float else None

                cotangent = tree.map_tree(told_or_none, out)
                return _cotangents(bprop(*given, out, cotangent), given)

            told = [spec for spec in outputs if spec.type.is_float]
            backward = trace_flat(rule, (tuple(arguments), result, told), ())
            _refuse_captures(bprop, backward.captures)
            attributes = {"graph": closed([traced])[0][0], "rule": closed([backward])[0][0]}
            return tree.unflatten(traced.out_structure, bind_all("custom", _arrays(arguments), attributes))

        return customised

    return decorate


def _arrays(arguments: tuple[Any, ...]) -> list[Array]:
    return [as_array(leaf) for leaf in tree.flatten(arguments)[0] if is_array(leaf)]


def _refuse_captures(fn: Callable[..., Any], captures: tuple[Array, ...]) -> None:
    if captures:
        name = getattr(fn, "__name__", "a function")
        raise InputError(
            f"{user_source()}: custom_vjp: {name} uses an array ({captures[0].type}) that is not among its arguments, "
            "so its gradient is not known.",
            hint="Pass the array as an argument.",
        )


def _cotangents(returned: Any, arguments: tuple[Any, ...]) -> list[Array]:
    """The cotangents of all float leaves of the arguments, in order."""
    listed = list(cast("tuple[Any, ...]", returned)) if isinstance(returned, tuple) else [returned]
    by_argument: list[Any] = listed if len(listed) == len(arguments) else [returned]
    if len(by_argument) != len(arguments):
        raise InputError(
            f"{user_source()}: custom_vjp: bprop returned cotangents of {len(by_argument)} arguments, not of "
            f"{len(arguments)}.",
            hint="Return a tuple with one for each argument.",
        )
    found: list[Array] = []
    for argument, cotangent in zip(arguments, by_argument, strict=True):
        leaves = tree.flatten(argument)[0]
        wanted = [leaf for leaf in leaves if isinstance(leaf, Array) and leaf.type.is_float]
        given = [as_array(leaf) for leaf in tree.flatten(cotangent)[0]] if wanted else []
        if [array.type for array in given] != [array.type for array in wanted]:
            types = [", ".join(str(array.type) for array in arrays) for arrays in (given, wanted)]
            raise InputError(
                f"{user_source()}: custom_vjp: bprop returned ({types[0]}) for an argument of ({types[1]}).",
                hint="A cotangent has the shape and dtype of its argument.",
            )
        found += given
    return found
