"""Reports of parties over a real coordinator: both match whatever was sent; who lies or withholds is found out; the
report outlives the session.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from server_kit import Opener, Operator
from sessions_kit import Liar, made, parties, transport_of, two

from coterie.client_sdk.party.party import PartyClient
from coterie.client_sdk.party.session import SessionClient
from coterie.errors import CoterieError
from coterie.protocol.disclosures import MESSAGES_STEP, Disclosure
from coterie.protocol.report_audit import ReportAudit, audit_reports
from coterie.protocol.session import fingerprint
from coterie.protocol.session_report import SessionReport
from tests.held_clock import held
from tests.patience import patience

ROLES = ("owner", "feature")
STAGES = ("rows", "sums")
WAIT_S = 20.0


def told(step: str, sender: str, **more: Any) -> Disclosure:
    """What one of the two roles tells the other."""
    other = ROLES[1 - ROLES.index(sender)]
    fields: dict[str, Any] = {"step": step, "sender": sender, "recipient": other, "kind": "sums", **more}
    return Disclosure(**fields)


async def passed(sender: SessionClient, recipient: SessionClient, stage: str, body: bytes, step: str) -> None:
    """A message from one to the other, worked in."""
    await sender.send(stage, recipient.membership.role, body, step=step)
    message = await recipient.receive(stage, sender.membership.role, step=step, patience_s=patience(WAIT_S))
    assert await message.read() == body
    await recipient.acknowledge(stage, sender.membership.role, message.sequence)


def held_together(*reports: SessionReport) -> ReportAudit:
    """The reports, each of whose keys is pinned."""
    return audit_reports(reports, {report.party: fingerprint(report.identity) for report in reports})


async def reports_of(*sessions: SessionClient) -> list[SessionReport]:
    return [await session.report() for session in sessions]


def test_reports_of_random_exchanges_match(coordinator: Opener, tmp_path: Path) -> None:
    """Any number of messages, large and empty, in any stages and steps, in both directions, with parties that are begun
    again; until the last one both reports agree after every exchange.
    """

    async def exchange(operator: Operator, folder: Path, random: Random) -> None:
        async with two(operator, folder) as (_, one, other):
            sent: dict[tuple[str, str, str], int] = {}
            for _ in range(random.randrange(1, 12)):
                pair = [one, other] if random.random() < 0.5 else [other, one]
                stage, step = random.choice(STAGES), random.choice((MESSAGES_STEP, "align 0", "train 1"))
                sender = pair[0].membership.role
                if step != MESSAGES_STEP:
                    kind = random.choice(("sums", "ciphertexts", "memberships"))
                    said = told(step, sender, kind=kind, rows=random.randrange(4), numbers=random.randrange(3))
                    for each in pair:
                        await each.disclose(stage, said)
                body = random.randbytes(random.choice((0, 1, 70_000)))
                await passed(pair[0], pair[1], stage, body, step)
                if random.random() < 0.5:
                    for each in pair:
                        await each.finish(stage, step)
                sent[stage, step, sender] = sent.get((stage, step, sender), 0) + 1
            reports = await reports_of(one, other)
            assert held_together(*reports) == ReportAudit((), ())
            for report in reports:
                counted = {
                    (step.stage, step.step, each.sender): each.messages
                    for step in report.steps
                    for each in step.traffic
                }
                assert counted == sent
            assert reports == await reports_of(one, other)

    async def work() -> None:
        async with coordinator() as operator:
            for seed in range(12):
                await exchange(operator, tmp_path / str(seed), Random(seed))

    asyncio.run(work())


def test_what_nobody_spoke_of_is_opaque_and_what_was_said_is_told_before_it_is(
    coordinator: Opener, tmp_path: Path
) -> None:
    async def work() -> None:
        async with coordinator() as operator, two(operator, tmp_path) as (_, one, other):
            await passed(one, other, "rows", b"x", MESSAGES_STEP)
            await one.disclose("sums", told("align 0", "owner", kind="memberships"))
            await one.disclose("sums", told("align 0", "owner", kind="memberships", rows=5))
            await one.disclose("sums", told("align 0", "owner", kind="memberships", rows=5))
            report = await one.report()
            opaque, align = report.steps[::-1]
            assert (opaque.step, opaque.is_done) == (MESSAGES_STEP, True)
            assert [(each.kind, each.claim) for each in opaque.disclosures] == [("opaque", "none")]
            assert (align.step, align.is_done, align.traffic) == ("align 0", False, ())
            assert [(each.kind, each.rows) for each in align.disclosures] == [("memberships", 5)]
            await one.finish("sums", "align 0")
            assert (await one.report()).steps[0].is_done
            await one.disclose("sums", told("align 0", "owner", kind="labels"))
            assert not (await one.report()).steps[0].is_done
            for wrong in (
                one.disclose("nowhere", told("align 0", "owner")),
                one.disclose("rows", told("align 0", "owner").model_copy(update={"recipient": "auditor"})),
                one.disclose("rows", Disclosure(step="a", sender="feature", recipient="auditor", kind="sums")),
            ):
                with pytest.raises(CoterieError) as refused:
                    await wrong
                assert refused.value.reason in ("stage_unknown", "role_unknown")

    asyncio.run(work())


async def ended_by_operator(operator: Operator, session: str, one: SessionClient) -> str:
    await operator.ok("POST", f"/v1/sessions/{session}/end", json={"detail": "done"})
    return "ended"


async def ended_by_party(operator: Operator, session: str, one: SessionClient) -> str:
    await one.end("done")
    return "owner"


async def expired(operator: Operator, session: str, one: SessionClient) -> str:
    return "expired"


@pytest.mark.parametrize("end", [ended_by_operator, ended_by_party, expired])
def test_a_report_can_be_made_when_the_session_is_over(
    end: Callable[[Operator, str, SessionClient], Awaitable[str]], coordinator: Opener, tmp_path: Path
) -> None:
    async def work() -> None:
        with held() as clock:
            async with coordinator() as operator, parties(operator, tmp_path) as (clinic, registry):
                session = await made(operator, expires_s=600)
                url = str(operator.http.base_url)
                one = await clinic.join(url, session["tokens"]["owner"])
                other = await registry.join(url, session["tokens"]["feature"])
                await passed(one, other, "rows", b"x", MESSAGES_STEP)
                assert [report.state for report in await reports_of(one, other)] == ["open", "open"]
                reason = await end(operator, session["id"], one)
                if end is expired:
                    clock.forward(601)
                reports = [await clinic.report(), await registry.report(session["id"])]
                assert [(report.state, report.reason) for report in reports] == [("ended", reason)] * 2
                assert held_together(*reports) == ReportAudit((), ())
                assert reports[0] == await one.report()
            with sqlite3.connect(tmp_path / "a" / "party.db") as database:
                (private,) = database.execute("SELECT length(private) FROM keys").fetchone()
            assert (private == 0) == (end is ended_by_party)
            with pytest.raises(CoterieError) as unknown:
                PartyClient(tmp_path / "c").store.past_or_present()
            assert unknown.value.reason == "session_unknown"

    asyncio.run(work())


def test_a_report_without_a_coordinator_says_that_it_was_not_asked(coordinator: Opener, tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator() as operator, two(operator, tmp_path) as (_, one, other):
            await passed(one, other, "rows", b"x", MESSAGES_STEP)
            before = await one.report()
        party = PartyClient(tmp_path / "a")
        try:
            after = await party.report()
        finally:
            await party.close()
        assert (before.state, after.state) == ("open", "unknown")
        assert after.lanes == before.lanes and after.steps == before.steps

    asyncio.run(work())


async def withhold(request: httpx.Request, answer: httpx.Response) -> httpx.Response:
    """No message has come, whatever has."""
    return httpx.Response(204) if "/messages/" in request.url.path and request.method == "GET" else answer


def test_a_message_that_the_coordinator_withheld_is_named_when_the_session_is_over(
    coordinator: Opener, tmp_path: Path
) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            liar = Liar(transport_of(operator))
            async with parties(operator, tmp_path, liar=liar) as (clinic, registry):
                session = await made(operator)
                url = str(operator.http.base_url)
                one = await clinic.join(url, session["tokens"]["owner"])
                other = await registry.join(url, session["tokens"]["feature"])
                await passed(one, other, "rows", b"first", MESSAGES_STEP)
                await one.send("rows", "feature", b"kept back")
                liar.lie = withhold
                with pytest.raises(CoterieError) as silent:
                    await other.receive("rows", "owner", patience_s=0.2)
                assert silent.value.reason == "partner_silent"
                found = held_together(*await reports_of(one, other))
                assert found.verdict == "cannot tell" and found.open[0].rule == "messages"
                await operator.ok("POST", f"/v1/sessions/{session['id']}/end", json={})
                found = held_together(*await reports_of(one, other))
                assert found.verdict == "differ"
                (fault,) = found.faults
                assert (fault.stage, fault.sender, fault.recipient, fault.first) == ("rows", "owner", "feature", 1)

    asyncio.run(work())


def test_a_message_that_was_acknowledged_unread_and_one_that_was_read_and_not_acknowledged(
    coordinator: Opener, tmp_path: Path
) -> None:
    """What was seen is in the report, what was not is not."""

    async def work() -> None:
        async with coordinator() as operator, two(operator, tmp_path) as (_, one, other):
            await one.send("rows", "feature", b"never read")
            await one.send("rows", "feature", b"read")
            await other.receive("rows", "owner", patience_s=patience(WAIT_S))
            await other.acknowledge("rows", "owner", 0)
            message = await other.receive("rows", "owner", patience_s=patience(WAIT_S))
            (lane,) = (await other.report()).lanes
            assert (lane.messages, lane.unopened) == (1, 1)
            assert await message.read() == b"read"
            (lane,) = (await other.report()).lanes
            assert (lane.messages, lane.unopened) == (2, 1)
            found = held_together(*await reports_of(one, other))
            assert [fault.first for fault in found.faults if fault.rule == "messages"] == [0]
            assert "never opened" in found.faults[0].text

    asyncio.run(work())


def test_a_party_that_reports_other_messages_than_it_sent_is_found_out(coordinator: Opener, tmp_path: Path) -> None:
    """It signs what it likes; its partner's record says what came."""

    async def work() -> None:
        async with coordinator() as operator, two(operator, tmp_path) as (_, one, other):
            for body in (b"first", b"second", b"third"):
                await passed(one, other, "rows", body, MESSAGES_STEP)
            with one._store._database.transaction() as database:  # pyright: ignore[reportPrivateUsage]
                database.execute("UPDATE outbox SET sealed = ? WHERE sequence = 1", ("ab" * 32,))
            found = held_together(*await reports_of(one, other))
            assert found.verdict == "differ"
            assert [(fault.rule, fault.first, fault.last) for fault in found.faults] == [("messages", 1, 1)]

    asyncio.run(work())


def test_a_folder_of_an_earlier_version_reports_what_it_knows(coordinator: Opener, tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator() as operator, two(operator, tmp_path) as (_, one, other):
            await passed(one, other, "rows", b"long ago", MESSAGES_STEP)
        with sqlite3.connect(tmp_path / "b" / "party.db") as database:
            for table in ("opened", "steps", "disclosures"):
                database.execute(f"DROP TABLE {table}")
            database.execute("ALTER TABLE memberships DROP COLUMN ended")
            database.execute("ALTER TABLE outbox DROP COLUMN step")
        party = PartyClient(tmp_path / "b")
        try:
            (lane,) = (await party.report()).lanes
        finally:
            await party.close()
        assert (lane.messages, lane.unopened, lane.size) == (1, 1, 0)

    asyncio.run(work())
