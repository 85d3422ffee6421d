"""Virtual clients: what a device does for one task, without the network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.evaluate import evaluation_sections
from coterie.aggregation.plan.bundle import Plan
from coterie.client_sdk.device.data import DataSource, load_data
from coterie.client_sdk.device.holdout import split
from coterie.client_sdk.device.trainers.base import LocalTask, Tensors, Trainer, TrainOptions
from coterie.errors import CoterieError, ExperimentError
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.codecs.table import choose
from coterie.protocol.schema import DataSchema
from coterie.protocol.update import Update, encode_update, of_plan, read_update

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class VirtualClient:
    """A client: its rows to train on, its held-out rows, and its committed client state."""

    number: int
    rows: Arrays
    held_out: Arrays
    state: Tensors = field(default_factory=dict[str, NDArray[np.float32]])

    @property
    def can_evaluate(self) -> bool:
        """Whether it holds out any row."""
        return len(next(iter(self.held_out.values()))) > 0

    def with_state(self, state: Tensors) -> "VirtualClient":
        """The client after a round counted its update."""
        return replace(self, state=dict(state)) if state else self


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What the clients of one round are given. base: the digest of the weights; seed: of the experiment."""

    experiment: str
    round: int
    base: str
    weights: Tensors
    frozen: Tensors
    hyper: Mapping[str, float]
    seed: int
    weight_cap: int
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a client sends back, and the state that stays pending with it. path: the update file; size: its bytes."""

    path: Path
    size: int
    state: Tensors


def make_clients(schema: DataSchema, clients: Sequence[DataSource], holdout: float) -> list[VirtualClient]:
    """Clients with their rows checked and split as a device does.

    Raises DataError naming the client, ExperimentError for none.
    """
    if not clients:
        raise ExperimentError("A simulation needs at least one client.", code="no_clients")
    checked = (_rows(source, schema, number) for number, source in enumerate(clients))
    return [VirtualClient(number, *split(arrays, holdout)) for number, arrays in enumerate(checked)]


def _rows(source: DataSource, schema: DataSchema, number: int) -> Arrays:
    """Arrays, whose errors name the client; anything else as a device reads it, whose errors name the file."""
    if isinstance(source, Mapping):
        return schema.check(cast(Arrays, source), f"client {number}")
    return load_data(source, schema)


def train(client: VirtualClient, plan: Plan, trainer: Trainer, assignment: Assignment, folder: Path) -> Answer:
    """Train and write the update file into ``folder``, encoded as a device encodes it."""
    manifest = plan.manifest
    options = TrainOptions(threads=assignment.threads)
    try:
        result = trainer.train(
            plan,
            assignment.weights,
            assignment.frozen,
            _local(client, assignment, "train"),
            client.rows,
            of_plan(client.state),
            options,
        )
    except CoterieError as error:
        error.add_note(f"Raised by virtual client {client.number} in round {assignment.round}.")
        raise
    task = _task(client, assignment)
    update, codec_state = encode_update(
        task=task,
        plan=plan.id,
        base=assignment.base,
        weight=result.weight,
        steps=result.steps,
        specs=manifest.sections,
        sections=result.sections,
        codecs={spec.name: choose(manifest.codecs) for spec in manifest.sections if not spec.is_extra},
        state=client.state,
    )
    path = folder / f"{task}.update"
    path.write_bytes(update)
    return Answer(path=path, size=len(update), state={**result.client_state, **codec_state})


def evaluate(client: VirtualClient, plan: Plan, trainer: Trainer, assignment: Assignment) -> tuple[Update, int]:
    """What the client reports of its held-out rows, in an update file like a device's, and that file's bytes."""
    manifest = plan.manifest
    options = TrainOptions(threads=assignment.threads)
    sums = trainer.evaluate(
        plan,
        assignment.weights,
        assignment.frozen,
        _local(client, assignment, "evaluate"),
        client.held_out,
        options,
    )
    specs = manifest.sections_for("evaluate")
    update, _ = encode_update(
        task=_task(client, assignment),
        plan=plan.id,
        base=assignment.base,
        weight=min(int(sums.examples), assignment.weight_cap),
        steps=0,
        specs=specs,
        sections=evaluation_sections(manifest, sums),
    )
    return read_update(update, specs), len(update)


def _local(client: VirtualClient, assignment: Assignment, kind: Literal["train", "evaluate"]) -> LocalTask:
    text = f"{assignment.seed}/{kind}/{assignment.round}/{client.number}"
    return LocalTask(
        experiment=assignment.experiment,
        round=assignment.round,
        seed=int(sha256_hex(text.encode())[:16], 16) >> 11,
        hyper=assignment.hyper,
        weight_cap=assignment.weight_cap,
    )


def _task(client: VirtualClient, assignment: Assignment) -> str:
    """An id of the form of a real one, which sorts by client."""
    return f"task_{assignment.round:016x}{client.number:016x}"
