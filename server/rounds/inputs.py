"""What the numeric job of a round is given: digests of blobs, and what the experiment asked for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.protocol.device import Task
from coterie.server.store import experiments
from coterie.server.store.blobs import BlobStore
from coterie.server.store.experiments import OpenRound
from coterie.server.store.tables import ExperimentRow, TaskRow


def aggregation(
    blobs: BlobStore, opened: OpenRound, row: ExperimentRow, accepted: Sequence[TaskRow], out: Path
) -> dict[str, Any]:
    """The arguments of ``aggregate``.

    accepted: the tasks whose updates are folded.
    out: where the result goes.
    """
    request = experiments.request_of(row)
    return {
        "blobs": blobs.reader.to_json(),
        "manifest": row.plan,
        "base": opened.value.base,
        "updates": updates(accepted),
        "server": request.server.model_dump(mode="json"),
        "server_state": row.server_state,
        "reducer": request.reducer,
        "trusted": next((task.id for task in accepted if task.device == request.rounds.trusted), None),
        "weight_cap": request.rounds.weight_cap,
        "lags": _lags(opened, accepted, request.rounds.staleness_exponent),
        "out": str(out),
    }


def updates(accepted: Sequence[TaskRow]) -> dict[str, str]:
    """The digests of the updates of these tasks, by task."""
    return {task.id: task.upload or "" for task in accepted}


def _lags(opened: OpenRound, accepted: Sequence[TaskRow], exponent: float) -> dict[str, Any]:
    """How far the updates of older versions lag, and which those versions are."""
    late = [task for task in accepted if task.place != opened.value.place]
    return {
        "versions": {task.id: opened.value.place - task.place for task in late},
        "bases": {task.id: Task.model_validate_json(task.message).model.sha256 for task in late},
        "exponent": exponent,
    }
