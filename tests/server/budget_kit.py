"""Experiments with differential privacy, and what a population's budget and ledger say of them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
from server_kit import Device, Operator, once, update

from coterie.privacy.ledger.chain import Entry, Head, check
from coterie.protocol.privacy import UserLevel
from coterie.protocol.tensors import decode_tensors

DELTA = 1e-6


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run an asynchronous test."""
    asyncio.run(work)


def private(noise: float = 2.0, clip: float = 1.0, **changes: Any) -> dict[str, Any]:
    """User-level privacy as a request says it."""
    return UserLevel(clip=clip, delta=DELTA, noise_multiplier=noise, **changes).model_dump(mode="json")


async def submitted(operator: Operator, privacy: dict[str, Any] | None, **changes: Any) -> Any:
    """The answer to an experiment with this privacy. changes: of its round policy; codecs are its own."""
    asked: dict[str, Any] = {"weight_cap": 1, **changes}
    own = {"privacy": privacy, **({"codecs": asked.pop("codecs")} if "codecs" in asked else {})}
    request = await operator.request(**asked)
    body = {**request.model_dump(mode="json"), **own}
    return await operator.call("POST", "/v1/experiments", json=body, headers=once())


async def started(operator: Operator, privacy: dict[str, Any] | None, **changes: Any) -> str:
    """The id of an experiment that is allowed."""
    answer = await submitted(operator, privacy, **changes)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def policy(operator: Operator, **change: Any) -> Any:
    """Change the population's policy."""
    return await operator.ok("PATCH", "/v1/populations/people", json=change)


async def budget(operator: Operator) -> Any:
    """The population's budget."""
    return await operator.ok("GET", "/v1/populations/people/budget")


async def entries(operator: Operator) -> list[Entry]:
    """Its ledger, verified with the coordinator's key."""
    public = (await operator.ok("GET", "/v1/populations/people"))["coordinator_key"]
    page = await operator.ok("GET", "/v1/populations/people/budget/entries")
    found = [Entry.from_json(item) for item in page["items"]]
    verdict = check(found, head=Head(population="people"), public=public)
    assert verdict.broken is None
    return found


async def deliver(devices: list[Device], value: float = 1.0) -> None:
    """One round's updates."""
    for device in devices:
        task = await device.task()
        answer = await device.upload(task, update(task, value, weight=1))
        assert answer.status_code == 200, answer.text


async def weights(operator: Operator, sha256: str) -> Any:
    """A model version as one vector."""
    tensors = decode_tensors((await operator.http.get(f"/v1/blobs/{sha256}")).content)
    return np.concatenate([tensors[name].reshape(-1) for name in ("w", "b")])
