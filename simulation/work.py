"""What a device does for one task, without the network: train or evaluate, and encode what leaves.

Every engine ends here, in whatever thread, process or machine.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.evaluate import evaluation_sections
from coterie.aggregation.plan.bundle import Plan
from coterie.client_sdk.device.trainers.base import LocalResult, LocalTask, Rows, Tensors, Trainer, TrainOptions
from coterie.errors import CoterieError
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.codecs.table import choose
from coterie.protocol.update import Encoded, encode_update, of_plan

PLAIN = "float32"


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What the clients of one round are given, apart from the weights.

    base: the digest of the version; seed: of the experiment; threads: of one client's training.
    """

    experiment: str
    round: int
    base: str
    hyper: Mapping[str, float]
    seed: int
    weight_cap: int
    threads: int = 1

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; ``Assignment(**fields)`` reads them back."""
        return {**asdict(self), "hyper": dict(self.hyper)}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a client sends back, and the state that stays pending with it.

    sections: the vectors, for a codec that changes no value; update: else the update's bytes, as on the wire. size: the
    bytes that cross the wire in either case. loss: the mean while training, where it was measured.
    """

    number: int
    task: str
    weight: int
    steps: int
    size: int
    loss: float | None = None
    sections: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]], repr=False)
    update: bytes | None = field(default=None, repr=False)
    state: Tensors = field(default_factory=dict[str, NDArray[np.float32]], repr=False)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A client's evaluation: the bytes of its update, which holds sums over its held-out rows."""

    number: int
    update: bytes


class Workplace:
    """A plan and a trainer, at which clients work one after another or several at once."""

    def __init__(self, plan: Plan, frozen: Tensors, trainer: Trainer) -> None:
        self.plan = plan
        self.frozen = frozen
        self.trainer = trainer
        self._codec = choose(plan.manifest.codecs)
        self._sizes: dict[tuple[object, ...], int] = {}

    def train(self, number: int, rows: Rows, state: Tensors, weights: Tensors, assignment: Assignment) -> Trained:
        """A client's update. Errors name the client."""
        try:
            result = self.trainer.train(
                self.plan,
                weights,
                self.frozen,
                local_task(assignment, "train", number),
                rows,
                of_plan(state),
                TrainOptions(threads=assignment.threads),
            )
        except CoterieError as error:
            _name(error, number, assignment)
            raise
        return self.sent(number, result, state, assignment)

    def sent(self, number: int, result: LocalResult, state: Tensors, assignment: Assignment) -> Trained:
        """A finished training as it leaves the client. Errors name the client."""
        told = Trained(
            number=number,
            task=task_id(assignment.round, number),
            weight=result.weight,
            steps=result.steps,
            size=0,
            loss=result.metrics(self.plan).means().get("loss"),
            sections=result.sections,
            state=result.client_state,
        )
        if self._codec == PLAIN:
            return replace(told, size=self._plain_size(told, assignment))
        try:
            update, codec_state = self._encode(told, state, assignment)
        except CoterieError as error:
            _name(error, number, assignment)
            raise
        kept = {**result.client_state, **codec_state}
        return replace(told, size=len(update), sections={}, update=update, state=kept)

    def evaluate(self, number: int, rows: Rows, weights: Tensors, assignment: Assignment) -> Measured:
        """What a client says of its held-out rows."""
        manifest = self.plan.manifest
        sums = self.trainer.evaluate(
            self.plan,
            weights,
            self.frozen,
            local_task(assignment, "evaluate", number),
            rows,
            TrainOptions(threads=assignment.threads),
        )
        update, _ = encode_update(
            task=task_id(assignment.round, number),
            plan=self.plan.id,
            base=assignment.base,
            weight=min(int(sums.examples), assignment.weight_cap),
            steps=0,
            specs=manifest.sections_for("evaluate"),
            sections=evaluation_sections(manifest, sums),
        )
        return Measured(number=number, update=update)

    def _encode(self, told: Trained, state: Tensors, assignment: Assignment) -> Encoded:
        specs = self.plan.manifest.sections
        return encode_update(
            task=told.task,
            plan=self.plan.id,
            base=assignment.base,
            weight=told.weight,
            steps=told.steps,
            specs=specs,
            sections=told.sections,
            codecs={spec.name: self._codec for spec in specs if not spec.is_extra},
            state=state,
            round=assignment.round,
        )

    def _plain_size(self, told: Trained, assignment: Assignment) -> int:
        """The length of the update file, which depends on nothing but the dtypes and the digits in its header."""
        dtypes = tuple(vector.dtype.str for vector in told.sections.values())
        key = (dtypes, len(str(told.weight)), len(str(told.steps)))
        if key not in self._sizes:
            # Of zeros: whether the values can be used is for the collector to say, of this update as of any other.
            zeros = {name: np.zeros_like(vector) for name, vector in told.sections.items()}
            self._sizes[key] = len(self._encode(replace(told, sections=zeros), {}, assignment).data)
        return self._sizes[key]


def _name(error: CoterieError, number: int, assignment: Assignment) -> None:
    error.add_note(f"Raised by virtual client {number} in round {assignment.round}.")


def local_task(assignment: Assignment, kind: Literal["train", "evaluate"], number: int) -> LocalTask:
    """What a trainer is told; its seed depends on the experiment's, the round and the client alone."""
    text = f"{assignment.seed}/{kind}/{assignment.round}/{number}"
    return LocalTask(
        experiment=assignment.experiment,
        round=assignment.round,
        seed=int(sha256_hex(text.encode())[:16], 16) >> 11,
        hyper=assignment.hyper,
        weight_cap=assignment.weight_cap,
    )


def task_id(round: int, number: int) -> str:
    """An id of the form of a real one, which sorts by client."""
    return f"task_{round:016x}{number:016x}"
