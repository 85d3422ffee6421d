"""A device in a process of its own, for tests that kill it: works until so many of its updates are settled, ever."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np

from coterie.client_sdk.device.agent import Agent
from coterie.client_sdk.device.backoff import Backoff
from coterie.client_sdk.device.settings import AgentSettings
from coterie.protocol.conversion import to_json


async def main(url: str, token: str, folder: str, rows: str, wanted: int) -> None:
    settings = AgentSettings(
        url=url,
        data=dict(np.load(rows)),
        folder=Path(folder),
        token=token,
        backoff=Backoff(base_s=0.05, cap_s=0.2),
        piece=300,
    )
    agent = Agent(settings)
    settled = sum(entry.state in ("counted", "rolled_back") for entry in agent.store.history())
    await agent.run(rounds=wanted - settled)
    experiments = {entry.experiment for entry in agent.store.history()}
    states = {name: float(agent.store.client_state(name)["counted"][0]) for name in experiments}
    history = [to_json(entry) for entry in agent.store.history()]
    print(json.dumps({"history": history, "states": states}))
    await agent.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])))
