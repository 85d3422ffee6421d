"""A network class as a model of coterie: of a ``Trainer``, of an experiment, of every device that trains it."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from inspect import Parameter as Argument
from inspect import signature, unwrap
from math import prod
from threading import RLock
from typing import Any, cast, final

import numpy as np

from coterie.compute import numpy as cnp
from coterie.compute import optim
from coterie.compute.array import Array
from coterie.compute.interactive.mode import use_mode
from coterie.compute.ir import NDArray
from coterie.compute.mindspore.cell import Cell
from coterie.compute.mindspore.contents import contents
from coterie.compute.mindspore.nn.losses import Loss, SoftmaxCrossEntropyWithLogits
from coterie.compute.mindspore.nn.optimizers import Optimizer
from coterie.compute.mindspore.parameter import Parameter, scope, standing
from coterie.compute.mindspore.running import Running, as_running
from coterie.compute.mindspore.tensor import tensor
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, Role, refuse_shape, require
from coterie.compute.recorder import RECORDER
from coterie.compute.source import user_source
from coterie.errors import ArgumentTypeError, ArgumentValueError, InputError, TraceError


@dataclass(frozen=True)
class _Held:
    """The first values of a parameter: those that the network had."""

    value: NDArray

    def __call__(self, shape: tuple[int, ...], bits: np.random.Philox) -> NDArray:
        return self.value.astype(np.float32)


@final
@dataclass(frozen=True, eq=False)
class CellModule(Module):
    """A network as a module; see :func:`as_module`. first: the first value of each float Parameter, by its name."""

    network: Cell
    roles: Mapping[str, Role]
    first: Mapping[str, NDArray]
    # The Parameters of the network stand for other arrays while it is called.
    turn: RLock = field(default_factory=RLock, repr=False)

    def specs(self) -> dict[str, ParameterSpec]:
        return {
            name: ParameterSpec(self.first[name].shape, _Held(self.first[name]), role)
            for name, role in self.roles.items()
        }

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        held = self.network.parameters_dict()
        given = {name: require(params, name, self) for name in self.roles}
        arrays = [(held[name], array) for name, array in given.items()]
        moving = [name for name, role in self.roles.items() if role == "buffer"]
        cells = [cell for _, cell in self.network.cells_and_names()]
        call = Running(
            network=type(self.network).__name__,
            mode=mode,
            cells=frozenset(map(id, cells)),
            parameters=frozenset(map(id, held.values())),
            moving=frozenset(id(held[name]) for name in moving),
        )
        with self.turn, standing(arrays), _training(cells, mode.training), _unchanged(cells), scope(), as_running(call):
            positional, named = self._inputs(x)
            with use_mode("eager"):
                result: Any = self.network(*positional, **named)
            output = _plain(result)
            after = {name: held[name].held() for name in moving}
        if mode.record is not None:
            for name, array in after.items():
                if array.value is not given[name].value or not _same_data(array, given[name]):
                    mode.record(given[name], array)
        return output

    def __repr__(self) -> str:
        return f"as_module({type(self.network).__name__})"

    def _inputs(self, x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not isinstance(x, Mapping):
            return (tensor(x),), {}
        arrays = cast("Mapping[str, Array]", x)
        names = arguments_of(self.network)
        if not {name for name, needed in names.items() if needed} <= set(arrays) <= set(names):
            raise InputError(
                f"{user_source()}: the features are {', '.join(arrays)}, and construct of "
                f"{type(self.network).__name__} takes {', '.join(names)}.",
                hint="Name the features of the schema as construct names its arguments.",
            )
        return (), {name: tensor(array) for name, array in arrays.items()}


def as_module(network: Cell, *, buffers: tuple[str, ...] = ()) -> CellModule:
    """A network class as a model of a ``Trainer`` or an experiment; ``Experiment(model=as_module(net), ...)``.

    Parameters keep their names and begin with the values that they have now, whatever the seed. Those with
    ``requires_grad`` are trained; moving averages of BatchNorm are buffers, which training moves; others are frozen.
    A Parameter that stands in several places is one, and its gradient is that of all of them. Integers are constants.
    Dropout draws from what trains the module, BatchNorm leaves padding out. Several features reach ``construct`` by its
    argument names. The network itself stays as it is.

    buffers: names of more Parameters that construct writes, or patterns (``*.seen``).

    Python is traced once, so what it changes in place would not change in every step: an attribute that is set, a list
    or an array that is changed, a trained or frozen Parameter that is written is refused with its file and line. So are
    Cells that are called and are no part of the network, whose Parameters nothing would train. Raises ArgumentTypeError
    for what is no Cell, ArgumentValueError for a buffer that there is not or that has a gradient.
    """
    if not isinstance(cast(object, network), Cell):
        raise ArgumentTypeError(
            f"as_module takes a Cell, not a {type(network).__name__}.",
            hint="Make the network first: as_module(Network()).",
        )
    if not isinstance(cast(object, buffers), tuple | list) or not all(
        isinstance(cast(object, one), str) for one in buffers
    ):
        raise ArgumentTypeError(
            f"as_module: buffers are names of Parameters, got {buffers!r}.", hint='For example buffers=("*.seen",).'
        )
    named = network.parameters_dict()
    moved = {id(parameter) for _, cell in network.cells_and_names() for parameter in cell.moves()}
    for pattern in buffers:
        found = [name for name in named if fnmatchcase(name, pattern)]
        if not found:
            raise ArgumentValueError(
                f"as_module: {type(network).__name__} has no Parameter {pattern!r}.",
                hint=f"There are {', '.join(named) or 'none'}.",
            )
        moved |= {id(named[name]) for name in found}
    roles: dict[str, Role] = {}
    for name, parameter in named.items():
        if id(parameter) in moved and parameter.requires_grad and any(fnmatchcase(name, each) for each in buffers):
            raise ArgumentValueError(
                f"as_module: {name!r} has a gradient, and a buffer has none.",
                hint="Make it with requires_grad=False.",
            )
        if not parameter.type.is_float:
            if id(parameter) in moved:
                raise ArgumentValueError(
                    f"as_module: the buffer {name!r} is {parameter.dtype}; a buffer is a mean over devices, of floats."
                )
            continue
        roles[name] = "buffer" if id(parameter) in moved else "shared" if parameter.requires_grad else "frozen"
    return CellModule(network, roles, {name: named[name].numpy() for name in roles})


def as_loss(loss_fn: Callable[[Any, Any], Any]) -> Callable[[Array, Array], Array]:
    """A loss class as the loss of a ``Trainer`` or an experiment: one value per row, [B], whatever its ``reduction``.

    coterie weighs and averages the rows, as ``reduction="mean"`` does. Rows whose label is ``ignore_index`` have the
    loss 0 and count as rows. A Cell or function of one's own must give one value per row itself. Raises
    ArgumentValueError for ``reduction="sum"``, whose steps would grow with the batch, and, when it is called,
    ShapeError where logits and labels would be broadcast.
    """
    if isinstance(loss_fn, SoftmaxCrossEntropyWithLogits) and loss_fn.sparse and loss_fn.reduction != "sum":
        return softmax_cross_entropy  # for which what trains tests the labels
    if not isinstance(loss_fn, Loss):

        def own(prediction: Array, label: Array) -> Array:
            return _plain(loss_fn(tensor(prediction), tensor(label)))

        return own
    if loss_fn.reduction == "sum":
        raise ArgumentValueError(
            f"as_loss: {type(loss_fn).__name__} sums over the batch, and the mean over all rows is what is trained.",
            hint='Use reduction="mean", and a learning rate that is as many times greater as a batch has rows.',
        )

    def by_row(prediction: Array, label: Array) -> Array:
        values = _plain(loss_fn.values(tensor(prediction), tensor(label)))
        if values.shape[:1] != label.shape[:1] or values.size > max(prod(prediction.shape), prod(label.shape)):
            refuse_shape(
                type(loss_fn).__name__,
                "logits and labels of one shape",
                prediction,
                label,
                hint="Let construct give one number a row without an axis of its own: y.view(-1).",
            )
        return values if values.ndim == 1 else cnp.mean(values, axis=tuple(range(1, values.ndim)))

    return by_row


def as_optimizer(optimizer: Optimizer, network: Cell) -> optim.Optimizer:
    """An optimizer class as the optimizer of a ``Trainer`` or an experiment, at the beginning of its steps.

    network: whose ``trainable_params()`` it was given. Raises ArgumentValueError where it was given others, for a
    learning rate that changes from step to step and for a loss scale.
    """
    table = _checked(optimizer, network).rates
    if table is None or table.size > 1:
        raise ArgumentValueError(
            f"as_optimizer: the learning rate of {type(optimizer).__name__} changes from step to step.",
            hint="Give it one number here, and the schedule to what trains: Experiment(schedules={'lr': ...}) or "
            "Trainer(schedules={'lr': ...}).",
        )
    return _ruled(optimizer, float(table[0]))


def scheduled(optimizer: Optimizer, network: Cell) -> tuple[optim.Optimizer, Mapping[str, Callable[[int], float]]]:
    """As :func:`as_optimizer`, and the schedules for a ``Trainer`` where the learning rate changes."""
    table = _checked(optimizer, network).rates
    if table is None:

        def made(step: int) -> float:
            return float(np.reshape(optimizer.rate_at(step).numpy(), ()))

        return _ruled(optimizer, made(0)), {"lr": made}
    if table.size == 1:
        return _ruled(optimizer, float(table[0])), {}
    return _ruled(optimizer, float(table[0])), {"lr": lambda step: float(table[min(step, table.size - 1)])}


def _ruled(optimizer: Optimizer, rate: float) -> optim.Optimizer:
    return replace(optimizer.rule, hyper={**optimizer.rule.hyper, "lr": rate})


def _checked(optimizer: Optimizer, network: Cell) -> Optimizer:
    if not isinstance(cast(object, optimizer), Optimizer):
        raise ArgumentTypeError(
            f"as_optimizer takes an optimizer of mindspore.nn; this is an {type(optimizer).__name__} of "
            f"{type(optimizer).__module__}.",
            hint="nn.Momentum(network.trainable_params(), 0.1, 0.9), for example; those of compute.optim are used as "
            "they are.",
        )
    wanted = {id(parameter): parameter.name for parameter in network.trainable_params()}
    given = {id(parameter): parameter.name for parameter in optimizer.parameters}
    if wanted.keys() != given.keys():
        alone = next((name for one, name in {**wanted, **given}.items() if (one in wanted) != (one in given)), "")
        raise ArgumentValueError(
            f"as_optimizer: {alone!r} is not both trained by {type(optimizer).__name__} and a trainable Parameter of "
            f"{type(network).__name__}.",
            hint="Give the optimizer network.trainable_params(); what it must not train gets requires_grad = False.",
        )
    if optimizer.loss_scale != 1.0:
        raise ArgumentValueError(
            f"as_optimizer: {type(optimizer).__name__} has loss_scale {optimizer.loss_scale:g}.",
            hint="Leave it out: what trains scales the loss itself where its precision needs that.",
        )
    return optimizer


def arguments_of(network: Cell) -> dict[str, bool]:
    """What construct of a network takes by name, and whether it must be given."""
    kinds = (Argument.POSITIONAL_OR_KEYWORD, Argument.KEYWORD_ONLY)
    given = signature(network.construct).parameters.items()
    return {name: each.default is Argument.empty for name, each in given if each.kind in kinds}


def _plain(result: Any) -> Any:
    """An array as those of coterie; what is none is for the caller to name."""
    return result.alias() if isinstance(result, Array) else result


def _same_data(one: Array, other: Array) -> bool:
    if one.value is not None or other.value is not None:
        return one.value is other.value
    return one.numpy() is other.numpy()


@contextmanager
def _training(cells: list[Cell], on: bool) -> Generator[None]:
    """Cells are in training, or are not, in the lines inside."""
    before = [(cell, cell.training) for cell in cells]
    for cell in cells:
        vars(cell)["training"] = on
    try:
        yield
    finally:
        for cell, mode in before:
            vars(cell)["training"] = mode


@contextmanager
def _unchanged(cells: list[Cell]) -> Generator[None]:
    """Raises TraceError where what Cells hold was changed in place in the lines inside, while they were traced."""
    held = [(cell, _contents_of(cell)) for cell in cells] if RECORDER.get() is not None else []
    yield
    for cell, before in held:
        after = _contents_of(cell)
        changed = next((name for name in before if after.get(name) != before[name]), None)
        if changed is not None:
            raise TraceError(
                f"{_place(cell)}: {type(cell).__name__}.{changed} is changed in place while the network computes; a "
                "graph would do that once, and not in every step.",
                hint="Use a local variable, or a Parameter with requires_grad=False that is a buffer of as_module.",
            )


def _contents_of(cell: Cell) -> dict[str, Any]:
    return {name: contents(value) for name, value in cell.facts().items() if not isinstance(value, (Cell, Parameter))}


def _place(cell: Cell) -> str:
    function = unwrap(type(cell).construct)
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
