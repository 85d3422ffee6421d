"""Declared types of a function's arguments: what lets it be compiled before it is called, and checked when it is."""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

from coterie.compute import tree
from coterie.compute.array import Array, as_array
from coterie.compute.source import user_source
from coterie.compute.trace import TensorSpec, is_array
from coterie.errors import ArgumentTypeError, DTypeError, InputError, ShapeError


def require_function(transform: str, fn: object, hint: str | None = None) -> None:
    """Require what can be called. Raises ArgumentTypeError naming the user's line and what was given instead."""
    if not callable(fn):
        found = f"an array ({fn.type})" if isinstance(fn, Array) else repr(fn)
        raise ArgumentTypeError(
            f"{user_source()}: {transform} takes a function, got {found}.",
            hint=hint or f"Give the function and call what comes back: {transform}(f)(x).",
        )


def in_order(fn: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments by position, those given by name put where the function has them. Raises ArgumentTypeError for
    names that it does not have, or has for keywords only.
    """
    if not named:
        return arguments
    name = getattr(fn, "__name__", "the function")
    try:
        bound = signature(fn).bind(*arguments, **named)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"{user_source()}: {name}: {error}.", hint="Look at its parameters.") from None
    bound.apply_defaults()
    if bound.kwargs:
        raise ArgumentTypeError(
            f"{user_source()}: {name}: {', '.join(bound.kwargs)} can be given by name only, and a transform gives "
            "arguments by position.",
            hint="Give it beforehand: functools.partial, or a def around the function.",
        )
    return bound.args


def declared(fn: Callable[..., Any], input_signature: Sequence[Any] | None) -> tuple[Any, ...] | None:
    """The declared arguments, trees whose leaves are TensorSpecs or static values: those given, else those of the
    annotations ``Annotated[Array, TensorSpec(shape, dtype)]`` when every parameter has one, else None.
    """
    if input_signature is not None:
        if not isinstance(cast(object, input_signature), list | tuple):
            raise InputError(
                f"{user_source()}: input_signature must be a list or tuple with one entry for each argument, got "
                f"{input_signature!r}.",
                hint="Write input_signature=(TensorSpec(shape, dtype),), also for one argument.",
            )
        return tuple(input_signature)
    if not getattr(fn, "__annotations__", None):
        return None
    try:
        hints = get_type_hints(fn, include_extras=True)
        parameters = signature(fn).parameters.values()
    except (NameError, TypeError, ValueError, AttributeError, SyntaxError):
        return None  # annotations for other readers, of names that are not there now
    found = [_spec(hints.get(parameter.name)) for parameter in parameters]
    plain = all(
        parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for parameter in parameters
    )
    return tuple(found) if found and plain and all(spec is not None for spec in found) else None


def _spec(hint: Any) -> TensorSpec | None:
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((extra for extra in extras if isinstance(extra, TensorSpec)), None)


def check_call(name: str, wanted: tuple[Any, ...], arguments: tuple[Any, ...]) -> None:
    """Require arguments to be exactly as declared. Raises InputError for another structure or static value, ShapeError
    or DTypeError for an array of another type, naming the user's line, the argument and both types.
    """
    specs, structure = tree.flatten(wanted)
    leaves, given = tree.flatten(arguments)
    if given != structure:
        raise InputError(
            f"{user_source()}: {name} was declared for {len(wanted)} arguments of another structure; it was called "
            f"with {len(arguments)}.",
            hint="Pass trees with the keys and lengths of the declared ones.",
        )
    for path, spec, leaf in zip(structure.paths(), specs, leaves, strict=True):
        where = f"{user_source()}: {name}: argument {path}"
        if not isinstance(spec, TensorSpec):
            if type(leaf) is not type(spec) or leaf != spec:
                raise InputError(f"{where} was declared as {spec!r}, got {leaf!r}.", hint="Pass the declared value.")
            continue
        if not is_array(leaf):
            raise DTypeError(f"{where} must be an array of {spec.type}, got {leaf!r}.", hint="Pass an array.")
        found = leaf.type if isinstance(leaf, TensorSpec) else as_array(leaf).type
        if found != spec.type:
            wrong = DTypeError if found.dtype != spec.type.dtype else ShapeError
            raise wrong(
                f"{where} must be {spec.type}, got {found}.",
                hint="Convert the argument, or declare another signature.",
            )
