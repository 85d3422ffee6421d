"""The manifest: everything that a generic device needs to run a plan's stages without knowing the method.

Its canonical JSON is what is signed; the SHA-256 of those bytes is the plan's id. Graphs, weights and frozen tensors
are named in it by digest, so one signature covers them all.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Final, Literal

from pydantic import Field

from coterie import errors
from coterie.aggregation.plan.private_steps import PrivateSteps
from coterie.aggregation.plan.reading import Listed, Numbers, Text, Texts, read_canonical
from coterie.aggregation.plan.shapes import ShapeName
from coterie.aggregation.plan.stage import MOST_ROWS as MOST_ROWS
from coterie.aggregation.plan.stage import SAMPLE_WEIGHT as SAMPLE_WEIGHT
from coterie.aggregation.plan.stage import Stage, StageFile, TaskName
from coterie.privacy.dp import poisson
from coterie.privacy.dp.rounds import Draws
from coterie.protocol import spread
from coterie.protocol.canonical import canonical_json, sha256_hex
from coterie.protocol.conversion import UnlessNone, to_json
from coterie.protocol.layout import Layout, Tensor
from coterie.protocol.metrics import EXAMPLES
from coterie.protocol.metrics import METRICS as METRICS
from coterie.protocol.schema import DataSchema
from coterie.protocol.sections import SectionSpec
from coterie.protocol.wire import Sha256

FORMAT: Final = "coterie-plan-1"
DELTA = "delta"
MANIFEST_BYTES = 4 * 2**20
MOST_EPOCHS = 1 << 20
MOST_STEPS = 1 << 31
MOST_STEPS_PER_CALL = 1024
MOST_HOLDOUT = 0.999
METRIC_RANGE = (-1e30, 1e30)
"""Bounds of one metric sum, so that no sum over clients can overflow because of one of them."""

TrainerKind = Literal["plan", "external"]
Broadcast = Literal["float32", "int8"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a device goes through its rows: batches of ``batch_size`` (the last one padded), ``epochs`` times or until
    ``max_steps``; a share ``holdout`` of the rows, chosen once per device, is never trained on and serves evaluation.

    private: under example-level privacy, None otherwise. Then each row is drawn for itself into each of exactly
    ``max_steps`` batches of at most ``batch_size`` rows.
    precision: in which the steps compute, where it is not float32. It is for people: the graphs say it themselves.
    steps_per_call: how many steps a device may take in one call of its runtime; None for one. A device may ignore it:
    the numbers are those of single steps.
    """

    batch_size: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    epochs: Annotated[int, Field(ge=1, le=MOST_EPOCHS)] = 1
    max_steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] | None = None
    holdout: Annotated[float, Field(ge=0, le=MOST_HOLDOUT)] = 0.0
    private: Annotated[PrivateSteps | None, UnlessNone] = None
    precision: Annotated[Literal["bfloat16", "float16"] | None, UnlessNone] = None
    steps_per_call: Annotated[Annotated[int, Field(ge=2, le=MOST_STEPS_PER_CALL)] | None, UnlessNone] = None

    def draws(self) -> Draws | None:
        """What one round costs a device's rows, as far as draws go; None without example-level privacy."""
        if self.private is None or self.max_steps is None:
            return None
        return poisson.draws(self.private.expected, self.batch_size, rows=self.private.rows, steps=self.max_steps)


@dataclass(frozen=True)
class NamedRule:
    """A rule of coterie by its name and numbers; the server rebuilds its own part of a method from this."""

    name: Text
    parameters: Numbers


@dataclass(frozen=True)
class Frozen:
    """Tensors that no device changes: their layout, and the SHA-256 of the safetensors file that holds them."""

    layout: Layout
    sha256: Sha256


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a plan is. ``from_bytes`` accepts canonical bytes only, so a plan has one byte string and one id.

    shape: which stages there must be (`coterie.aggregation.plan.shapes`).
    stages: in the order in which they run.
    layout: the tensors of a model version, in order: those of the model, and what the method sends beside them.
    client_state: tensors that stay on a device between rounds, zeros at first.
    sections: what an update holds; ``metrics`` is the last.
    codecs: for sections over the layout, by preference.
    broadcast: what a version may be: any floats, or the one before plus levels of 8 bits, which devices that have that
        one fetch in a quarter of the bytes.
    metrics: names of the sums, ``examples`` first.
    hyper: defaults of the hyper-parameters that a task may set.
    algorithm, optimizer: for people and for the server; a device ignores them.
    compression: how the model is made smaller (pruned, quantisation-aware, distilled), from the outside in; None where
        it is not. It is for people: the graphs say it themselves.
    """

    format: Literal["coterie-plan-1"] = field(default=FORMAT, repr=False)
    name: Text
    shape: ShapeName
    schema: DataSchema
    layout: Layout
    frozen: Frozen | None = None
    client_state: Listed[Tensor] = ()
    sections: Listed[SectionSpec]
    codecs: Texts = ("float32",)
    broadcast: Broadcast = "float32"
    metrics: Texts = (EXAMPLES, "loss")
    hyper: Numbers
    training: Training
    algorithm: NamedRule
    optimizer: NamedRule
    stages: Listed[Stage]
    compression: Annotated[Listed[NamedRule] | None, UnlessNone] = None

    @cached_property
    def data(self) -> bytes:
        """The canonical bytes."""
        return canonical_json(to_json(self))

    @cached_property
    def id(self) -> str:
        """The plan's id: SHA-256 (hex) of the canonical bytes."""
        return sha256_hex(self.data)

    @property
    def trainer(self) -> TrainerKind:
        """Who trains: the plan's stages, or code of a client's own."""
        return "external" if self.shape == "external" else "plan"

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """Tensors of the layout that are no weights but running statistics, which a model moves by itself while it
        trains (BatchNorm's mean and variance). Clients send their change like that of weights, and the weighted mean of
        the changes is added to the model as it is: no optimizer and no other rule of a method acts on them.
        """
        return tuple(t.key for t in self.stepped.inputs if t.role == "buffer") if self.stepped else ()

    def sections_for(self, kind: Literal["train", "evaluate"]) -> tuple[SectionSpec, ...]:
        """What the update of a task of this kind must hold: everything, or the metric sums and where the client's
        means lie (see `coterie.protocol.spread`).
        """
        if kind == "train":
            return self.sections
        return (*(spec for spec in self.sections if spec.name == METRICS), spread.section(self.metrics))

    def find(self, name: str) -> Stage | None:
        """The stage of this name, if there is one."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def stage(self, name: str) -> Stage:
        """The stage of this name. Raises errors.PlanRefused (``plan_stage_absent``) when the plan has none."""
        found = self.find(name)
        if found is None:
            raise errors.PlanRefused(
                f"Plan {self.name!r} has no stage {name!r}.",
                hint="Its trainer is external: join with a trainer of your own."
                if self.trainer == "external"
                else None,
                code="plan_stage_absent",
            )
        return found

    def stages_of(self, task: TaskName) -> tuple[Stage, ...]:
        """The stages of a task, in the order in which they run; none for an external plan."""
        return tuple(stage for stage in self.stages if task in stage.tasks)

    @cached_property
    def files(self) -> tuple[StageFile, ...]:
        """The files of all stages, those of variants included."""
        return tuple(file for stage in self.stages for file in stage.files)

    @cached_property
    def stepped(self) -> Stage | None:
        """The stage that is stepped over batches."""
        return next((stage for stage in self.stages if stage.over == "steps"), None)

    @cached_property
    def chooses(self) -> bool:
        """Whether a version holds several models, of which an evaluation takes one by its rows, so that no row has one
        prediction.
        """
        by_rows = any(stage.from_source("probe") for stage in self.stages_of("evaluate"))
        return by_rows or any(
            tensor.shape[:1] != (stage.batch,)
            for stage in self.stages_of("predict")
            for tensor in stage.to_destination("prediction")
        )

    def personal(self, task: TaskName) -> bool:
        """Whether a task reads client state, so that each client's model is its own."""
        return any(stage.from_source("client_state") for stage in self.stages_of(task))

    @staticmethod
    def from_bytes(data: bytes) -> "Manifest":
        """Read canonical bytes. Raises errors.PlanRefused (``plan_manifest``), also for JSON that is not canonical."""
        return read_canonical(Manifest, data, limit=MANIFEST_BYTES)
