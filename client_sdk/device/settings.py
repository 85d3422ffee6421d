"""Where a device works and how, and what it has done."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.client_sdk.device.backoff import Backoff
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.trainers.base import Trainer
from coterie.client_sdk.device.upload import PIECE
from coterie.client_sdk.lean_httpx import httpx
from coterie.client_sdk.rows.loading import DataSource
from coterie.protocol.endorsements import Endorsement

DeviceListener = Callable[[Mapping[str, Any]], None]


@dataclass(kw_only=True)
class RunSummary:
    """What an agent did, in all of its runs.

    trained, evaluated: updates acknowledged.
    counted, rolled_back: training updates settled.
    failed: tasks given up.
    """

    trained: int = 0
    evaluated: int = 0
    counted: int = 0
    rolled_back: int = 0
    failed: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """Where an agent works and how.

    url: of the coordinator.
    folder: of its store.
    token: for enrolment.
    name: for people.
    ca: PEM of the coordinator's authority.
    endorsement: of the device's key; kept in the folder from then on.
    trainer: None for the plan trainer. transport, sleep, rng: the seams for tests.
    """

    url: str
    data: DataSource
    folder: Path
    token: str | None = None
    name: str | None = None
    trainer: Trainer | None = None
    policy: DevicePolicy = field(default_factory=DevicePolicy)
    backoff: Backoff = field(default_factory=Backoff)
    ca: str | Path | None = None
    endorsement: Endorsement | None = None
    on_event: DeviceListener = lambda event: None
    transport: httpx.AsyncBaseTransport | None = None
    rng: random.Random = field(default_factory=random.SystemRandom)
    piece: int = PIECE
