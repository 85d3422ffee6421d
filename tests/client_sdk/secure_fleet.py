"""Many devices in processes of their own, forked from one that has paid for the imports; each is killed once, where it
is told to be, and then started again on its folder.

Run with the coordinator's URL, a token, and ``folder=point`` for every device. Prints one JSON object: how the first
and the second process of each device ended, and what the device remembers.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from sdk_kit import rows

from coterie.client_sdk.device.agent import Agent
from coterie.client_sdk.device.backoff import Backoff
from coterie.client_sdk.device.faults import VARIABLE
from coterie.client_sdk.device.settings import AgentSettings
from coterie.client_sdk.device.store import DeviceStore
from coterie.protocol.conversion import to_json
from tests.patience import patience

PATIENCE_S = 150.0


async def work(url: str, token: str, folder: Path, seed: int) -> None:
    settings = AgentSettings(
        url=url,
        data=rows(40, seed),
        folder=folder,
        token=token,
        backoff=Backoff(base_s=0.05, cap_s=0.5),
        piece=300,
    )
    agent = Agent(settings)
    settled = sum(entry.state in ("counted", "rolled_back") for entry in agent.store.history())
    # No device outlives a test that has given up.
    async with asyncio.timeout(patience(PATIENCE_S)):
        await agent.run(rounds=1 - settled)
    await agent.close()


def fork(url: str, token: str, folder: Path, seed: int, point: str | None) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if point is not None:
                os.environ[VARIABLE] = f"{point}:1"
            asyncio.run(work(url, token, folder, seed))
            code = 0
        finally:
            os._exit(code)
    return child


def main(url: str, token: str, orders: list[str]) -> None:
    wanted = [(Path(folder), point) for folder, _, point in (order.partition("=") for order in orders)]
    running = {fork(url, token, folder, seed, point): seed for seed, (folder, point) in enumerate(wanted)}
    ended: dict[int, list[int]] = {seed: [] for seed in range(len(wanted))}
    while running:
        child, status = os.wait()
        seed = running.pop(child)
        ended[seed].append(os.waitstatus_to_exitcode(status))
        if len(ended[seed]) == 1:
            running[fork(url, token, wanted[seed][0], seed, None)] = seed
    result: dict[str, object] = {}
    for seed, (folder, point) in enumerate(wanted):
        store = DeviceStore(folder)
        result[point] = {"codes": ended[seed], "history": [to_json(entry) for entry in store.history()]}
        store.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
