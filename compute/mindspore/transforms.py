"""grad, value_and_grad, GradOperation and vmap with MindSpore's meaning.

Beyond coterie's own: a result that is no scalar gets a sensitivity of ones, several results are summed, and Parameters
that the function writes (moving averages) are written where the gradient was asked for.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from coterie.compute import autodiff, batching, tree
from coterie.compute import numpy as cnp
from coterie.compute.array import Array, as_array
from coterie.compute.autodiff import Position
from coterie.compute.interactive.frontend.rewrite import rewrite
from coterie.compute.mindspore.compiled import Jitted
from coterie.compute.mindspore.parameter import Parameter, scope, write
from coterie.compute.mindspore.tensor import tensors
from coterie.compute.passes.tune import before_gradients
from coterie.compute.signature import in_order
from coterie.compute.source import user_source
from coterie.errors import ArgumentTypeError, DTypeError, InputError

Weights: TypeAlias = Parameter | Sequence[Parameter] | None


def grad(
    fn: Callable[..., Any],
    grad_position: Position = 0,
    weights: Weights = None,
    has_aux: bool = False,
    return_ids: bool = False,
) -> Callable[..., Any]:
    """A function that returns the gradients of ``fn``; see :func:`coterie.compute.grad` for how they are arranged."""
    both = _differentiated(fn, grad_position, weights, has_aux, return_ids)

    def gradient(*arguments: Any, **named: Any) -> Any:
        value, gradients = both(*_in_order(fn, arguments, named))
        return (gradients, value[1:]) if has_aux else gradients

    return Jitted(gradient, capture_mode="trace")


def value_and_grad(
    fn: Callable[..., Any],
    grad_position: Position = 0,
    weights: Weights = None,
    has_aux: bool = False,
    return_ids: bool = False,
) -> Callable[..., Any]:
    """As :func:`grad`, but the function returns (value, gradients)."""
    both = _differentiated(fn, grad_position, weights, has_aux, return_ids)

    def value_and_gradient(*arguments: Any, **named: Any) -> Any:
        return both(*_in_order(fn, arguments, named))

    return Jitted(value_and_gradient, capture_mode="trace")


def vmap(fn: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """:func:`coterie.compute.vmap`, which gives Tensors."""
    mapped = batching.vmap(lambda *arguments: fn(*tensors(arguments)), in_axes, out_axes)

    def over_examples(*arguments: Any, **named: Any) -> Any:
        return tensors(mapped(*_in_order(fn, arguments, named)))

    return Jitted(over_examples, capture_mode="trace")


class GradOperation:
    """``GradOperation(...)(network, weights)(*inputs)``: the gradients of a network or function.

    get_all: of all inputs, as a tuple, instead of the first. get_by_list: of the weights (a network's trainable
    parameters unless given); with get_all of both. sens_param: the last input is the sensitivity, an array or number
    that fits the network's output.
    """

    def __init__(self, get_all: bool = False, get_by_list: bool = False, sens_param: bool = False) -> None:
        self.get_all = get_all
        self.get_by_list = get_by_list
        self.sens_param = sens_param

    def __call__(self, fn: Callable[..., Any], weights: Weights = None) -> Callable[..., Any]:
        held = weights
        if self.get_by_list and held is None:
            held = cast("Sequence[Parameter]", cast(Any, fn).trainable_params())

        def gradient(*inputs: Any) -> Any:
            given, sensitivity = (inputs[:-1], inputs[-1]) if self.sens_param else (inputs, None)
            position = tuple(range(len(given))) if self.get_all else (None if self.get_by_list else 0)
            both = _differentiated(fn, position, held if self.get_by_list else None, sensitivity=sensitivity)
            return both(*given)[1]

        return Jitted(gradient, capture_mode="trace")


def _in_order(fn: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    return in_order(getattr(fn, "construct", fn), arguments, named)


def _differentiated(
    fn: Callable[..., Any],
    grad_position: Position,
    weights: Weights,
    has_aux: bool = False,
    return_ids: bool = False,
    sensitivity: Any = None,
) -> Callable[..., Any]:
    """The function to (value, gradients), in the context of its caller."""
    if not callable(fn):
        raise ArgumentTypeError(f"grad needs a function or a network, not {fn!r}.")
    single = isinstance(weights, Parameter)
    for weight in () if weights is None or single else weights:
        if not isinstance(cast(object, weight), Parameter):
            raise ArgumentTypeError(
                f"{user_source()}: the weights of grad are Parameters, not a {type(weight).__name__}.",
                hint="Pass network.trainable_params().",
            )
    listed = None if weights is None else {p.name: p for p in ((weights,) if single else weights)}
    if listed is not None and weights is not None and not single and len(listed) != len(weights):
        raise InputError("Two of the weights have one name.", hint="Give every Parameter a name of its own.")
    traceable = rewrite(fn)
    written: list[Parameter] = []

    def scalar(*arguments: Any) -> Any:
        with scope() as opened:
            result: Any = traceable(*tensors(arguments))
            if has_aux and not (isinstance(result, tuple) and result):
                raise InputError(
                    f"{user_source()}: has_aux needs a function that returns a tuple (loss, aux, ...).",
                    hint="Return a tuple, or leave has_aux out.",
                )
            wanted = cast("tuple[Any, ...]", result[:1] if has_aux else (result,))
            total = _total([as_array(leaf) for leaf in tree.flatten(wanted)[0]], sensitivity)
            pairs = opened.written()
            written[:] = [parameter for parameter, _ in pairs]
            return total, result, [array for _, array in pairs]

    both = autodiff.value_and_grad(scalar, grad_position, listed, True, return_ids, before_gradients("cpu"))

    def differentiated(*arguments: Any) -> Any:
        (_, result, new), gradients = both(*arguments)
        write(written, new)
        return tensors(result), tensors(_single(gradients, grad_position) if single else gradients)

    return differentiated


def _single(gradients: Any, grad_position: Position) -> Any:
    """One weight that was not given as a sequence has one gradient, not a tuple of one."""
    return gradients[0] if grad_position is None else (gradients[0], gradients[1][0])


def _total(outputs: list[Array], sensitivity: Any) -> Array:
    """The sum of all elements, each weighed by its sensitivity: its gradient is the one that is asked for."""
    floats = [array for array in outputs if array.type.is_float]
    if not floats:
        raise DTypeError(
            f"{user_source()}: no result to differentiate is a float.", hint='Convert one with astype(x, "float32").'
        )
    weighed = floats if sensitivity is None else [array * as_array(sensitivity, array.dtype) for array in floats]
    sums = [cnp.sum(array) if array.ndim else array for array in weighed]
    total = sums[0]
    for more in sums[1:]:
        total = total + more
    return total
