"""Which nodes of a graph a provider runs, and which would fall back to the CPU.

``coverage`` loads the graph and asks ONNX Runtime; it needs the provider. ``documented`` reads the table of
``onnx.providers``, for providers of other machines.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import onnx

from coterie.compute.onnx.providers import PROVIDERS, lacking
from coterie.compute.runtime.devices import Provider
from coterie.compute.runtime.session import assignment, open_session
from coterie.errors import CoterieError, InputError


@dataclass(frozen=True)
class Place:
    """A node and where it runs. name: as ONNX Runtime calls it after its own fusions; it may be empty. why: what the
    provider lacks, where that is known.
    """

    name: str
    operator: str
    provider: str
    why: str = ""


@dataclass(frozen=True)
class Coverage:
    """What a provider makes of one graph.

    whole: it loads with the CPU as a fallback disabled, so every node runs there. nodes: all of them, after ONNX
    Runtime's fusions; empty for a provider of another package, which takes all nodes or none. refusal: why the graph
    does not load at all; "" where it does.
    """

    provider: str
    whole: bool
    nodes: tuple[Place, ...] = ()
    refusal: str = ""

    @property
    def elsewhere(self) -> tuple[Place, ...]:
        """The nodes that other providers run."""
        return tuple(place for place in self.nodes if place.provider != self.provider)

    def __str__(self) -> str:
        if self.refusal:
            return f"does not load: {self.refusal}"
        if self.whole:
            return "every node"
        operators = sorted({place.operator for place in self.elsewhere})
        return f"{len(self.nodes) - len(self.elsewhere)} of {len(self.nodes)} nodes, not {', '.join(operators)}"


def coverage(data: bytes, provider: Provider) -> Coverage:
    """What a provider of this machine makes of a serialised graph. A graph that it refuses is a result."""
    try:
        provider.executable(data, fallback=False)
        whole = True
    except CoterieError as error:
        if provider.open is not None:
            return Coverage(provider.name, whole=False, refusal=error.message)
        whole = False
    if provider.open is not None:
        return Coverage(provider.name, whole=True)
    try:
        session = open_session(
            data, threads=1, provider=provider.name, spinning=False, arena=True, fallback=True, record=True
        )
    except CoterieError as error:
        return Coverage(provider.name, whole=False, refusal=error.message)
    return Coverage(provider.name, whole, tuple(Place(name, kind, where) for where, name, kind in assignment(session)))


def plan_coverage(graphs: Mapping[str, bytes], providers: Iterable[Provider]) -> dict[tuple[str, str], Coverage]:
    """(graph's name, provider's name) → coverage, for the graphs of a plan."""
    return {(name, each.name): coverage(data, each) for each in providers for name, data in graphs.items()}


def documented(data: bytes, target: str) -> Coverage:
    """What a row of ``onnx.providers`` says of a serialised graph: from the provider's own lists, not from a run.

    Raises InputError for an unknown row.
    """
    row = PROVIDERS.get(target)
    if row is None:
        raise InputError(f"There is no provider {target!r}.", hint=f"Choose one of {', '.join(PROVIDERS)}.")
    graph = cast(Any, onnx).load_from_string(data).graph
    fixed = {tensor.name for tensor in graph.initializer}
    places: list[Place] = []
    for node in graph.node:
        constants = {index for index, name in enumerate(node.input) if name in fixed}
        attributes = {held.name: onnx.helper.get_attribute_value(held) for held in node.attribute}
        why = lacking(row, node.op_type, constants, list(node.input), attributes)
        places.append(Place(node.name, node.op_type, "CPUExecutionProvider" if why else row.runtime, why))
    return Coverage(row.runtime, not any(place.why for place in places), tuple(places))
