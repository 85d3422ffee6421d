"""How far a role has come in a plan of a session, and its part of the model: a value, and the file that keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from coterie.aggregation.plan.stage import TaskName
from coterie.errors import ConfigurationError, InputError
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.canonical import canonical_json
from coterie.protocol.conversion import from_text, to_json
from coterie.protocol.metrics import MetricSums
from coterie.protocol.tensors import open_tensors, write_file

_Count = Annotated[int, Field(ge=0)]
_KEY: Final = "progress"


@dataclass(frozen=True, kw_only=True)
class RoleProgress:
    """How far a role has come.

    plan: the id.
    run: how many calls are done.
    task: of the call that is being made; None between two.
    rows, step: of that call: how many rows it is about, how many batches are done.
    epochs: metric sums of each epoch of it, the present one last.
    sent, received: messages to and from each role that are worked in.
    """

    plan: str
    run: _Count = 0
    task: TaskName | None = None
    rows: _Count = 0
    step: _Count = 0
    epochs: tuple[Mapping[str, float], ...] = ()
    sent: Mapping[str, _Count] = field(default_factory=dict[str, int])
    received: Mapping[str, _Count] = field(default_factory=dict[str, int])

    def counted(self, sums: Mapping[str, float], per_epoch: int) -> "RoleProgress":
        """After one more batch, whose metric sums these are."""
        if self.step % per_epoch == 0:
            return replace(self, step=self.step + 1, epochs=(*self.epochs, MetricSums(sums).sums))
        last = MetricSums(self.epochs[-1]).add(sums).sums
        return replace(self, step=self.step + 1, epochs=(*self.epochs[:-1], last))


@dataclass(frozen=True, kw_only=True)
class RoleCheckpoint:
    """Progress, and the tensors that go with it: client state in a checkpoint, the prediction in a result."""

    progress: RoleProgress
    tensors: ArraysByName

    def save(self, path: Path) -> None:
        """Write it durably, for this user alone where the folder is. Raises errors.StorageError."""
        write_file(path, self.tensors, {_KEY: canonical_json(to_json(self.progress)).decode()})

    @staticmethod
    def load(path: Path) -> "RoleCheckpoint":
        """What `save` wrote. Raises ConfigurationError (``checkpoint_damaged``) for anything else."""
        try:
            file = open_tensors(path)
            progress = from_text(RoleProgress, file.metadata.get(_KEY, ""))
            return RoleCheckpoint(progress=progress, tensors={name: file.tensor(name) for name in file.tensors})
        except InputError as error:
            raise ConfigurationError(
                f"{path} is damaged: {error.message}",
                hint="Restore the folder from a backup, or make another session and train from the beginning.",
                code="checkpoint_damaged",
            ) from error
