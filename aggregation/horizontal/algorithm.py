"""What a method of horizontal learning is: a client part, compiled into the plan, and a server part, a pair of pure
functions. Neither the SDK nor the engine knows any method by name.

The client functions run once, while a plan is compiled, on traced arrays; they need nothing but arithmetic on them. A
device then runs graphs. What a method keeps on a device (``client_state``), sends beside or instead of the model
(``version``), learns of a device's rows before it trains (``probe``), holds constant during training (``begin``) or
uploads beside the delta (``sections``) is declared here and is data to everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from coterie.aggregation.horizontal.server_part import ServerPart
from coterie.aggregation.plan.manifest import DELTA, NamedRule, Training
from coterie.aggregation.server_optimizers import ServerOptimizer
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.layout import Layout
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.sections import SectionSpec

if TYPE_CHECKING:
    from coterie.compute.array import Array
    from coterie.compute.optim.optimizer import Optimizer

    Arrays = Mapping[str, Array]
    Loss = Callable[[Arrays], Array]
    Represent = Callable[[Arrays], Array]

ArrayShape = tuple[int, ...]
Rules: TypeAlias = Sequence[tuple[bool, str]]
"""What must hold, and what is said when it does not."""


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """What a method may know of a model.

    tensors: shapes of all that is federated, in order.
    trained: of those that the optimizer moves. The others are running statistics, which coterie averages as they are
        whatever the method.
    """

    tensors: Mapping[str, ArrayShape]
    trained: Mapping[str, ArrayShape]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What there is in the pass over the training rows before training.

    version: the round's model version.
    loss(params): the loss of each example of the batch, ``[B]``, without dropout.
    label: of each row, ``[B]``.
    """

    version: Arrays
    loss: Loss
    label: Array


@dataclass(frozen=True, kw_only=True)
class Begin:
    """What there is before the first step: the round's version, the names of the tensors that are trained, this
    device's state, the probe's sums (``[1]`` each, ``examples`` among them; empty for a method without a probe).
    """

    base: Arrays
    trained: tuple[str, ...]
    client_state: Arrays
    probe: Arrays
    hyper: Arrays


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What there is while the loss of a batch is formed.

    params: the weights, of which the gradient is taken.
    represent(params): what the model makes of the batch before its last layer, ``[B, …]``, without dropout.
    constants: what ``begin`` returned.
    prediction: of the weights that are trained, ``[B, …]``; like those of represent and predict it is float32, and was
        computed in the experiment's precision.
    label: of each row, ``[B]``.
    weight: 1 for a row and 0 for padding, ``[B]``.
    predict(params): what the model says at other weights, without dropout.
    loss(prediction): the experiment's loss of another prediction, ``[B]``.
    """

    params: Arrays
    base: Arrays
    constants: Arrays
    hyper: Arrays
    represent: Represent
    prediction: Array
    label: Array
    weight: Array
    predict: Represent
    loss: Callable[[Array], Array]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What there is within a step.

    constants: what ``begin`` returned.
    gradient_at(params): the gradient of the same batch at other weights, with the same dropout; under `ExampleLevel`
        privacy there is none, since it would leave without clip and noise.
    """

    params: Arrays
    base: Arrays
    constants: Arrays
    hyper: Arrays
    gradient_at: Callable[[Arrays], Arrays]


@dataclass(frozen=True, kw_only=True)
class Finish:
    """What there is after the last step.

    end: the model's tensors.
    trained: those that the optimizer moves.
    optimizer: its state.
    steps, weight: ``[1]``, how many steps ran and how many examples count.
    """

    base: Arrays
    end: Arrays
    trained: tuple[str, ...]
    optimizer: Arrays
    constants: Arrays
    client_state: Arrays
    probe: Arrays
    hyper: Arrays
    steps: Array
    weight: Array


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What there is when a model is measured on rows.

    version: the one that is measured.
    probe: the sums over those rows.
    client_state: what this client has committed, zeros before. Where a method reads that, each client measures a model
        of its own, and the coordinator, which has no such state, measures none.
    """

    version: Arrays
    probe: Arrays
    client_state: Arrays


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What there is when a model is exported.

    client_state: as in `Evaluation`.
    """

    version: Arrays
    client_state: Arrays


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What a client sends and keeps after its last step.

    sections: for each section a flat vector, or tensors by name that are laid out as the layout orders them.
    client_state: the new value of every tensor of the client state.
    """

    sections: Mapping[str, Array | Arrays]
    client_state: Arrays


def _no_tensors(shapes: Shapes) -> Mapping[str, ArrayShape]:
    return {}


def _the_model(shapes: Shapes) -> Mapping[str, ArrayShape]:
    return shapes.tensors


def _first_weights(draw: Callable[[int], ArraysByName]) -> ArraysByName:
    return draw(0)


def _no_constants(context: Begin) -> Arrays:
    return {}


def _from_the_version(context: Begin) -> Arrays:
    return context.base


def _same_losses(losses: Array, context: Objective) -> Array:
    return losses


def _same_gradient(gradient: Arrays, context: Step) -> Arrays:
    return gradient


def _same_optimizer(optimizer: Optimizer) -> Optimizer:
    return optimizer


def _one_model(context: Deployment) -> tuple[Arrays, ...]:
    return (context.version,)


def _as_it_is(context: Evaluation) -> Arrays:
    return context.version


def whole_delta(shapes: Shapes, layout: Layout) -> tuple[SectionSpec, ...]:
    """One section, the change of every tensor of the version."""
    return (SectionSpec.over(DELTA, layout),)


def delta(context: Finish) -> Arrays:
    """How the model's tensors changed."""
    return {name: value - context.base[name] for name, value in context.end.items()}


def squared_norm(arrays: Arrays, names: Iterable[str]) -> Array:
    """``[1]``: the sum of the squares of all elements of the named tensors."""
    from coterie.compute import numpy as xp

    total = xp.zeros((1,))
    for name in names:
        total = total + xp.sum(arrays[name] * arrays[name])
    return total


def delta_only(context: Finish) -> Finished:
    """Upload the change of every weight; keep nothing."""
    return Finished(sections={DELTA: delta(context)}, client_state={})


@dataclass(frozen=True, kw_only=True)
class ClientPart:
    """What a method does on a device. Every field has FedAvg's meaning when it is left out.

    hyper: defaults of the scalars that the method adds.
    client_state: shapes by name of what stays on a device between rounds (float32, zeros at first).
    version: shapes by name of what a model version holds: the model's own tensors, and whatever the server tells the
        clients beside them; or several models under other names.
    initial: the first version, drawn from ``draw(j)``: the model's first weights for the j-th seed (0: the
        experiment's); what it leaves out is zeros.
    probe: by name a value per example, ``[B]``, at the round's version; their sums over the device's rows are known to
        ``begin`` and ``finish``.
    begin: tensors held constant during training.
    start: the model's tensors that training starts from.
    objective: the losses ``[B]`` that are minimised instead of the data's; the metric ``loss`` stays the data's.
    gradient: what the optimizer gets instead of the gradient.
    optimizer: what takes the place of the experiment's.
    sections, finish: what leaves the device, and the new client state; the section ``metrics`` is always added, and the
        part of running statistics in the section ``delta`` is always their change.
    evaluated: the model that is measured.
    deployed: the models that the exported graph holds; with more than one it returns their outputs stacked, ``[models,
        …]``. Both may read client state.
    statistics: whether models with running statistics can be trained.
    """

    hyper: Mapping[str, float] = field(default_factory=dict[str, float])
    client_state: Callable[[Shapes], Mapping[str, ArrayShape]] = _no_tensors
    version: Callable[[Shapes], Mapping[str, ArrayShape]] = _the_model
    initial: Callable[[Callable[[int], ArraysByName]], ArraysByName] = _first_weights
    probe: Mapping[str, Callable[[Probe], Array]] = field(default_factory=dict[str, "Callable[[Probe], Array]"])
    begin: Callable[[Begin], Arrays] = _no_constants
    start: Callable[[Begin], Arrays] = _from_the_version
    objective: Callable[[Array, Objective], Array] = _same_losses
    gradient: Callable[[Arrays, Step], Arrays] = _same_gradient
    optimizer: Callable[[Optimizer], Optimizer] = _same_optimizer
    sections: Callable[[Shapes, Layout], tuple[SectionSpec, ...]] = whole_delta
    finish: Callable[[Finish], Finished] = delta_only
    evaluated: Callable[[Evaluation], Arrays] = _as_it_is
    deployed: Callable[[Deployment], tuple[Arrays, ...]] = _one_model
    statistics: bool = True


class MethodTerms(Protocol):
    """What of an experiment's `Terms` the needs of methods are about."""

    @property
    def algorithm(self) -> Algorithm: ...
    @property
    def optimizer(self) -> NamedRule | None: ...
    @property
    def server_optimizer(self) -> ServerOptimizer: ...
    @property
    def hyper(self) -> Mapping[str, float]: ...
    @property
    def overrides(self) -> Mapping[str, float]: ...
    @property
    def rounds(self) -> RoundPolicy: ...
    @property
    def training(self) -> Training: ...
    @property
    def codecs(self) -> tuple[str, ...]: ...
    @property
    def broadcast(self) -> str: ...
    @property
    def central(self) -> bool: ...
    @property
    def own_weights(self) -> bool: ...


def _no_rules(terms: MethodTerms) -> Rules:
    return ()


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A method by its name and numbers, with its two parts.

    needs(terms): what it requires of the rest of an experiment, and what is said when that does not hold.
    """

    name: str
    parameters: Mapping[str, float] = field(default_factory=dict[str, float])
    client: ClientPart = field(default_factory=ClientPart, compare=False, repr=False)
    server: ServerPart = field(default_factory=ServerPart, compare=False, repr=False)
    needs: Callable[[MethodTerms], Rules] = field(default=_no_rules, compare=False, repr=False)

    @property
    def stateful(self) -> bool:
        """Whether devices keep state between rounds, so that a population must let them."""
        return bool(self.client.client_state(_SOME_MODEL))


def changes_clients(method: Algorithm) -> str:
    """What of a client's training a method changes, which a trainer of one's own does not do by itself: at most two
    reasons as words after its name; empty for a method that works on updates alone.
    """
    client, usual = method.client, ClientPart()
    hooks = (
        (client.gradient is not usual.gradient, "corrects the gradient of every step"),
        (client.objective is not usual.objective, "adds to the loss of every step"),
        (client.optimizer is not usual.optimizer, "takes the place of the optimizer"),
        (bool(client.probe), "measures a client's rows before it trains"),
        (method.stateful, "keeps tensors on the client from round to round"),
        (client.begin is not usual.begin or client.start is not usual.start, "computes what training starts from"),
        (client.version is not usual.version, "sends more than the model"),
        (
            client.finish is not usual.finish or client.sections is not usual.sections,
            "uploads something other than the change of the weights",
        ),
        (bool(client.hyper), "adds numbers to the step"),
    )
    return " and ".join([told for holds, told in hooks if holds][:2])


_SOME_MODEL = Shapes(tensors={"weight": (1,)}, trained={"weight": (1,)})


def zeros(shapes: Mapping[str, ArrayShape]) -> dict[str, npt.NDArray[np.float32]]:
    """Zero tensors of these shapes."""
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


__all__ = [
    "Algorithm",
    "Begin",
    "ClientPart",
    "Deployment",
    "Evaluation",
    "Finish",
    "Finished",
    "Objective",
    "Probe",
    "Rules",
    "Shapes",
    "Step",
    "delta",
    "delta_only",
    "squared_norm",
    "whole_delta",
    "zeros",
]
