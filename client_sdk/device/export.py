"""A device's own model as one file: the newest version that it worked on, with what it has committed of its own.

Read from the device's folder, without the network: the task says which plan and version, the cache holds both. Where a
method keeps part of the model on devices, this is the only place at which that model can be had.
"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection, DatabaseError

from coterie.aggregation.deploy import inference_file
from coterie.aggregation.plan.manifest import Manifest
from coterie.client_sdk.device.lineage import same_chain
from coterie.client_sdk.device.record import FILE, check_store, opened
from coterie.errors import ConfigurationError, InputError
from coterie.protocol.arrays import FloatArrays
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.device import Task
from coterie.protocol.tensors import decode_tensors
from coterie.protocol.update import of_plan


@dataclass(frozen=True)
class ExportedModel:
    """A model for inference, exported on a device.

    data: the ONNX file.
    experiment: its id.
    round: of the task that worked on the version.
    version: its SHA-256.
    personal: whether client state of this device is part of it.
    """

    data: bytes
    experiment: str
    round: int
    version: str
    personal: bool


def export_model(folder: Path, experiment: str) -> ExportedModel:
    """The model of an experiment as this device evaluates it.

    folder: the device's. A client may work there meanwhile, in another process.
    experiment: its id, or its name: then that of the newest task so named. The version is that of the newest task which
        the device has finished.
    Raises ConfigurationError (``store_unknown``), InputError: ``no_finished_task`` for an experiment that the device
    has finished no task of, ``version_uncached`` when the cache has let go of a file; PlanRefused
    (``plan_stage_absent``) for an external plan.
    """
    check_store(folder)
    try:
        with opened(folder / FILE) as database:
            task, kept = _newest(database, experiment), None
            if task is not None:
                kept = _state_of(database, task)
    except DatabaseError as error:
        raise ConfigurationError(f"{folder / FILE} cannot be read: {error}.") from error
    if task is None:
        raise InputError(
            f"The client of {folder} has finished no task of the experiment {experiment[:64]!r}.",
            hint="`coterie client history` lists what it took part in.",
            code="no_finished_task",
        )
    manifest = Manifest.from_bytes(_read_cached(folder, task.plan.id))
    stage = manifest.stage("infer")
    frozen = None if manifest.frozen is None else decode_tensors(_read_cached(folder, manifest.frozen.sha256))
    state: FloatArrays = {}
    if kept is not None:
        state = of_plan(decode_tensors((folder / "states" / f"{kept}.state").read_bytes()))
    data = inference_file(
        manifest,
        _read_cached(folder, stage.sha256),
        decode_tensors(_read_cached(folder, task.model.sha256)),
        frozen=frozen,
        client_state=state,
    )
    return ExportedModel(data, task.experiment, task.round, task.model.sha256, manifest.personal("predict"))


def _newest(database: Connection, experiment: str) -> Task | None:
    found = database.execute(
        "SELECT message FROM tasks WHERE state IN ('pending', 'reported', 'counted', 'rolled_back')"
        " AND (experiment = ? OR name = ?) ORDER BY rowid DESC LIMIT 1",
        (experiment, experiment),
    )
    with closing(found):
        row = found.fetchone()
    return None if row is None else Task.model_validate_json(row[0])


def _state_of(database: Connection, task: Task) -> str | None:
    """The task whose client state goes with the version: the committed one, if it was made in the same chain."""
    found = database.execute(
        "SELECT tasks.id, message FROM tasks JOIN client_states ON client_states.task = tasks.id"
        " WHERE client_states.experiment = ?",
        (task.experiment,),
    )
    with closing(found):
        row = found.fetchone()
    return None if row is None or not same_chain(task, Task.model_validate_json(row[1])) else str(row[0])


def _read_cached(folder: Path, digest: str) -> bytes:
    path = folder / "cache" / digest
    data = path.read_bytes() if path.is_file() else b""
    if sha256_hex(data) != digest:
        raise InputError(
            f"The file {digest[:12]} of this model is no longer in {folder / 'cache'}.",
            hint="The client fetches it again with its next task of the experiment.",
            code="version_uncached",
        )
    return data
