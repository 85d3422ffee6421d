"""Two parties in processes of their own, forked from one that has paid for the imports. Each is killed at one point
after the other, and started again on its folder.

Run with the coordinator's URL, a folder, and for each party its token and the points, divided by commas. Prints one
JSON object: how the processes of each party ended, and what it received. The last process of each leaves its report
in its folder, `REPORT`.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from coterie.client_sdk.party.faults import VARIABLE
from coterie.client_sdk.party.party import PartyClient
from coterie.client_sdk.party.pins import trust_first_use
from coterie.client_sdk.party.session import SessionClient
from coterie.errors import ConfigurationError, Unreachable
from coterie.protocol.canonical import sha256_hex
from tests.patience import patience

PATIENCE_S = 150.0
REPORT = "party.report"
SIZES = (0, 5, 100_000, 5_000_000, 65_536, 1)
"""Messages in a row, in one part and in several, and in as many chunks."""
OF_RECEIVING = ("opening", "opened", "worked_in", "acknowledged")
"""The points that a party reaches by what it receives."""


def body(sender: str, number: int) -> bytes:
    """What a party sends."""
    pattern = f"{sender} {number} ".encode()
    return (pattern * (SIZES[number] // len(pattern) + 1))[: SIZES[number]]


async def joined(party: PartyClient, url: str, token: str) -> SessionClient:
    """The session, joined now or in an earlier life."""
    while True:
        try:
            return party.session()
        except ConfigurationError:
            pass
        try:
            return await party.join(url, token)
        except Unreachable:
            await asyncio.sleep(0.1)


async def work(url: str, token: str, folder: Path, point: str | None) -> None:
    """Send everything and receive everything, as far as earlier lives have not.

    point: where this life ends. One that ends before a message is sent receives none, however long sending takes: what
    it received could not end a later life.
    """
    party = PartyClient(folder, judge=trust_first_use)
    session = await joined(party, url, token)
    (partner,) = session.partners
    kept = folder / "received"
    kept.mkdir(exist_ok=True)

    async def send() -> None:
        for number in range(len(SIZES)):
            await session.send("messages", partner.name, body(session.membership.role, number), sequence=number)

    async def receive() -> None:
        while len([*kept.glob("*.whole")]) < len(SIZES) or party.store.next_incoming(
            session.membership.session, "messages", partner.name
        ) < len(SIZES):
            message = await session.receive("messages", partner.name)
            part = kept / f"{message.sequence}.part"
            part.write_bytes(await message.read())
            part.replace(kept / f"{message.sequence}.whole")
            await session.acknowledge("messages", partner.name, message.sequence)

    # No party outlives a test that has given up.
    async with asyncio.timeout(patience(PATIENCE_S)):
        if point is None or point in OF_RECEIVING:
            await asyncio.gather(send(), receive())
        else:
            await send()
            await receive()
        while (await session.status()).messages:  # an answer to an acknowledgement may have been lost
            await asyncio.sleep(0.05)
    (folder / REPORT).write_bytes((await session.report()).to_bytes())
    await party.close()


def fork(url: str, token: str, folder: Path, point: str | None) -> int:
    """A life of a party."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if point is not None:
                os.environ[VARIABLE] = f"{point}:1"
            asyncio.run(work(url, token, folder, point))
            code = 0
        finally:
            os._exit(code)
    return child


def main(url: str, folder: str, orders: list[str]) -> None:
    """Both parties, from their first life to their last."""
    tokens, lives = orders[::2], [points.split(",") if points else [] for points in orders[1::2]]
    folders = [Path(folder) / f"party-{number}" for number in range(len(tokens))]
    ended: list[list[int]] = [[] for _ in tokens]

    def start(number: int) -> int:
        done = len(ended[number])
        point = lives[number][done] if done < len(lives[number]) else None
        return fork(url, tokens[number], folders[number], point)

    running = {start(number): number for number in range(len(tokens))}
    while running:
        pid, status = os.wait()
        number = running.pop(pid)
        ended[number].append(os.waitstatus_to_exitcode(status))
        if ended[number][-1] != 0 and len(ended[number]) <= len(lives[number]):
            running[start(number)] = number
    received = [
        {path.stem: sha256_hex(path.read_bytes()) for path in sorted((each / "received").glob("*.whole"))}
        for each in folders
    ]
    print(json.dumps({"codes": ended, "received": received}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
