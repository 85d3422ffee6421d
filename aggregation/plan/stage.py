"""What a stage of a plan is: one graph, what it runs over, where its inputs come from and where its outputs go."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field

from coterie.aggregation.plan.reading import Listed, Text
from coterie.compute.onnx.providers import ProviderClass
from coterie.protocol.conversion import UnlessEmpty, UnlessNone
from coterie.protocol.wire import Sha256

TaskName = Literal["train", "evaluate", "predict"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)

Over = Literal["once", "pass", "steps"]

Role = Literal[
    "shared", "frozen", "buffer", "optimizer", "client_state", "round_input", "hyper", "random", "batch", "metric",
    "counter", "probe", "message",
]  # fmt: skip

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
    "message",
]

Destination = Literal["carry", "state", "probe", "upload", "client_state", "metric", "prediction", "message"]

SAMPLE_WEIGHT = "sample_weight"
PREDICTION = "output"
"""The key of the one prediction that a plan makes."""

LARGEST_SIZE = 1 << 32
MOST_ROWS = 1 << 20
_Shape: TypeAlias = Listed[Annotated[int, Field(ge=0, le=LARGEST_SIZE)]]
_FileName: TypeAlias = Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,63}$")]


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
    message       tensor ``key`` of what the partner sent for this batch
    ============  ====================================================================================================

    partner: of a message, the role of the session that sends it.
    """

    name: Text
    role: Role
    dtype: Text
    shape: _Shape
    source: Source
    key: Text
    partner: Annotated[Text | None, UnlessNone] = None

    @property
    def address(self) -> str:
        """The key, after the partner's name in a message: unique among tensors of one source."""
        return self.key if self.partner is None else f"{self.partner}/{self.key}"


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
    message       tensor ``key`` of what the partner gets for this batch
    ============  ====================================================================================================

    partner: of a message, the role of the session that gets it.
    """

    name: Text
    dtype: Text
    shape: _Shape
    destination: Destination
    key: Text
    partner: Annotated[Text | None, UnlessNone] = None

    @property
    def address(self) -> str:
        """The key, after the partner's name in a message: unique among tensors of one destination."""
        return self.key if self.partner is None else f"{self.partner}/{self.key}"


@dataclass(frozen=True, kw_only=True)
class StageVariant:
    """The graph of a stage once more, written for a class of providers: the same inputs and outputs, and the same
    numbers up to rounding. Who knows nothing of it runs the stage's own file.
    """

    kind: ProviderClass
    sha256: Sha256
    size: Annotated[int, Field(ge=1, le=LARGEST_SIZE)]


@dataclass(frozen=True, kw_only=True)
class StageLength:
    """The graph of a stage once more, for batches of shorter rows: its inputs from the batch are cut to these lengths
    along their second axis, and what it draws may be smaller. Everything else is the stage's, and so are the numbers
    where rows are no longer, up to rounding. Who knows nothing of it runs the stage's own file.

    lengths: feature or label → length.
    """

    lengths: Annotated[Mapping[Text, Annotated[int, Field(ge=1, le=LARGEST_SIZE)]], Field(min_length=1, max_length=64)]
    sha256: Sha256
    size: Annotated[int, Field(ge=1, le=LARGEST_SIZE)]


def length_file(stage: str, number: int) -> str:
    """The name of the file of a stage's length among the files of its plan.

    number: of the length, from 1.
    """
    return f"{stage}.length{number}"


@dataclass(frozen=True)
class StageFile:
    """A file of a stage. name: among the files of its plan. kind: the class that it is for, None for all providers.
    length: of shorter rows that it is for, None for all rows.
    """

    name: str
    sha256: str
    size: int
    kind: ProviderClass | None = None
    length: StageLength | None = None


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a plan.

    tasks: in which it runs. A training works on the rows that a device trains on, an evaluation on those that it holds
        out, a prediction on those that it is given.
    over: what it runs over: ``once``; ``pass``, each batch of the task's rows in their order; ``steps``, the batches of
        a training, as the manifest's ``training`` draws them, each step going on from what the one before carried.
    batch: rows that one run takes; 0 where it takes none.
    sha256, size: of the file of its graph, which every provider runs.
    variants: further files for classes of providers.
    lengths: further files for batches of shorter rows, the shortest first.
    """

    name: _FileName
    tasks: Listed[TaskName]
    over: Over
    batch: Annotated[int, Field(ge=0, le=MOST_ROWS)]
    sha256: Sha256
    size: Annotated[int, Field(ge=1, le=LARGEST_SIZE)]
    inputs: Listed[StageInput]
    outputs: Listed[StageOutput]
    variants: Annotated[Listed[StageVariant], UnlessEmpty] = ()
    lengths: Annotated[Listed[StageLength], UnlessEmpty] = ()

    @property
    def files(self) -> tuple[StageFile, ...]:
        """Its file, those of its variants, and those of its lengths."""
        own = StageFile(self.name, self.sha256, self.size)
        return (
            own,
            *(StageFile(f"{self.name}.{v.kind}", v.sha256, v.size, v.kind) for v in self.variants),
            *(
                StageFile(length_file(self.name, number), each.sha256, each.size, length=each)
                for number, each in enumerate(self.lengths, 1)
            ),
        )

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
