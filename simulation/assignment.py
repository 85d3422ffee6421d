"""What the clients of a round are given, and the task of one of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coterie.client_sdk.device.trainers.base import LocalTask
from coterie.protocol.canonical import sha256_hex


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What the clients of one round are given, apart from the weights.

    base: the digest of the version.
    seed: of the experiment.
    threads: of one client's training.
    secure: the terms of the attempt as JSON text, where clients are only ever seen in a sum; None where updates come in
        the open.
    local: the noise that each client adds by itself, as JSON text.
    promised: whether what comes of the round is differentially private, so that a client tells nothing but what noise
        will hide.
    """

    experiment: str
    round: int
    base: str
    hyper: Mapping[str, float]
    seed: int
    weight_cap: int
    threads: int = 1
    secure: str | None = None
    local: str | None = None
    promised: bool = False


def local_task(assignment: Assignment, kind: Literal["train", "evaluate"], number: int) -> LocalTask:
    """What a trainer is told; its seed depends on the experiment's, the round and the client alone."""
    text = f"{assignment.seed}/{kind}/{assignment.round}/{number}"
    return LocalTask(
        experiment=assignment.experiment,
        round=assignment.round,
        seed=int(sha256_hex(text.encode())[:16], 16) >> 11,
        hyper=assignment.hyper,
        weight_cap=assignment.weight_cap,
        client=str(number),
    )


def task_id(round: int, number: int) -> str:
    """An id of the form of a real one, which sorts by client."""
    return f"task_{round:016x}{number:016x}"
