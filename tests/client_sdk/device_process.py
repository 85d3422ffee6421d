"""A device in a process of its own, forked from one that has imported the SDK already: of the second that a device
takes to start nearly all is imports, and tests of lies start hundreds of them.
"""

import asyncio
import json
import multiprocessing
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from coterie.client_sdk.device.agent import Agent
from coterie.client_sdk.device.backoff import Backoff
from coterie.client_sdk.device.faults import VARIABLE
from coterie.client_sdk.device.policy_file import read_policy
from coterie.client_sdk.device.settings import AgentSettings

_ENDS = {"refused", "uploaded", "attempt"}


def start(url: str, token: str, folder: Path, *, wanted: int, fault: str) -> BaseProcess:
    """Start a device on a folder that holds rows.npz and, for a device with a policy, policy.toml; its store comes into
    ``state``, what it tells into ``told``, a line of JSON each. wanted: how many uploads and ends of attempts it sees
    through, unless it refuses a task. fault: where it kills itself.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["coterie.client_sdk.device.agent", "coterie.client_sdk.device.policy_file"])
    process = context.Process(target=_live, args=(url, token, str(folder), wanted, fault), daemon=True)
    process.start()
    return process


def _live(url: str, token: str, folder: str, wanted: int, fault: str) -> None:
    for name in [name for name in os.environ if name.startswith("COTERIE_") and not name.startswith("COTERIE_TESTS_")]:
        del os.environ[name]
    if fault:
        os.environ[VARIABLE] = fault
    sys.stdout = (Path(folder) / "told").open("w", encoding="utf-8", buffering=1)
    asyncio.run(_work(url, token, Path(folder), wanted))


async def _work(url: str, token: str, folder: Path, wanted: int) -> None:
    ends = 0
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(event: Mapping[str, Any]) -> None:
        nonlocal ends
        print(json.dumps(dict(event), default=str), flush=True)
        if event["event"] in _ENDS:
            ends += 1
            if ends >= wanted or event["event"] == "refused":
                loop.call_soon_threadsafe(done.set)

    settings = AgentSettings(
        url=url,
        data=dict(np.load(folder / "rows.npz")),
        folder=folder / "state",
        token=token,
        backoff=Backoff(base_s=0.05, cap_s=0.2),
        on_event=told,
    )
    policy = folder / "policy.toml"
    agent = Agent(replace(settings, policy=read_policy(policy)) if policy.read_text() else settings)
    running = asyncio.ensure_future(agent.run(rounds=1000))
    waiting = asyncio.ensure_future(done.wait())
    await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
    if running.done() and running.exception():
        print(json.dumps({"event": "ended", "message": str(running.exception())}), flush=True)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await agent.close()
