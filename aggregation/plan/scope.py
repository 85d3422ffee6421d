"""What the stages of a plan may name: the tensors, columns and numbers that their inputs and outputs are about."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.plan.shapes import PartShape, ShapeName
from coterie.aggregation.plan.stage import Stage
from coterie.protocol.layout import Layout, Tensor
from coterie.protocol.schema import DataSchema


@dataclass(frozen=True, kw_only=True)
class StageScope:
    """What the stages of a plan, or of one role's part of it, may name.

    shape: of the plan or the part.
    lengths: of the sections of an update, by name.
    batch_size: rows of a training's batch.
    partners: the other roles of a session.
    """

    shape: ShapeName | PartShape
    stages: tuple[Stage, ...]
    schema: DataSchema
    layout: Layout | None = None
    frozen: Layout | None = None
    client_state: tuple[Tensor, ...] = ()
    lengths: Mapping[str, int] = field(default_factory=dict[str, int])
    hyper: Collection[str] = ()
    metrics: tuple[str, ...] = ()
    batch_size: int
    partners: Collection[str] = ()

    @staticmethod
    def of(manifest: Manifest) -> "StageScope":
        """Of a plan that each client runs by itself."""
        return StageScope(
            shape=manifest.shape,
            stages=manifest.stages,
            schema=manifest.schema,
            layout=manifest.layout,
            frozen=manifest.frozen.layout if manifest.frozen else None,
            client_state=manifest.client_state,
            lengths={spec.name: spec.length for spec in manifest.sections},
            hyper=manifest.hyper.keys(),
            metrics=manifest.metrics,
            batch_size=manifest.training.batch_size,
        )

    def find(self, name: str) -> Stage | None:
        """The stage of this name, if there is one."""
        return next((stage for stage in self.stages if stage.name == name), None)
