"""kill -9 at every point of a session: every message that was accepted comes once, in its order, and what is
acknowledged never comes again.

The points are not sampled: every row of `SESSION_POINTS` is struck. A real coordinator process serves over a socket,
two parties work with it, SIGKILL strikes, and another process takes over the folder.
"""

import asyncio
import signal
import sqlite3
from pathlib import Path

import pytest
from kill_kit import supervised, until_all_have_struck
from server_kit import Operator, once

from coterie.client_sdk.party.party import PartyClient
from coterie.client_sdk.party.pins import trust_first_use
from coterie.client_sdk.party.session import SessionClient
from coterie.errors import Unreachable
from coterie.server.faults import SESSION_POINTS
from coterie.server.sessions.sending import INLINE
from tests.patience import patience

# In the order of the story: the session is made, a party joins and offers a key, a key is acknowledged, a large message
# comes in, the session ends. Each process counts anew.
ORDER = ("session", "party", "posted", "acknowledged", "reserved", "posted_blob", "posted", "session")
CHAINS = {
    side: tuple(f"{point}.{side}_{'sync' if point.endswith('blob') else 'commit'}:1" for point in ORDER)
    for side in ("before", "after")
}
JOINT = {"name": "joint", "roles": [{"name": "owner", "party": "Clinic"}, {"name": "feature", "party": "Registry"}]}
LARGE = bytes(range(256)) * (3 * INLINE // 256)


def test_every_point_of_a_session_is_struck() -> None:
    assert {strike.split(":")[0] for chain in CHAINS.values() for strike in chain} == set(SESSION_POINTS)


@pytest.mark.parametrize("side", CHAINS)
def test_a_session_goes_on_after_a_kill(side: str, tmp_path: Path) -> None:
    asyncio.run(assert_everything_comes_once(CHAINS[side], tmp_path))


async def assert_everything_comes_once(strikes: tuple[str, ...], folder: Path) -> None:
    """Two parties, a small and a large message in each direction."""
    async with supervised(folder, *strikes) as (supervisor, operator):
        made = await operator.ok("POST", "/v1/sessions", json=JOINT, headers=once())
        parties = [PartyClient(folder / name, judge=trust_first_use) for name in ("a", "b")]
        try:
            owner, feature = [
                await joined(party, supervisor.url, made["tokens"][role])
                for party, role in zip(parties, ("owner", "feature"), strict=True)
            ]
            for sender, recipient in ((owner, feature), (feature, owner)):
                to, of = recipient.membership.role, sender.membership.role
                for body in (b"small", LARGE, b"last"):
                    await sender.send("messages", to, body)
                for number, body in enumerate((b"small", LARGE, b"last")):
                    message = await recipient.receive("messages", of, patience_s=60)
                    assert (message.sequence, await message.read()) == (number, body)
                    await recipient.acknowledge("messages", of, number)
            await assert_nothing_waits(operator, made["id"])
            assert (await owner.end("done")).state == "ended"
        finally:
            for party in parties:
                await party.close()
        await until_all_have_struck(supervisor)
        view = await operator.ok("GET", f"/v1/sessions/{made['id']}")
        assert (view["state"], view["reason"], view["detail"]) == ("ended", "owner", "done")
        assert [party["role"] for party in view["parties"] if party["joined_at"]] == ["owner", "feature"]
    assert supervisor.statuses == [*([-signal.SIGKILL] * len(strikes)), 0]
    with sqlite3.connect(folder / "state" / "coterie.db") as rows:
        assert rows.execute("SELECT count(*) FROM sessions").fetchone() == (1,)
        assert rows.execute("SELECT count(*) FROM mailbox").fetchone() == (0,)
        happened = [kind for (kind,) in rows.execute("SELECT type FROM events WHERE type LIKE 'session.%' ORDER BY id")]
        assert happened == ["session.created", "session.joined", "session.joined", "session.ended"]
    rows.close()


async def joined(party: PartyClient, url: str, token: str) -> SessionClient:
    """A party in its role, whose user tries again while the coordinator is away."""
    async with asyncio.timeout(patience(60)):
        while True:
            try:
                return await party.join(url, token)
            except Unreachable:
                await asyncio.sleep(0.05)


async def assert_nothing_waits(operator: Operator, session: str) -> None:
    """All messages were acknowledged."""
    view = await operator.ok("GET", f"/v1/sessions/{session}")
    assert (view["messages"], [party["held_bytes"] for party in view["parties"]]) == (0, [0, 0])
