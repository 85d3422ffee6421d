"""What a device must be able to do for the tasks of a plan."""

from dataclasses import dataclass
from typing import Literal

from coterie.aggregation.plan.manifest import Manifest, TrainerKind
from coterie.protocol.features import CLIENT_STATE, EVALUATE, EXAMPLE_LEVEL, FROZEN, NOISE_SCHEDULE, PROBE


@dataclass(frozen=True)
class Needs:
    """What a client must have to run a plan.

    trainer: which kind of trainer.
    features: of `coterie.protocol.features`, for every task of the plan.
    """

    trainer: TrainerKind
    features: frozenset[str]

    @staticmethod
    def of(manifest: Manifest) -> "Needs":
        """Read from the manifest."""
        has = {
            PROBE: any(stage.over == "pass" for stage in manifest.stages if "train" in stage.tasks),
            FROZEN: manifest.frozen is not None,
            CLIENT_STATE: bool(manifest.client_state),
            EXAMPLE_LEVEL: manifest.training.private is not None,
            NOISE_SCHEDULE: manifest.training.private is not None and manifest.training.private.factors is not None,
        }
        return Needs(manifest.trainer, frozenset(name for name, needed in has.items() if needed))

    def for_task(self, kind: Literal["train", "evaluate"]) -> frozenset[str]:
        """The features that a task of this kind needs."""
        return self.features | {EVALUATE} if kind == "evaluate" else self.features
