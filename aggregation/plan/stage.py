"""What a stage of a plan is: one graph, what it runs over, where its inputs come from and where its outputs go."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from coterie.aggregation.plan.reading import Fields

TaskName = Literal["train", "evaluate", "predict"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)

Over = Literal["once", "pass", "steps"]
OVER: tuple[Over, ...] = get_args(Over)

Role = Literal[
    "shared", "frozen", "buffer", "optimizer", "client_state", "round_input", "hyper", "random", "batch", "metric",
    "counter", "probe",
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

Destination = Literal["carry", "state", "probe", "upload", "client_state", "metric", "prediction"]
DESTINATIONS: tuple[Destination, ...] = get_args(Destination)

SAMPLE_WEIGHT = "sample_weight"
PREDICTION = "output"
"""The key of the one prediction that a plan makes."""

LARGEST_SIZE = 1 << 32
MOST_ROWS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class StageInput:
    """One input, and all that a device needs to fill it.

    role: what the tensor is to the method. source says where the values come from, ``key`` which of them:

    ============  ====================================================================================================
    model         tensor ``key`` of the model version that the task names
    frozen        tensor ``key`` of the frozen blob
    client_state  tensor ``key`` of this device's committed client state; zeros before the first
    probe         ``[1]``: the sum that an earlier stage of the task left for the probe ``key``
    hyper         ``[1]``: hyper-parameter ``key`` of the task, else the manifest's default
    active        ``[1]``: 1 for a real step, 0 for one that must leave the state as it is
    random        uniform float32 in [0, 1) from the host's generator, fresh at every step
    noise         normal float32 of the deviation that the plan's training states, of the shape of weight ``key``: from
                  a key that the device draws for itself, fresh at every step
    batch         feature or label ``key`` of the batch, or its ``sample_weight`` (0 on padding rows)
    state         what an earlier stage of the task left under this input's name; ``key`` says which tensor it is of
    zeros         zeros at the first step; then what is carried
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
    def read(value: object, place: str) -> "StageInput":
        """The inverse of `to_json`. Raises errors.PlanRefused."""
        fields = Fields(value, place, ("name", "role", "dtype", "shape", "source", "key"))
        return StageInput(
            name=fields.text("name"),
            role=cast(Role, fields.text("role", choices=ROLES)),
            dtype=fields.text("dtype"),
            shape=fields.integers("shape", 0, LARGEST_SIZE),
            source=cast(Source, fields.text("source", choices=SOURCES)),
            key=fields.text("key"),
        )


@dataclass(frozen=True, kw_only=True)
class StageOutput:
    """One output. destination says where the values go, ``key`` under which name; its own name says nothing:

    ============  ====================================================================================================
    carry         input ``key`` of this stage at its next step; after the last step, state of that name
    state         state ``key``, which inputs of that name take in later stages of the task
    probe         ``[1]``: added up over the batches in float64, for later stages of the task
    upload        section ``key`` of the update
    client_state  tensor ``key`` of this device's client state: pending until the round counts the update
    metric        ``[1]``: added up over the batches in float64, as the metric sum ``key``
    prediction    what the model says of the rows of a batch
    ============  ====================================================================================================
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    destination: Destination
    key: str

    def to_json(self) -> dict[str, Any]:
        """Every field by name, as JSON values."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "destination": self.destination,
            "key": self.key,
        }

    @staticmethod
    def read(value: object, place: str) -> "StageOutput":
        """The inverse of `to_json`. Raises errors.PlanRefused."""
        fields = Fields(value, place, ("name", "dtype", "shape", "destination", "key"))
        return StageOutput(
            name=fields.text("name"),
            dtype=fields.text("dtype"),
            shape=fields.integers("shape", 0, LARGEST_SIZE),
            destination=cast(Destination, fields.text("destination", choices=DESTINATIONS)),
            key=fields.text("key"),
        )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a plan.

    tasks: in which it runs. A training works on the rows that a device trains on, an evaluation on those that it holds
        out, a prediction on those that it is given.
    over: what it runs over: ``once``; ``pass``, each batch of the task's rows in their order; ``steps``, the batches of
        a training, as the manifest's ``training`` draws them, each step going on from what the one before carried.
    batch: rows that one run takes; 0 where it takes none.
    sha256, size: of the file of its graph.
    """

    name: str
    tasks: tuple[TaskName, ...]
    over: Over
    batch: int
    sha256: str
    size: int
    inputs: tuple[StageInput, ...]
    outputs: tuple[StageOutput, ...]

    def from_source(self, source: Source) -> tuple[StageInput, ...]:
        """The inputs that come from this source."""
        return tuple(tensor for tensor in self.inputs if tensor.source == source)

    def to_destination(self, destination: Destination) -> tuple[StageOutput, ...]:
        """The outputs that go to this destination."""
        return tuple(tensor for tensor in self.outputs if tensor.destination == destination)

    @property
    def carry(self) -> Mapping[str, str]:
        """Which outputs become which inputs of the next step: output name → input name."""
        return {tensor.name: tensor.key for tensor in self.to_destination("carry")}

    def to_json(self) -> dict[str, Any]:
        """Every field by name, as JSON values."""
        return {
            "name": self.name,
            "tasks": list(self.tasks),
            "over": self.over,
            "batch": self.batch,
            "sha256": self.sha256,
            "size": self.size,
            "inputs": [tensor.to_json() for tensor in self.inputs],
            "outputs": [tensor.to_json() for tensor in self.outputs],
        }

    @staticmethod
    def read(value: object, place: str) -> "Stage":
        """The inverse of `to_json`. Raises errors.PlanRefused."""
        names = ("name", "tasks", "over", "batch", "sha256", "size", "inputs", "outputs")
        fields = Fields(value, place, names)
        return Stage(
            # It names a file too.
            name=fields.text("name", pattern="[a-z][a-z0-9_]{0,63}"),
            tasks=fields.items("tasks", _task),
            over=cast(Over, fields.text("over", choices=OVER)),
            batch=fields.integer("batch", 0, MOST_ROWS),
            sha256=fields.text("sha256", pattern="[0-9a-f]{64}"),
            size=fields.integer("size", 1, LARGEST_SIZE),
            inputs=fields.items("inputs", StageInput.read),
            outputs=fields.items("outputs", StageOutput.read),
        )


def _task(value: object, place: str) -> TaskName:
    return cast(TaskName, Fields({"task": value}, place, ("task",)).text("task", choices=TASKS))
