"""What a module is."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from numbers import Real
from typing import Literal, NoReturn, TypeAlias, cast, final

from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.nn.initialisers import Initialiser, stream
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.source import user_source
from coterie.errors import InputError, ShapeError

Role: TypeAlias = Literal["shared", "frozen", "buffer"]
Parameters: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True)
class ParameterSpec:
    """Shape of a float32 parameter, how it starts, and its role: ``shared`` is trained and federated, ``frozen`` never
    changes, ``buffer`` is state that its layer moves by itself in training (see ``Mode.record`` and ``forward``); it is
    federated too, as a mean.
    """

    shape: tuple[int, ...]
    init: Initialiser
    role: Role = "shared"


class Module(ABC):
    """A part of a model: a frozen dataclass of sizes, without parameters of its own.

    ``module(params, x, mode)`` computes with the parameters it is given; it is a pure function, eager on arrays and
    recorded when they are traced.
    """

    @abstractmethod
    def specs(self) -> dict[str, ParameterSpec]:
        """The parameters by name; those of a part are prefixed by the part's name and a dot, as in "0.weight"."""

    @abstractmethod
    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        """The output for input ``x``."""

    @property
    def recomputes(self) -> bool:
        """Whether it follows ``Mode.recompute`` by itself, part by part; a container then leaves that to it."""
        return False

    @final
    def init(self, seed: int) -> dict[str, NDArray]:
        """First values of all parameters, float32. They depend on ``seed`` and each parameter's name and shape, and on
        nothing else.
        """
        return {name: spec.init(spec.shape, stream(seed, name)) for name, spec in self.specs().items()}

    @final
    def count(self) -> int:
        """How many numbers all parameters hold."""
        return sum(prod(spec.shape) for spec in self.specs().values())


def part(params: Parameters, name: str) -> dict[str, Array]:
    """The parameters under a prefix, without the prefix."""
    prefix = f"{name}."
    return {key[len(prefix) :]: value for key, value in _by_name(params).items() if key.startswith(prefix)}


def prefixed(parts: Mapping[str, Module]) -> dict[str, ParameterSpec]:
    """The parameters of named parts, as ``Module.specs`` names them."""
    return {f"{name}.{key}": spec for name, module in parts.items() for key, spec in module.specs().items()}


def in_turn(parts: Mapping[str, Module], params: Parameters, x: Array, mode: Mode) -> Array:
    """What named parts make of x one after another, each with its own parameters."""
    for name, module in parts.items():
        x = module(part(params, name), x, mode)
    return x


def require(params: Parameters, name: str, module: Module) -> Array:
    """One parameter. Raises InputError naming it, the module and what was given instead."""
    try:
        return _by_name(params)[name]
    except KeyError:
        raise InputError(
            f"{user_source()}: {module} needs the parameter {name!r}; it was given {', '.join(params) or 'none'}.",
            hint="Pass all that the model's init(seed) made, under the same names.",
        ) from None


def _by_name(params: Parameters) -> Parameters:
    if not isinstance(cast(object, params), Mapping):
        raise InputError(
            f"{user_source()}: the parameters must be arrays by name, got a {type(params).__name__}.",
            hint="A model is called with its parameters first: model(model.init(seed), x).",
        )
    return params


def refuse_shape(what: object, wanted: str, *given: Array, hint: str) -> NoReturn:
    """Raise ShapeError naming the user's line, the layer or function, what it takes and the shapes it was given."""
    source, shapes = user_source(), " and ".join(str(list(array.shape)) for array in given)
    operands = [f"{array.dtype}{list(array.shape)}" for array in given]  # a label may be plain NumPy data
    raise ShapeError(f"{source}: {what} takes {wanted}, got {shapes}.", hint=hint, operands=operands, source=source)


def check_input(x: Array, shape: tuple[int | str, ...], module: Module) -> None:
    """Require x's shape to match ``shape``, in which a string stands for any size. Raises ShapeError naming the module
    and both shapes.
    """
    fits = len(x.shape) == len(shape) and all(
        isinstance(want, str) or want == size for want, size in zip(shape, x.shape, strict=True)
    )
    if not fits:
        hint = "Give the layer the sizes of what comes before it, or reshape its input."
        if x.ndim == len(shape) - 1:
            hint = "One example alone needs an axis in front: x[None]."
        elif x.ndim == len(shape) == 4 and x.shape[3] == shape[1]:
            hint = "The channels come before height and width: permute_dims(x, (0, 3, 1, 2))."
        refuse_shape(module, f"[{', '.join(map(str, shape))}]", x, hint=hint)


def check_window(module: Module, **sizes: int | tuple[int, int] | None) -> None:
    """Require every size to be a whole number of at least 1 or two of them; None passes. Raises InputError."""
    for name, size in sizes.items():
        if size is not None and not (_whole(size, 1) or _two_whole(size, 1)):
            raise InputError(
                f"{type(module).__name__}: {name} must be whole, at least 1, or (height, width), got {size!r}."
            )


def check_padding(module: Module, padding: int | tuple[int, int]) -> None:
    """Require a whole number of at least 0, or two of them. Raises InputError."""
    if not (_whole(padding, 0) or _two_whole(padding, 0)):
        raise InputError(
            f"{type(module).__name__}: padding must be whole, at least 0, or (height, width), got {padding!r}."
        )


def check_sizes(module: Module, axes: int, least: int, **sizes: object) -> None:
    """Require whole numbers of at least ``least``; where there are several axes, or one for each. Raises InputError
    naming the first that is not.
    """
    for name, size in sizes.items():
        several = isinstance(size, tuple) and axes > 1
        each = cast("tuple[object, ...]", size) if several else (cast(object, size),) * axes
        if len(each) != axes or not all(_whole(value, least) for value in each):
            ways = f", or {axes} of them" if axes > 1 else ""
            raise InputError(
                f"{type(module).__name__}: {name} must be a whole number of at least {least}{ways}, got {size!r}."
            )


def check_groups(module: Module, inputs: int, outputs: int, groups: int) -> None:
    """Require sizes of at least 1, and groups that divide both numbers of channels. Raises InputError."""
    check_positive(module, inputs=inputs, outputs=outputs, groups=groups)
    if inputs % groups or outputs % groups:
        raise InputError(f"{type(module).__name__}: {groups} groups must divide inputs {inputs} and outputs {outputs}.")


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _two_whole(value: object, least: int) -> bool:
    items = cast(tuple[object, ...], value) if isinstance(value, tuple) else ()
    return len(items) == 2 and all(_whole(item, least) for item in items)


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) from one number for both or from two."""
    return (value, value) if isinstance(value, int) else value


def check_positive(module: Module, **sizes: int) -> None:
    """Require every size to be a whole number of at least 1. Raises InputError naming the first that is not."""
    for name, size in sizes.items():
        if not _whole(size, 1):
            raise InputError(f"{type(module).__name__}: {name} must be a whole number of at least 1, got {size!r}.")


def check_number(module: Module, low: float, high: float, **numbers: float) -> None:
    """Require numbers in low .. high. Raises InputError naming the first that is none."""
    for name, number in numbers.items():
        if not isinstance(cast(object, number), Real) or not low <= number <= high:
            raise InputError(f"{type(module).__name__}: {name} must be in {low:g} .. {high:g}, got {number!r}.")


def check_epsilon(module: Module, epsilon: float) -> None:
    """Require a number that can be added to a variance: where float32 has no such number, an example of equal elements
    would be 0/0. Raises InputError.
    """
    check_number(module, 1e-30, 1.0, epsilon=epsilon)
