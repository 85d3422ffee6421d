"""A party's side of a session: keys with each partner, messages sent and received in order, on from where they were.

`SessionClient` is asynchronous; `coterie.client_sdk.party.party.Session` is the same for synchronous code.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from coterie.client_sdk.device.backoff import Backoff
from coterie.client_sdk.device.signed import SignedLink
from coterie.client_sdk.http import Link, parsed
from coterie.client_sdk.party.mail import Arrived, Mail
from coterie.client_sdk.party.pins import Judge, refuse
from coterie.client_sdk.party.record import PassedMessage
from coterie.client_sdk.party.reporting import make_report
from coterie.client_sdk.party.sealing import Body, digest_of_body, seal
from coterie.client_sdk.party.store import Outgoing, PairKeys, PartyMembership, PartyStore
from coterie.errors import Conflict, InputError, RemoteError
from coterie.privacy.secagg.keys import KeyPair
from coterie.privacy.session import stream
from coterie.privacy.session.agreement import offer, pair_key, read_offer
from coterie.protocol.canonical import canonical_json, sha256_hex
from coterie.protocol.disclosures import MESSAGES_STEP, Disclosure
from coterie.protocol.session import KEYS_STAGE, MessageHeader, PartyRole, SendReceipt, SessionView, fingerprint
from coterie.protocol.session_report import SessionReport
from coterie.protocol.wire import read_message

Listener: TypeAlias = Callable[[dict[str, Any]], None]
BACKOFF: Final = Backoff(base_s=0.2, cap_s=10.0)
READ_LIMIT: Final = 64 << 20


def _ignore(event: dict[str, Any]) -> None:
    """The listener of those who want none."""


@dataclass(frozen=True)
class Incoming:
    """A message that has come.

    size: its sealed bytes. `chunks` may be read once; only when they have ended has the message come whole. It stays in
        the mailbox until it is acknowledged.
    """

    stage: str
    sender: str
    sequence: int
    size: int
    chunks: AsyncIterator[bytes]

    async def read(self, limit: int = READ_LIMIT) -> bytes:
        """All of it. Raises InputError ``message_too_large`` for more than ``limit`` bytes."""
        held = bytearray()
        async for chunk in self.chunks:
            held += chunk
            if len(held) > limit:
                raise InputError(
                    f"Message {self.sequence} from {self.sender} exceeds {limit} bytes.",
                    hint="Read it chunk by chunk, or allow more.",
                    code="message_too_large",
                )
        return bytes(held)


class SessionClient:
    """One session of one party. Made by `PartyClient`.

    judge: says which strangers to pin.
    on_event: gets a JSON-able mapping with the key ``event`` for a partner's key (``partner``), while a partner's key
        has not come (``waiting``), and while the coordinator is away or the mailbox full (``paused``).
    """

    def __init__(
        self,
        link: Link,
        store: PartyStore,
        membership: PartyMembership,
        *,
        nonce: str | None = None,
        judge: Judge = refuse,
        backoff: Backoff = BACKOFF,
        on_event: Listener = _ignore,
    ) -> None:
        self.membership = membership
        self._link, self._store, self._judge, self._on_event = link, store, judge, on_event
        self._nonce, self._backoff = nonce, backoff
        self._lanes: dict[str, Mail] = {}
        self._pairs: dict[str, bytes] = {}
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def partners(self) -> tuple[PartyRole, ...]:
        """The other roles."""
        return tuple(role for role in self.membership.terms.roles if role.name != self.membership.role)

    def folder_of_alignment(self, stage: str) -> Path:
        """Where the alignment in a stage keeps its secrets and its result: in the party's own folder."""
        return self._store.folder_of_alignments(self.membership.session) / stage

    def folder_of_job(self) -> Path:
        """Where the session's job keeps what it has: in the party's own folder. It stays when the session is over."""
        return self._store.folder_of_job(self.membership.session)

    async def offer_keys(self) -> None:
        """Offer a fresh key to each partner, so that it can send whether or not this party is there. Idempotent."""
        for role in self.partners:
            await self._offer_keys(role.name)

    async def send(
        self,
        stage: str,
        role: str,
        body: Body,
        *,
        sequence: int | None = None,
        step: str = MESSAGES_STEP,
        patience_s: float | None = None,
    ) -> SendReceipt:
        """Send a message to a role: sealed, kept durably here, then accepted durably by the coordinator.

        body: bytes, a file's path, or an iterator of bytes.
        sequence: the sender's own count of this stage's messages, from 0; given, a message that was sent or begun
            before is not sent twice.
        step: to which the message belongs in reports, see `disclose`.
        patience_s: how long to wait for a partner that has not joined yet, for one that does not empty its mailbox, and
            for a coordinator that is away; each for as long as it takes when not given.
        Raises Conflict (``message_differs``, ``message_order``), InputError (``role_unknown``, ``stage_unknown``),
        TooLarge (``message_too_large``), Forbidden (``partner_changed``, ``partner_unknown``), RemoteError
        (``partner_silent``, ``mailbox_full``), Unreachable.
        """
        self._check(stage, role)
        session = self.membership.session
        async with self._turns[f"to/{stage}/{role}"]:
            wanted = self._store.next_outgoing(session, stage, role)
            number = wanted if sequence is None else sequence
            before = self._store.outgoing(session, stage, role, number)
            if before is not None:
                if before.plain != await digest_of_body(body):
                    raise Conflict(
                        f"Message {number} to {role} in stage {stage} was sent with another body.",
                        hint="Give every message a number of its own.",
                        code="message_differs",
                    )
                return await self._deliver(before, patience_s)
            if number != wanted:
                raise Conflict(
                    f"Message {number} to {role} in stage {stage} leaves a gap: the next is {wanted}.",
                    hint="Count the messages of each stage and role from 0.",
                    code="message_order",
                    expected=wanted,
                )
            for unsent in self.unsent(stage, role):
                await self._deliver(unsent, patience_s)
            pair = await self._pair(role, patience_s)
            header = self._header(stage, self.membership.role, role, number)
            message = await seal(self._store, pair, header, body, step, self.membership.terms.message_limit)
            return await self._deliver(message, patience_s)

    def unsent(self, stage: str, role: str) -> list[Outgoing]:
        """Messages that were sealed and not accepted yet."""
        mine = self._store.unsent(self.membership.session)
        return [each for each in mine if (each.stage, each.recipient) == (stage, role)]

    async def resume(self, *, patience_s: float | None = None) -> int:
        """Send what an earlier process has sealed and not sent. Returns how many messages there were.

        patience_s: as of `send`.
        """
        count = 0
        for message in self._store.unsent(self.membership.session):
            async with self._turns[f"to/{message.stage}/{message.recipient}"]:
                await self._deliver(message, patience_s)
            count += 1
        return count

    async def receive(
        self, stage: str, role: str, *, step: str = MESSAGES_STEP, patience_s: float | None = None
    ) -> Incoming:
        """The next message from a role that is not acknowledged; the same one until it is.

        step: to which the message belongs in reports, see `disclose`.
        patience_s: how long to wait for it, and for a coordinator that is away; for as long as it takes when not given.
        Raises RemoteError (``partner_silent`` with the partner's name, ``message_order``, ``message_expired``,
        ``session_ended``), Unreachable, and for chunks that do not open InputError ``session_seal``.
        """
        self._check(stage, role)
        session = self.membership.session
        pair = await self._pair(role, patience_s)
        mail = self._mail_for(f"from/{stage}/{role}")
        acknowledged = -1
        while True:
            message = await mail.arrived(stage, role, patience_s=patience_s)
            if message is None:
                raise await self._silent(role, patience_s)
            wanted = self._store.next_incoming(session, stage, role)
            if acknowledged < message.sequence < wanted:
                # It was worked in; the coordinator's answer to its acknowledgement was lost.
                await mail.acknowledge(stage, role, message.sequence, patience_s=patience_s)
                acknowledged = message.sequence
                continue
            if message.sequence < wanted:
                raise RemoteError(
                    f"Message {message.sequence} from {role} in stage {stage} came again after it was acknowledged.",
                    hint="End the session and make another; the coordinator's store was restored, or it is not honest.",
                    code="message_order",
                )
            if message.sequence > wanted:
                raise RemoteError(
                    f"Message {wanted} from {role} in stage {stage} is missing: the coordinator sent number "
                    f"{message.sequence}.",
                    hint="End the session and make another; the coordinator lost messages, or is not honest.",
                    code="message_order",
                )
            header = self._header(stage, role, self.membership.role, message.sequence)
            chunks = self._decrypt(mail, header, pair, message, step, patience_s)
            return Incoming(stage, role, message.sequence, message.size, chunks)

    async def acknowledge(self, stage: str, role: str, sequence: int, *, patience_s: float | None = None) -> None:
        """Say that a message is worked in, and its result kept: it is deleted, and never comes again. Also lets a
        session go on after a message that expired. Idempotent.

        patience_s: how long to wait for a coordinator that is away; for as long as it takes when not given.
        """
        if sequence >= self._store.next_incoming(self.membership.session, stage, role):
            self._store.read(self.membership.session, stage, role, sequence)
        await self._mail_for(f"from/{stage}/{role}").acknowledge(stage, role, sequence, patience_s=patience_s)
        self._store.faults.reach("acknowledged")

    async def disclose(self, stage: str, *disclosures: Disclosure) -> None:
        """Keep what steps of a stage tell, for the report. Call it before a step's first message; call it again when
        more is known. What was said stays.

        Raises InputError (``stage_unknown``, ``role_unknown``).
        """
        for told in disclosures:
            other = told.recipient if told.sender == self.membership.role else told.sender
            self._check(stage, other)
            if self.membership.role not in (told.sender, told.recipient):
                raise InputError(
                    f"Step {told.step!r} tells what passes between {told.sender} and {told.recipient}.",
                    hint=f"Tell what {self.membership.role} tells and is told.",
                    code="role_unknown",
                )
        self._store.record.disclose(self.membership.session, stage, disclosures)

    async def finish(self, stage: str, step: str) -> None:
        """Keep that a step told all that it tells, for the report."""
        self._store.record.finish(self.membership.session, stage, step)

    async def report(self) -> SessionReport:
        """What this party told and was told until now, signed. Also of a session that is over."""
        membership = self._store.past_or_present(self.membership.session)
        return make_report(self._store, membership, None if membership.ended else await self._view_if_any())

    async def _view_if_any(self) -> SessionView | None:
        """The session as the coordinator tells it; None where it does not."""
        try:
            return await self._status(0.0)
        except RemoteError:
            return None

    async def status(self) -> SessionView:
        """The session as the coordinator tells it."""
        return await self._status(None)

    async def end(self, detail: str = "") -> SessionView:
        """End the session for all parties, and forget its keys here. `report` goes on to work."""
        body = canonical_json({"detail": detail})
        headers = {"Content-Type": "application/json"}
        answer = await self._mail_for("control").request("POST", "/v1/party/end", body=body, headers=headers)
        self._store.end(self.membership.session, self.membership.role)
        return read_message(SessionView, parsed(answer))

    async def _status(self, patience_s: float | None) -> SessionView:
        answer = await self._mail_for("control").request("GET", "/v1/party/session", patience_s=patience_s)
        return read_message(SessionView, parsed(answer))

    async def _deliver(self, message: Outgoing, patience_s: float | None = None) -> SendReceipt:
        if message.is_sent:
            return SendReceipt(state="already", sequence=message.sequence, sha256=message.sealed)
        body = self._store.spool(message) if message.body is None else message.body
        mail = self._mail_for(f"to/{message.stage}/{message.recipient}")
        place = (message.stage, message.recipient, message.sequence)
        receipt = await mail.send(*place, body, message.size, message.sealed, patience_s=patience_s)
        self._store.sent(message)
        return receipt

    async def _decrypt(
        self, mail: Mail, header: MessageHeader, pair: bytes, message: Arrived, step: str, patience_s: float | None
    ) -> AsyncIterator[bytes]:
        state, sealed, size = stream.expect(header), hashlib.sha256(), 0
        async for piece in mail.rest(header.stage, header.sender, message, patience_s=patience_s):
            sealed.update(piece)
            size += len(piece)
            state, chunk = stream.take(state, pair, piece)
            self._store.faults.reach("opening")
            if chunk:
                yield chunk
        last = stream.close(state)
        # Before anybody has all of it: what a party saw is in its record, whatever becomes of its process.
        opened = PassedMessage(header.stage, header.sender, header.sequence, sealed.hexdigest(), size, step)
        self._store.record.add_opened(header.session, opened)
        self._store.faults.reach("opened")
        if last:
            yield last

    async def _offer_keys(self, role: str, patience_s: float | None = None) -> PairKeys:
        """The keys with a partner, of which it has been offered this party's."""
        session, own_role, terms = self.membership.session, self.membership.role, self.membership.terms
        keys = self._store.keys(session, role)
        if keys is None:
            pair = KeyPair.generate()
            made = offer(terms, own_role, role, self._store.key, pair)
            self._store.add_keys(session, role, pair.private, made)
            keys = PairKeys(pair.private, made, None)
        body = keys.own.to_bytes()
        mail = self._mail_for("control")
        await mail.send(KEYS_STAGE, role, 0, body, len(body), sha256_hex(body), patience_s=patience_s)
        return keys

    async def _pair(self, role: str, patience_s: float | None = None) -> bytes:
        """The key shared with a partner whose identity is pinned."""
        async with self._turns[f"keys/{role}"]:
            if role not in self._pairs:
                keys = await self._offer_keys(role, patience_s)
                other = keys.other
                place = self.membership.terms.role(role)
                partner = role if place is None else place.party
                if other is None:
                    mail = self._mail_for(f"from/{KEYS_STAGE}/{role}")
                    self._on_event({"event": "waiting", "role": role, "partner": partner})
                    arrived = await mail.arrived(KEYS_STAGE, role, patience_s=patience_s)
                    if arrived is None:
                        raise await self._silent(role, patience_s)
                    other = read_offer(arrived.first, self.membership.terms, role, self.membership.role)
                    self._store.pins.check(partner, role, other.identity, self._judge)
                    self._store.add_offer(self.membership.session, role, other)
                    await mail.acknowledge(KEYS_STAGE, role, arrived.sequence, patience_s=patience_s)
                else:
                    self._store.pins.check(partner, role, other.identity, self._judge)
                shown = fingerprint(other.identity)
                self._on_event({"event": "partner", "role": role, "partner": partner, "fingerprint": shown})
                self._pairs[role] = pair_key(keys.private, keys.own, other)
            return self._pairs[role]

    async def _silent(self, role: str, patience_s: float | None) -> RemoteError:
        """The error for a partner that was waited for long enough. Raises Unreachable where the coordinator is away."""
        view = next((each for each in (await self._status(0.0)).parties if each.role == role), None)
        name = role if view is None else f"{view.party} (role {role})"
        joined = view is not None and view.joined_at is not None
        seen = None if view is None or view.last_seen_at is None else view.last_seen_at.isoformat(timespec="seconds")
        return RemoteError(
            f"No message came from {name} within {patience_s:g} s: it "
            + (f"was last seen at {seen}." if joined else "has not joined yet."),
            hint="Wait longer, ask the partner whether its agent runs, or end the session.",
            code="partner_silent",
            role=role,
        )

    def _header(self, stage: str, sender: str, recipient: str, sequence: int) -> MessageHeader:
        return MessageHeader(
            session=self.membership.session, stage=stage, sender=sender, recipient=recipient, sequence=sequence
        )

    def _mail_for(self, name: str) -> Mail:
        """Requests of one purpose: a long poll for one partner holds up nothing else."""
        if name not in self._lanes:
            nonce, self._nonce = self._nonce, None
            signed = SignedLink(self._link, key=self._store.key, device_id=self.membership.party, nonce=nonce)
            self._lanes[name] = Mail(signed, self._backoff, self._report_pause, self._store.faults)
        return self._lanes[name]

    def _report_pause(self, error: RemoteError) -> None:
        self._on_event({"event": "paused", "code": error.reason, "message": error.message})

    def _check(self, stage: str, role: str) -> None:
        terms = self.membership.terms
        if stage not in terms.stages:
            raise InputError(
                f"Session {terms.session} has no stage {stage[:64]!r}.",
                hint=f"Its stages are {', '.join(terms.stages)}.",
                code="stage_unknown",
            )
        names = [each.name for each in self.partners]
        if role not in names:
            raise InputError(
                f"Session {terms.session} has no partner in the role {role[:64]!r}.",
                hint=f"The partners of {self.membership.role} are {', '.join(names)}.",
                code="role_unknown",
            )
