"""The demo's clients: ten processes that pay for the imports once.

Run as `python -m coterie.cli.demo_clients` with orders on standard input: this process imports the client SDK while the
coordinator is still starting, and forks one process for each client when their order (one JSON line) arrives. Every
client then is an ordinary device over HTTP with a store of its own. All of them end when standard input closes, which
it does however the parent process ends.
"""

import gc
import json
import os
import signal
import sys
import threading
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.client_sdk.device.device import Device

GRACE_S = 3.0
# What a client imports sooner or later; here it is imported once, while the coordinator starts.
LOADED_ONCE = (
    "coterie.client_sdk.device.device",
    "coterie.client_sdk.device.trainers.plan",
    "anyio._backends._asyncio",
    "anyio.streams.tls",
    "httpcore",
    "numpy.random",
    "onnxruntime",
)


@dataclass(frozen=True)
class Order:
    """What the clients are told: where to enrol, with which token, and one folder each with rows.npz in it."""

    url: str
    token: str
    folders: tuple[str, ...]


def main() -> None:
    """Wait for the order, fork the clients, and end them when standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in LOADED_ONCE:
        import_module(module)
    from coterie.protocol.conversion import from_text

    gc.freeze()
    line = sys.stdin.readline()
    if not line:
        return
    order = from_text(Order, line)
    alive, held = os.pipe()
    children: list[int] = []
    for folder in order.folders:
        child = os.fork()
        if child == 0:
            os.close(held)
            _be_a_client(order, Path(folder), alive)
        children.append(child)
    os.close(alive)
    while os.read(0, 4096):
        pass
    os.close(held)
    for child in children:
        os.waitpid(child, 0)


def _be_a_client(order: Order, folder: Path, alive: int) -> None:
    """Run one client until the experiment has finished or the forking process is gone; never returns."""
    from coterie.client_sdk.device.backoff import Backoff
    from coterie.client_sdk.device.device import Device

    code = 1
    try:
        with (folder / "client.log").open("w", encoding="utf-8", buffering=1) as log:
            device = Device(
                order.url,
                data=folder / "rows.npz",
                folder=folder / "store",
                token=order.token,
                backoff=Backoff(base_s=0.1, cap_s=1.0),
                on_event=lambda event: print(json.dumps(dict(event), default=str), file=log),
            )
            threading.Thread(target=_leave_when_alone, args=(device, alive), daemon=True).start()
            try:
                device.run()
                code = 0
            except Exception as error:
                print(json.dumps({"event": "failed", "type": type(error).__name__, "message": str(error)}), file=log)
    finally:
        os._exit(code)


def _leave_when_alone(device: "Device", alive: int) -> None:
    while os.read(alive, 1):
        pass
    device.stop()
    threading.Event().wait(GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
