"""Opening the sums of attempts: what the workers are asked to do, and with which files."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coterie.errors import InternalError
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.masked_file import MaskedHeader
from coterie.protocol.conversion import to_text
from coterie.protocol.device import Task
from coterie.server.secure.machine import Machine
from coterie.server.store.blobs import BlobStore
from coterie.server.store.tables import TaskRow


async def unmasking(
    blobs: BlobStore, machine: Machine, members: Sequence[TaskRow], revealed: Mapping[int, str], folder: Path
) -> dict[str, Any]:
    """What opens the sum of the survivors' vectors.

    members: the tasks of the survivors.
    revealed: what each place revealed, as JSON.
    folder: for what opens the sum, and for the sum; whoever asked deletes it.
    """
    state, answers = folder / "state", folder / "revealed"
    await asyncio.to_thread(state.write_text, to_text(machine.state))
    await asyncio.to_thread(answers.write_text, json.dumps({str(place): text for place, text in revealed.items()}))
    return {**summands(blobs, members), "state": str(state), "revealed": str(answers), "out": str(folder)}


def summands(blobs: BlobStore, members: Sequence[TaskRow]) -> dict[str, Any]:
    """What adds the masked vectors of these tasks to the running sum of their attempt."""
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
        "cache": str(_cache(blobs, message.secure.attempt)),
        "header": asdict(header),
        "sections": [section.model_dump(mode="json") for section in message.secure.sections],
        "blobs": blobs.reader.to_json(),
        "vectors": {task.id: task.upload or "" for task in members},
    }


def forget(blobs: BlobStore, attempt: str) -> None:
    """Delete the running sum of an attempt."""
    _cache(blobs, attempt).unlink(missing_ok=True)


def _cache(blobs: BlobStore, attempt: str) -> Path:
    return blobs.scratch_file(f"sum-{attempt}")
