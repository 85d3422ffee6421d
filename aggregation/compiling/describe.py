"""What a manifest says of a graph that was just traced: roles, sources and destinations, from the names it was traced
with. Only the compiler reads anything off a name; everybody else reads the manifest.
"""

from collections.abc import Mapping

from coterie.aggregation.plan.shapes import StageRule
from coterie.aggregation.plan.stage import (
    PREDICTION,
    Destination,
    Role,
    Source,
    Stage,
    StageInput,
    StageOutput,
)
from coterie.compute.ir import Graph
from coterie.errors import InternalError
from coterie.protocol.canonical import sha256_hex

NEXT = "next/"
"""Begins the name of an output that is the new value of the input ``<name>``."""
ACTIVE = "hyper/active"
NOISE = "random/noise/"
"""Inputs that take noise begin so; the weight's name follows."""


def message(partner: str, key: str) -> str:
    """The name of an input or output that is tensor ``key`` of a message from or to a role."""
    return f"message/{partner}/{key}"


# The first part of an input's name → its role. ``base`` holds the weights of the model version that the round began
# with.
_ROLES: Mapping[str, Role] = {
    "shared": "shared",
    "frozen": "frozen",
    "buffer": "buffer",
    "optimizer": "optimizer",
    "client_state": "client_state",
    "round_input": "round_input",
    "base": "round_input",
    "hyper": "hyper",
    "random": "random",
    "batch": "batch",
    "metric": "metric",
    "counter": "counter",
    "probe": "probe",
    "message": "message",
}
_SOURCES: Mapping[str, Source] = {
    "base": "model",
    "frozen": "frozen",
    "client_state": "client_state",
    "probe": "probe",
    "hyper": "hyper",
    "random": "random",
    "batch": "batch",
    "counter": "counter",
    "round_input": "state",
    "message": "message",
}
_DESTINATIONS: Mapping[str, Destination] = {
    "upload": "upload",
    "client_state": "client_state",
    "metric": "metric",
    "probe": "probe",
    "message": "message",
}


def role_of(name: str) -> Role | None:
    """The role of an input of this name; None for a name outside the scheme."""
    return _ROLES.get(name.partition("/")[0])


def described(rule: StageRule, graph: Graph, data: bytes, *, zeroed: frozenset[str]) -> Stage:
    """A graph as a stage.

    data: its file.
    zeroed: state that starts as zeros, so that no stage makes it.
    """
    inputs = tuple(
        _input(rule, name, value.type.dtype, value.type.shape or (1,), zeroed=name in zeroed)
        for name, value in graph.inputs.items()
    )
    outputs = tuple(
        _output(rule, name, value.type.dtype, value.type.shape or (1,)) for name, value in graph.outputs.items()
    )
    return Stage(
        name=rule.name,
        tasks=rule.tasks,
        over=rule.over,
        batch=next((tensor.shape[0] for tensor in inputs if tensor.source in ("batch", "message")), 0),
        sha256=sha256_hex(data),
        size=len(data),
        inputs=inputs,
        outputs=outputs,
    )


def _input(rule: StageRule, name: str, dtype: str, shape: tuple[int, ...], *, zeroed: bool) -> StageInput:
    role = role_of(name)
    if role is None:
        raise InternalError(f"Input {name!r} of {rule.name} has a name outside the scheme of roles.")
    source, key = _source(rule, name, zeroed=zeroed)
    partner, key = _addressed(key) if source == "message" else (None, key)
    return StageInput(name=name, role=role, dtype=dtype, shape=shape, source=source, key=key, partner=partner)


def _addressed(text: str) -> tuple[str, str]:
    partner, _, key = text.partition("/")
    return partner, key


def _source(rule: StageRule, name: str, *, zeroed: bool) -> tuple[Source, str]:
    if name.startswith(NOISE):
        return "noise", name.removeprefix(NOISE)
    prefix, _, key = name.partition("/")
    if name == ACTIVE:
        return "active", key
    if prefix in ("shared", "buffer"):
        return ("state" if "state" in rule.sources else "model"), key
    if prefix in ("metric", "optimizer"):
        # Sums begin at zero with the steps; of an optimizer's state begin makes what does not.
        return ("zeros" if rule.over == "steps" and (prefix == "metric" or zeroed) else "state"), key
    return _SOURCES[prefix], key


def _output(rule: StageRule, name: str, dtype: str, shape: tuple[int, ...]) -> StageOutput:
    destination, key = _destination(rule, name)
    partner, key = _addressed(key) if destination == "message" else (None, key)
    return StageOutput(name=name, dtype=dtype, shape=shape, destination=destination, key=key, partner=partner)


def _destination(rule: StageRule, name: str) -> tuple[Destination, str]:
    if name == PREDICTION:
        return "prediction", PREDICTION
    into = name.removeprefix(NEXT)
    prefix, _, key = into.partition("/")
    if "carry" in rule.destinations:
        return "carry", into
    if into == name or prefix == "client_state":
        return _DESTINATIONS[prefix], key
    return "state", into
