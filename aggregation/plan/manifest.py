"""The manifest: everything that a generic device needs to run a plan's stages without knowing the method.

Its canonical JSON is what is signed; the SHA-256 of those bytes is the plan's id. Graphs, weights and frozen tensors
are named in it by digest, so one signature covers them all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast, get_args

from coterie import errors
from coterie.aggregation.plan.private_steps import PrivateSteps
from coterie.aggregation.plan.reading import Fields, refused
from coterie.aggregation.plan.shapes import SHAPE_NAMES, ShapeName
from coterie.aggregation.plan.stage import MOST_ROWS as MOST_ROWS
from coterie.aggregation.plan.stage import SAMPLE_WEIGHT as SAMPLE_WEIGHT
from coterie.aggregation.plan.stage import Stage, TaskName
from coterie.privacy.dp import poisson
from coterie.privacy.dp.rounds import Draws
from coterie.protocol import spread
from coterie.protocol.canonical import canonical_json, parse_json, sha256_hex
from coterie.protocol.layout import Layout, Tensor
from coterie.protocol.metrics import EXAMPLES
from coterie.protocol.metrics import METRICS as METRICS
from coterie.protocol.schema import DataSchema
from coterie.protocol.sections import SectionSpec

FORMAT = "coterie-plan-1"
DELTA = "delta"
MANIFEST_BYTES = 4 * 2**20
MOST_EPOCHS = 1 << 20
MOST_STEPS = 1 << 31
MOST_HOLDOUT = 0.999
METRIC_RANGE = (-1e30, 1e30)
"""Bounds of one metric sum, so that no sum over clients can overflow because of one of them."""

Trainer = Literal["plan", "external"]
Broadcast = Literal["float32", "int8"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a device goes through its rows: batches of ``batch_size`` (the last one padded), ``epochs`` times or until
    ``max_steps``; a share ``holdout`` of the rows, chosen once per device, is never trained on and serves evaluation.

    private: under example-level privacy, None otherwise. Then each row is drawn for itself into each of exactly
    ``max_steps`` batches of at most ``batch_size`` rows.
    """

    batch_size: int
    epochs: int = 1
    max_steps: int | None = None
    holdout: float = 0.0
    private: PrivateSteps | None = None

    def draws(self) -> Draws | None:
        """What one round costs a device's rows, as far as draws go; None without example-level privacy."""
        if self.private is None or self.max_steps is None:
            return None
        return poisson.draws(self.private.expected, self.batch_size, rows=self.private.rows, steps=self.max_steps)

    def to_json(self) -> dict[str, Any]:
        """Every field by name, as JSON values; ``private`` only where it is set."""
        said = {
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "max_steps": self.max_steps,
            "holdout": self.holdout,
        }
        return said if self.private is None else {**said, "private": self.private.to_json()}

    @staticmethod
    def read(value: object, place: str) -> "Training":
        """The inverse of `to_json`. Raises errors.PlanRefused."""
        stated = isinstance(value, dict) and "private" in cast("dict[str, Any]", value)
        optional = ("private",) if stated else ()
        fields = Fields(cast(object, value), place, ("batch_size", "epochs", "max_steps", "holdout", *optional))
        return Training(
            batch_size=fields.integer("batch_size", 1, MOST_ROWS),
            epochs=fields.integer("epochs", 1, MOST_EPOCHS),
            max_steps=None if fields.raw("max_steps") is None else fields.integer("max_steps", 1, MOST_STEPS),
            holdout=fields.number("holdout", 0.0, MOST_HOLDOUT),
            private=PrivateSteps.read(fields.raw("private"), f"{place}.private") if stated else None,
        )


@dataclass(frozen=True)
class Named:
    """A rule of coterie by its name and numbers; the server rebuilds its own part of a method from this."""

    name: str
    parameters: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """``{"name": …, "parameters": {…}}``"""
        return {"name": self.name, "parameters": dict(self.parameters)}

    @staticmethod
    def read(value: object, place: str) -> "Named":
        """The inverse of `to_json`. Raises errors.PlanRefused."""
        fields = Fields(value, place, ("name", "parameters"))
        return Named(fields.text("name"), fields.numbers("parameters"))


@dataclass(frozen=True)
class Frozen:
    """Tensors that no device changes: their layout, and the SHA-256 of the safetensors file that holds them."""

    layout: Layout
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """Every field by name, as JSON values."""
        return {"layout": self.layout.to_json(), "sha256": self.sha256}

    @staticmethod
    def read(value: object, place: str) -> "Frozen | None":
        """The inverse of `to_json`; None for null. Raises errors.PlanRefused."""
        if value is None:
            return None
        fields = Fields(value, place, ("layout", "sha256"))
        return Frozen(fields.part("layout", Layout.from_json), fields.text("sha256", pattern="[0-9a-f]{64}"))


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
    """

    name: str
    shape: ShapeName
    schema: DataSchema
    layout: Layout
    frozen: Frozen | None = None
    client_state: tuple[Tensor, ...] = ()
    sections: tuple[SectionSpec, ...]
    codecs: tuple[str, ...] = ("float32",)
    broadcast: Broadcast = "float32"
    metrics: tuple[str, ...] = (EXAMPLES, "loss")
    hyper: Mapping[str, float]
    training: Training
    algorithm: Named
    optimizer: Named
    stages: tuple[Stage, ...]

    @cached_property
    def data(self) -> bytes:
        """The canonical bytes."""
        return canonical_json(self.to_json())

    @cached_property
    def id(self) -> str:
        """The plan's id: SHA-256 (hex) of the canonical bytes."""
        return sha256_hex(self.data)

    @property
    def trainer(self) -> Trainer:
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

    def to_json(self) -> dict[str, Any]:
        """Every field by name, as JSON values."""
        return {
            "format": FORMAT,
            "name": self.name,
            "shape": self.shape,
            "schema": self.schema.to_json(),
            "layout": self.layout.to_json(),
            "frozen": None if self.frozen is None else self.frozen.to_json(),
            "client_state": [_tensor_json(tensor) for tensor in self.client_state],
            "sections": [spec.to_json() for spec in self.sections],
            "codecs": list(self.codecs),
            "broadcast": self.broadcast,
            "metrics": list(self.metrics),
            "hyper": dict(self.hyper),
            "training": self.training.to_json(),
            "algorithm": self.algorithm.to_json(),
            "optimizer": self.optimizer.to_json(),
            "stages": [stage.to_json() for stage in self.stages],
        }

    @staticmethod
    def from_json(value: object) -> "Manifest":
        """The inverse of `to_json`: types and bounds of every field. What the fields mean together, `check_plan`
        checks.

        Raises errors.PlanRefused (``plan_manifest``) naming the field.
        """
        fields = Fields(value, "manifest", _FIELDS)
        fields.text("format", choices=(FORMAT,))
        return Manifest(
            name=fields.text("name"),
            shape=cast(ShapeName, fields.text("shape", choices=SHAPE_NAMES)),
            schema=fields.part("schema", DataSchema.from_json),
            layout=fields.part("layout", Layout.from_json),
            frozen=Frozen.read(fields.raw("frozen"), "manifest.frozen"),
            client_state=fields.items("client_state", _read_tensor),
            sections=fields.items("sections", _read_section),
            codecs=fields.texts("codecs"),
            broadcast=cast(Broadcast, fields.text("broadcast", choices=get_args(Broadcast))),
            metrics=fields.texts("metrics"),
            hyper=fields.numbers("hyper"),
            training=Training.read(fields.raw("training"), "manifest.training"),
            algorithm=Named.read(fields.raw("algorithm"), "manifest.algorithm"),
            optimizer=Named.read(fields.raw("optimizer"), "manifest.optimizer"),
            stages=fields.items("stages", Stage.read),
        )

    @staticmethod
    def from_bytes(data: bytes) -> "Manifest":
        """Read canonical bytes. Raises errors.PlanRefused (``plan_manifest``), also for JSON that is not canonical."""
        try:
            value = parse_json(data, limit=MANIFEST_BYTES)
            canonical = canonical_json(value)
        except errors.InputError as error:
            raise refused(f"The manifest is unreadable: {error.message}") from error
        if canonical != data:
            raise refused("The manifest is not canonical JSON, so its digest is not that of its meaning.")
        return Manifest.from_json(value)


_FIELDS = (
    "format", "name", "shape", "schema", "layout", "frozen", "client_state", "sections", "codecs",
    "broadcast", "metrics", "hyper", "training", "algorithm", "optimizer", "stages",
)  # fmt: skip


def _tensor_json(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "shape": list(tensor.shape)}


def _read_tensor(value: object, place: str) -> Tensor:
    fields = Fields(value, place, ("name", "shape"))
    name, shape = fields.text("name"), fields.integers("shape", 1, 1 << 32)
    return fields.part("name", lambda _: Tensor(name, shape))


def _read_section(value: object, place: str) -> SectionSpec:
    return Fields({"section": value}, place, ("section",)).part("section", SectionSpec.from_json)
