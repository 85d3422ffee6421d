"""The mailbox as rows, keyed by session, stage, sender, recipient and sequence.

Two things use it. An attempt at secure aggregation leaves one *bundle* for each sender and stage (its phase), with what
is there for everybody: a thousand clients with 48 neighbours each are a thousand rows a stage, not 48 thousand, and a
recipient's part is picked out of the bundles of those who wrote to it. A session of parties leaves *messages*, each for
one recipient, numbered from 0 in their order. What is here is deleted with its attempt or session.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import bindparam, case, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import undefer

from coterie.errors import TooLarge
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.session import EVERYBODY, KEYS_STAGE
from coterie.server.clock import now_ms
from coterie.server.store.dialect import batches
from coterie.server.store.tables import MailboxRow

BUNDLE_LIMIT: Final = 1 << 20
"""The most bytes that one sender may leave in one stage for everybody."""
_COUNT: Final = (
    select(func.count())
    .select_from(MailboxRow)
    .where(MailboxRow.session == bindparam("box"), MailboxRow.stage == bindparam("stage"))
    .where(MailboxRow.recipient == EVERYBODY)
)


class Box(NamedTuple):
    """The messages from one sender to one recipient in one stage of a session."""

    session: str
    stage: str
    sender: str
    recipient: str

    def parts_of(self, sequence: int) -> str:
        """The name under which the parts of a large message are in the store: it begins with the session's id."""
        name = "\n".join((self.stage, self.sender, self.recipient, str(sequence)))
        return f"{self.session}-{sha256_hex(name.encode())[:32]}"

    @property
    def turn(self) -> str:
        """By which its recipient is woken."""
        return "/".join(self)


def _bundles(session: str, stage: str) -> tuple[Any, ...]:
    return MailboxRow.session == session, MailboxRow.stage == stage, MailboxRow.recipient == EVERYBODY


async def find(session: AsyncSession, box: str, stage: str, sender: str) -> str | None:
    """The bundle that a sender left in this stage; None when nothing."""
    query = select(MailboxRow.body).where(*_bundles(box, stage), MailboxRow.sender == sender, MailboxRow.sequence == 0)
    body = (await session.execute(query)).scalar_one_or_none()
    return None if body is None else body.decode()


async def put(session: AsyncSession, box: str, stage: str, sender: str, bundle: str) -> None:
    """Leave a bundle. The caller has looked, in this transaction, that the sender left none in this stage.

    Raises TooLarge for more than BUNDLE_LIMIT bytes.
    """
    body = bundle.encode()
    if len(body) > BUNDLE_LIMIT:
        raise TooLarge(
            f"A message of {len(body)} bytes exceeds the {BUNDLE_LIMIT} bytes that one sender may leave in one phase.",
            hint="Send less.",
            limit=BUNDLE_LIMIT,
        )
    session.add(
        MailboxRow(
            session=box, stage=stage, sender=sender, recipient=EVERYBODY, sequence=0,
            body=body, size=len(body), created_at=now_ms(),
        )
    )  # fmt: skip
    await session.flush()


async def bundles(
    session: AsyncSession, box: str, stage: str, senders: Sequence[str] | None = None
) -> Mapping[str, str]:
    """The bundles of a stage, by sender, in the order of their names; of these senders only, where some are given."""
    query = select(MailboxRow.sender, MailboxRow.body).where(*_bundles(box, stage), MailboxRow.body.is_not(None))
    if senders is None:
        return {row.sender: _text(row.body) for row in await session.execute(query.order_by(MailboxRow.sender))}
    found: dict[str, str] = {}
    for some in batches(senders):
        batch = query.where(MailboxRow.sender.in_(some))
        found |= {row.sender: _text(row.body) for row in await session.execute(batch)}
    return dict(sorted(found.items()))


def _text(body: bytes | None) -> str:
    return (body or b"").decode()


async def senders(session: AsyncSession, box: str, stage: str) -> Sequence[str]:
    """Who has left a bundle in a stage, in the order of their names."""
    query = select(MailboxRow.sender).where(*_bundles(box, stage))
    return (await session.execute(query.order_by(MailboxRow.sender))).scalars().all()


async def count(session: AsyncSession, box: str, stage: str) -> int:
    """How many have left a bundle in a stage."""
    return int((await session.execute(_COUNT, {"box": box, "stage": stage})).scalar_one())


async def empty(session: AsyncSession, box: str) -> None:
    """Delete everything of an attempt or session that is over."""
    await session.execute(delete(MailboxRow).where(MailboxRow.session == box))


def _messages(box: Box) -> tuple[Any, ...]:
    return (
        MailboxRow.session == box.session,
        MailboxRow.stage == box.stage,
        MailboxRow.sender == box.sender,
        MailboxRow.recipient == box.recipient,
    )


async def message(session: AsyncSession, box: Box, sequence: int) -> MailboxRow | None:
    """One message without its body, also one that is still coming in."""
    return await session.get(MailboxRow, (*box, sequence))


async def last(session: AsyncSession, box: Box) -> MailboxRow | None:
    """The last message of a box without its body, also one that is still coming in: only the last one may be."""
    query = select(MailboxRow).where(*_messages(box)).order_by(MailboxRow.sequence.desc()).limit(1)
    return (await session.execute(query)).scalar_one_or_none()


def following(last: MailboxRow | None) -> int:
    """The number of the message that comes next in a box whose last one this is."""
    return 0 if last is None else last.sequence + last.is_whole


async def first_waiting(session: AsyncSession, box: Box) -> MailboxRow | None:
    """The first message of a box that is not acknowledged, with its body where that is in its row."""
    waiting = MailboxRow.is_whole, MailboxRow.acknowledged_at.is_(None)
    query = select(MailboxRow).where(*_messages(box), *waiting)
    query = query.order_by(MailboxRow.sequence).limit(1).options(undefer(MailboxRow.body))
    return (await session.execute(query)).scalar_one_or_none()


async def reserve(
    session: AsyncSession, box: Box, sequence: int, before: MailboxRow | None, *, size: int, expires_at: int
) -> None:
    """Keep room for a message whose parts come in.

    The caller has looked, in this transaction, that its number is the next.
    before: an earlier reservation of it.
    """
    parts = box.parts_of(sequence)
    await _write(session, box, sequence, before, size=size, expires_at=expires_at, parts=parts, is_whole=False)


async def post(
    session: AsyncSession,
    box: Box,
    sequence: int,
    before: MailboxRow | None,
    *,
    body: bytes | None,
    size: int,
    sha256: str,
    expires_at: int,
) -> None:
    """Keep a message. The caller has looked, in this transaction, that its number is the next.

    before: its reservation.
    body: None where it is in parts, which are durable.
    """
    values = {"size": size, "sha256": sha256, "expires_at": expires_at, "is_whole": True}
    parts = box.parts_of(sequence) if body is None else None
    await _write(session, box, sequence, before, **values, parts=parts, body=body)


async def _write(session: AsyncSession, box: Box, sequence: int, reserved: MailboxRow | None, **values: Any) -> None:
    if reserved is None:
        session.add(MailboxRow(**box._asdict(), sequence=sequence, created_at=now_ms(), **values))
    else:
        for name, value in values.items():
            setattr(reserved, name, value)
    await session.flush()


async def acknowledge(session: AsyncSession, box: Box, sequence: int, now: int) -> None:
    """Take a message out of the mailbox; its number stays used. The caller has looked, in this transaction, that it
    waits.
    """
    this = *_messages(box), MailboxRow.sequence == sequence
    await session.execute(update(MailboxRow).where(*this).values(acknowledged_at=now, body=None))
    # Numbers are acknowledged in their order, and the last one says that all before it were.
    if sequence:
        await session.execute(delete(MailboxRow).where(*_messages(box), MailboxRow.sequence < sequence))


class Load(NamedTuple):
    """What waits in the mailbox or is coming in: how many messages, and how many bytes there are of them."""

    messages: int
    size: int


async def load(session: AsyncSession, box: str, now: int) -> dict[str, Load]:
    """What waits in a session's mailbox or is coming in, by sender, beside the offers of keys. Messages that have
    expired have no bytes.
    """
    size = case((MailboxRow.expires_at > now, MailboxRow.size), else_=0)
    query = (
        select(MailboxRow.sender, func.count(), func.sum(size))
        .where(
            MailboxRow.session == box,
            MailboxRow.stage != KEYS_STAGE,
            MailboxRow.expires_at.is_not(None),
            MailboxRow.acknowledged_at.is_(None),
        )
        .group_by(MailboxRow.sender)
    )
    return {sender: Load(messages, size) for sender, messages, size in await session.execute(query)}


async def expire(session: AsyncSession, now: int) -> None:
    """Drop the bodies of messages whose time is over, and what never came in. The rows of messages stay, so that their
    recipients are told.
    """
    over = MailboxRow.expires_at <= now, MailboxRow.acknowledged_at.is_(None)
    await session.execute(delete(MailboxRow).where(*over, MailboxRow.is_whole.is_(False)))
    await session.execute(update(MailboxRow).where(*over, MailboxRow.body.is_not(None)).values(body=None))


async def live_parts(session: AsyncSession, now: int) -> frozenset[str]:
    """The names of the parts that make up messages which wait or are coming in."""
    live = MailboxRow.parts.is_not(None), MailboxRow.acknowledged_at.is_(None), MailboxRow.expires_at > now
    return frozenset(name for name in (await session.execute(select(MailboxRow.parts).where(*live))).scalars() if name)
