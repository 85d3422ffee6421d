"""How a plan's graphs are wired: the role of every tensor, where a device takes it from, and where it goes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from coterie.aggregation.plan.reading import Fields

GraphName = Literal["probe", "begin", "train", "finish", "eval", "infer"]
GRAPHS: tuple[GraphName, ...] = get_args(GraphName)
# Those that are stepped over batches: each output is the new value of an input.
CARRYING: tuple[GraphName, ...] = ("probe", "train", "eval")

Role = Literal[
    "shared", "frozen", "buffer", "optimizer", "client_state", "round_input", "hyper", "random", "batch", "upload",
    "metric", "counter", "probe", "output",
]  # fmt: skip
ROLES: tuple[Role, ...] = get_args(Role)

Source = Literal[
    "model",
    "frozen",
    "client_state",
    "probe",
    "hyper",
    "active",
    "random",
    "noise",
    "batch",
    "state",
    "zeros",
    "counter",
]
SOURCES: tuple[Source, ...] = get_args(Source)

# The first part of a tensor's name → its role. ``base`` holds the weights of the model version that the round began
# with.
PREFIXES: Mapping[str, Role] = {
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
    "upload": "upload",
    "metric": "metric",
    "counter": "counter",
    "probe": "probe",
    "output": "output",
}
NEXT = "next/"
NOISE = "random/noise/"
"""Inputs that take noise begin so; the weight's name follows."""

LARGEST_SIZE = 1 << 32


def role_of(name: str) -> Role | None:
    """The role that a tensor's name states; ``next/x`` has the role of ``x``; None for a name outside the scheme."""
    return PREFIXES.get(name.removeprefix(NEXT).split("/", 1)[0])


@dataclass(frozen=True, kw_only=True)
class GraphInput:
    """One input, and all that a device needs to fill it.

    source says where the values come from, ``key`` which of them:

    ============  ====================================================================================================
    model         tensor ``key`` of the model version that the task names
    frozen        tensor ``key`` of the frozen blob
    client_state  tensor ``key`` of this device's committed client state; zeros before the first
    probe         ``[1]``: what the probe's outputs ``next/probe/<key>`` sum to over the rows, batch by batch
    hyper         ``[1]``: hyper-parameter ``key`` of the task, else the manifest's default
    active        ``[1]``: 1 for a real step, 0 for one that must leave the state as it is
    random        uniform float32 in [0, 1) from the host's generator, fresh at every step
    noise         normal float32 of the deviation that the plan's training states, of the shape of weight ``key``: from
                  a key that the device draws for itself, fresh at every step
    batch         feature or label ``key`` of the batch, or its ``sample_weight`` (0 on padding rows)
    state         ``next/<name>`` of the graph before; in train also carried from step to step
    zeros         zeros at first; then carried from step to step
    counter       ``[1]``: how many steps were run (``steps``), how many examples count (``weight``)
    ============  ====================================================================================================
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    source: Source
    key: str

    def to_json(self) -> dict[str, Any]:
        """Every field by name, as JSON values."""
        return {
            "name": self.name,
            "role": self.role,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "source": self.source,
            "key": self.key,
        }

    @staticmethod
    def read(value: object, place: str) -> "GraphInput":
        """The inverse of `to_json`. Raises errors.PlanRefused."""
        fields = Fields(value, place, ("name", "role", "dtype", "shape", "source", "key"))
        return GraphInput(
            name=fields.text("name"),
            role=cast(Role, fields.text("role", choices=ROLES)),
            dtype=fields.text("dtype"),
            shape=fields.integers("shape", 0, LARGEST_SIZE),
            source=cast(Source, fields.text("source", choices=SOURCES)),
            key=fields.text("key"),
        )


@dataclass(frozen=True, kw_only=True)
class GraphOutput:
    """One output. ``next/<name>`` is the new value of the input ``<name>``; ``upload/<section>`` leaves the device."""

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Every field by name, as JSON values."""
        return {"name": self.name, "role": self.role, "dtype": self.dtype, "shape": list(self.shape)}

    @staticmethod
    def read(value: object, place: str) -> "GraphOutput":
        """The inverse of `to_json`. Raises errors.PlanRefused."""
        fields = Fields(value, place, ("name", "role", "dtype", "shape"))
        return GraphOutput(
            name=fields.text("name"),
            role=cast(Role, fields.text("role", choices=ROLES)),
            dtype=fields.text("dtype"),
            shape=fields.integers("shape", 0, LARGEST_SIZE),
        )


@dataclass(frozen=True, kw_only=True)
class GraphManifest:
    """One graph of a plan: the digest and size of its file, its inputs and outputs, and which outputs become which
    inputs of the next step (``carry``: output name → input name; empty for a graph that runs once).
    """

    sha256: str
    size: int
    inputs: tuple[GraphInput, ...]
    outputs: tuple[GraphOutput, ...]
    carry: Mapping[str, str]

    def from_source(self, source: Source) -> tuple[GraphInput, ...]:
        """The inputs that come from this source."""
        return tuple(tensor for tensor in self.inputs if tensor.source == source)

    def to_json(self) -> dict[str, Any]:
        """Every field by name, as JSON values."""
        return {
            "sha256": self.sha256,
            "size": self.size,
            "inputs": [tensor.to_json() for tensor in self.inputs],
            "outputs": [tensor.to_json() for tensor in self.outputs],
            "carry": dict(self.carry),
        }

    @staticmethod
    def read(value: object, place: str) -> "GraphManifest":
        """The inverse of `to_json`. Raises errors.PlanRefused."""
        fields = Fields(value, place, ("sha256", "size", "inputs", "outputs", "carry"))
        return GraphManifest(
            sha256=fields.text("sha256", pattern="[0-9a-f]{64}"),
            size=fields.integer("size", 1, LARGEST_SIZE),
            inputs=fields.items("inputs", GraphInput.read),
            outputs=fields.items("outputs", GraphOutput.read),
            carry=fields.mapping("carry", _name),
        )


def _name(value: object, place: str) -> str:
    return Fields({"name": value}, place, ("name",)).text("name")
