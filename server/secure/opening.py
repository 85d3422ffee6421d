"""Opening the sums of attempts: what the workers are asked to do, and with which files."""

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coterie.errors import InternalError
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.masked_file import MaskedHeader
from coterie.protocol.device import Task
from coterie.protocol.secagg import SecureTerms
from coterie.server.rounds.workers import Workers
from coterie.server.secure.machine import Failed, Machine
from coterie.server.store import experiments
from coterie.server.store.blobs import BlobStore
from coterie.server.store.experiments import OpenRound
from coterie.server.store.tables import ExperimentRow, TaskRow


@dataclass(frozen=True)
class Sum:
    """The sum of an attempt. total: its file; survivors: of how many clients it is; blamed: places of a dealer and a
    revealer whose share did not fit, the latter null where no choice of shares did.
    """

    terms: SecureTerms
    total: str
    survivors: int
    blamed: Sequence[Sequence[int | None]]


@dataclass(frozen=True)
class Opening:
    """Asks the workers."""

    blobs: BlobStore
    workers: Workers

    async def add(self, members: Sequence[TaskRow]) -> int:
        """Add the masked vectors that are here to the running sum of their attempt. Returns how many it holds."""
        result = await self.workers.run("secure_sum", self._summands(members))
        return int(result["holds"])

    async def unmask(
        self, machine: Machine, members: Sequence[TaskRow], revealed: Mapping[int, str], folder: Path
    ) -> Sum | Failed:
        """The sum of the survivors' vectors, in a file in the folder; or why it cannot be opened.

        members: the tasks of the survivors. revealed: what each place revealed, as JSON.
        """
        attempt = machine.state.terms.attempt
        state, answers = folder / f"{attempt}.state", folder / f"{attempt}.revealed"
        await asyncio.to_thread(state.write_text, machine.to_json())
        await asyncio.to_thread(answers.write_text, json.dumps({str(place): text for place, text in revealed.items()}))
        arguments = {**self._summands(members), "state": str(state), "revealed": str(answers), "out": str(folder)}
        result = await self.workers.run("unmask", arguments)
        if "cause" in result:
            return Failed(result["cause"], result["detail"])
        return Sum(machine.state.terms, result["total"], result["survivors"], result["blamed"])

    async def version(
        self,
        found: OpenRound,
        experiment: ExperimentRow,
        sums: Sequence[Sum],
        central: Mapping[str, Any] | None,
        folder: Path,
    ) -> dict[str, Any]:
        """The new version and the server's state, as files in the folder, of the sums of a round's updates.

        central: the noise that the coordinator adds to them.
        """
        request = experiments.request_of(experiment)
        arguments = {
            "blobs": self.blobs.files.to_json(),
            "manifest": experiment.plan,
            "terms": sums[0].terms.model_dump(mode="json"),
            "base": found.value.base,
            "sums": [{"total": opened.total, "survivors": opened.survivors} for opened in sums],
            "expected": request.rounds.cohort,
            "reducer": request.reducer,
            "central": central,
            "server": request.server.model_dump(mode="json"),
            "server_state": experiment.server_state,
            "out": str(folder),
        }
        return await self.workers.run("secure_aggregate", arguments)

    async def evaluation(self, found: OpenRound, experiment: ExperimentRow, opened: Sum) -> dict[str, float]:
        """The metric sums of the devices' evaluations."""
        arguments = {
            "blobs": self.blobs.files.to_json(),
            "manifest": experiment.plan,
            "terms": opened.terms.model_dump(mode="json"),
            "base": found.value.version,
            "total": opened.total,
            "survivors": opened.survivors,
        }
        return (await self.workers.run("secure_evaluation", arguments))["metrics"]

    def folder(self, found: OpenRound, kind: str) -> Path:
        """An empty folder for the files of a round's opening; what it held goes."""
        folder = self.blobs.scratch_file(f"open-{kind}-{found.row.experiment}-{found.row.number}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        return folder

    def forget(self, attempt: str) -> None:
        """Delete an attempt's running sum."""
        self._cache(attempt).unlink(missing_ok=True)

    def _cache(self, attempt: str) -> Path:
        return self.blobs.scratch_file(f"sum-{attempt}")

    def _summands(self, members: Sequence[TaskRow]) -> dict[str, Any]:
        message = Task.model_validate_json(members[0].message) if members else None
        if message is None or message.secure is None:
            raise InternalError("An attempt at secure aggregation has no task with terms.")
        header = MaskedHeader(
            attempt=message.secure.attempt,
            task=message.id,
            plan=message.plan.id,
            base=message.model.sha256,
            spec=vector_spec(message.secure.sections).digest,
        )
        return {
            "cache": str(self._cache(message.secure.attempt)),
            "header": asdict(header),
            "sections": [section.model_dump(mode="json") for section in message.secure.sections],
            "blobs": self.blobs.files.to_json(),
            "vectors": {task.id: task.upload or "" for task in members},
        }
