"""What a method of horizontal learning is: a client part, compiled into the plan, and a server part, a pair of pure
functions. Neither the SDK nor the engine knows any method by name.

The client functions run once, while a plan is compiled, on traced arrays; they need nothing but arithmetic on them. A
device then runs graphs. What a method keeps on a device (``client_state``), gets from the server beside the model
(``round_inputs``), holds constant during training (``begin``) or uploads beside the delta (``sections``) is declared
here and is data to everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.reducers import Vector
from coterie.aggregation.server_optimizers import State
from coterie.protocol.layout import Layout
from coterie.protocol.sections import SectionSpec

if TYPE_CHECKING:
    from coterie.compute.array import Array

    Arrays = Mapping[str, Array]

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Begin:
    """What is there before the first step: the round's model, this device's state, the server's round inputs."""

    base: Arrays
    client_state: Arrays
    round_inputs: Arrays
    hyper: Arrays


@dataclass(frozen=True, kw_only=True)
class Step:
    """What is there within a step. constants: what ``begin`` returned."""

    params: Arrays
    base: Arrays
    constants: Arrays
    hyper: Arrays


@dataclass(frozen=True, kw_only=True)
class Finish:
    """What is there after the last step. steps, weight: ``[1]``, how many steps ran and how many examples count."""

    base: Arrays
    end: Arrays
    constants: Arrays
    client_state: Arrays
    round_inputs: Arrays
    hyper: Arrays
    steps: Array
    weight: Array


@dataclass(frozen=True, kw_only=True)
class Finished:
    """sections: for each section a flat vector, or tensors by name that are laid out as the layout orders them.
    client_state: the new value of every tensor of the client state.
    """

    sections: Mapping[str, Array | Arrays]
    client_state: Arrays


def _no_tensors(layout: Layout) -> Mapping[str, Shape]:
    return {}


def _no_constants(context: Begin) -> Arrays:
    return {}


def _same_gradient(gradient: Arrays, context: Step) -> Arrays:
    return gradient


def whole_delta(layout: Layout) -> tuple[SectionSpec, ...]:
    """One section, the change of every weight."""
    return (SectionSpec.over(DELTA, layout),)


def delta_only(context: Finish) -> Finished:
    """Upload the change of every weight; keep nothing."""
    return Finished(
        sections={DELTA: {name: context.end[name] - context.base[name] for name in context.base}}, client_state={}
    )


@dataclass(frozen=True, kw_only=True)
class ClientPart:
    """hyper: defaults of the scalars that the method adds. client_state, round_inputs: layout → shapes by name
    (float32).
    begin: tensors held constant during training. gradient: what the optimizer gets instead of the data gradient.
    sections, finish: what leaves the device, and the new client state. The section ``metrics`` is always added.
    """

    hyper: Mapping[str, float] = field(default_factory=dict[str, float])
    client_state: Callable[[Layout], Mapping[str, Shape]] = _no_tensors
    round_inputs: Callable[[Layout], Mapping[str, Shape]] = _no_tensors
    begin: Callable[[Begin], Arrays] = _no_constants
    gradient: Callable[[Arrays, Step], Arrays] = _same_gradient
    sections: Callable[[Layout], tuple[SectionSpec, ...]] = whole_delta
    finish: Callable[[Finish], Finished] = delta_only


@dataclass(frozen=True, kw_only=True)
class Aggregates:
    """What the clients of a round sent together. sections: the aggregate of each, float64; one over the layout is
    placed in a vector of the layout's size, zero where nothing covers it. clients: how many; weight: the sum of their
    weights.
    """

    sections: Mapping[str, Vector]
    clients: int
    weight: float


Optimize = Callable[[Vector], Vector]
"""The server optimizer's step for a change of the whole layout."""


def _no_state(layout: Layout) -> State:
    return {}


def _delta_step(aggregates: Aggregates, state: State, optimize: Optimize) -> tuple[Vector, State]:
    return optimize(aggregates.sections[DELTA]), state


@dataclass(frozen=True, kw_only=True)
class ServerPart:
    """init(layout): the method's own state on the server. apply(aggregates, state, optimize) is (step, new state),
    and the model becomes ``weights + step``; ``optimize`` may be called once.
    """

    init: Callable[[Layout], State] = _no_state
    apply: Callable[[Aggregates, State, Optimize], tuple[Vector, State]] = _delta_step


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A method by its name and numbers, with its two parts."""

    name: str
    parameters: Mapping[str, float] = field(default_factory=dict[str, float])
    client: ClientPart = field(default_factory=ClientPart, compare=False, repr=False)
    server: ServerPart = field(default_factory=ServerPart, compare=False, repr=False)


__all__ = [
    "Aggregates",
    "Algorithm",
    "Begin",
    "ClientPart",
    "Finish",
    "Finished",
    "ServerPart",
    "Step",
    "delta_only",
    "whole_delta",
]
