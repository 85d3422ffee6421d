"""The mailbox as rows, keyed by session, stage, sender, recipient and sequence.

Two things use it. An attempt at secure aggregation leaves one *bundle* for each sender and stage (its phase), with what
is there for everybody: a thousand clients with 48 neighbours each are a thousand rows a stage, not 48 thousand, and a
recipient's part is picked out of the bundles of those who wrote to it. A session of parties leaves *messages*, each for
one recipient, numbered from 0 in their order. What is here is deleted with its attempt or session.

Every message passes several of these statements, so they are built once, and give plain rows instead of entities:
building a statement takes longer than to run it, and so does making an entity of a row.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import Row, Table, and_, bindparam, case, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import TooLarge
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.session import EVERYBODY, KEYS_STAGE
from coterie.server.clock import now_ms
from coterie.server.store.dialect import batches
from coterie.server.store.tables import MailboxRow

BUNDLE_LIMIT: Final = 1 << 20
"""The most bytes that one sender may leave in one stage for everybody."""
_MAILBOX: Final = cast("Table", MailboxRow.__table__)
_COLUMNS: Final = _MAILBOX.c
_OF_STAGE: Final = and_(_COLUMNS.session == bindparam("of_session"), _COLUMNS.stage == bindparam("of_stage"))
_BUNDLES: Final = and_(_OF_STAGE, _COLUMNS.recipient == EVERYBODY)
_OF_SENDER: Final = _COLUMNS.sender == bindparam("of_sender")
_OF_BOX: Final = and_(_OF_STAGE, _OF_SENDER, _COLUMNS.recipient == bindparam("of_recipient"))
_NUMBERED: Final = and_(_OF_BOX, _COLUMNS.sequence == bindparam("of_sequence"))
_WAITING: Final = and_(_OF_BOX, _COLUMNS.is_whole, _COLUMNS.acknowledged_at.is_(None))
_MESSAGE: Final = select(
    *(_COLUMNS[name] for name in ("sequence", "size", "sha256", "parts", "is_whole", "expires_at"))
)

_FIND: Final = select(_COLUMNS.body).where(_BUNDLES, _OF_SENDER, _COLUMNS.sequence == 0)
_COUNT: Final = select(func.count()).select_from(_MAILBOX).where(_BUNDLES)
_WRITE: Final = insert(_MAILBOX)
_ONE: Final = _MESSAGE.where(_NUMBERED)
_LAST: Final = _MESSAGE.where(_OF_BOX).order_by(_COLUMNS.sequence.desc()).limit(1)
_FIRST_WAITING: Final = _MESSAGE.where(_WAITING).order_by(_COLUMNS.sequence).limit(1)
_FIRST_WITH_BODY: Final = _FIRST_WAITING.add_columns(_COLUMNS.body)
_KEEP_RESERVED: Final = update(_MAILBOX).where(_NUMBERED)
_ACKNOWLEDGE: Final = update(_MAILBOX).where(_NUMBERED).values(acknowledged_at=bindparam("now"), body=None)
_FORGET_BEFORE: Final = delete(_MAILBOX).where(_OF_BOX, _COLUMNS.sequence < bindparam("of_sequence"))
_LOAD: Final = (
    select(
        _COLUMNS.sender,
        func.count(),
        func.sum(case((_COLUMNS.expires_at > bindparam("now"), _COLUMNS.size), else_=0)),
    )
    .where(
        _COLUMNS.session == bindparam("of_session"),
        _COLUMNS.stage != KEYS_STAGE,
        _COLUMNS.expires_at.is_not(None),
        _COLUMNS.acknowledged_at.is_(None),
    )
    .group_by(_COLUMNS.sender)
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


class StoredMessage(NamedTuple):
    """A message as its row says, also one that is still coming in.

    body: its bytes where they are in its row, of a statement that asks for them.
    """

    sequence: int
    size: int
    sha256: str | None
    parts: str | None
    is_whole: bool
    expires_at: int | None
    body: bytes | None = None


def _stage(session: str, stage: str) -> dict[str, Any]:
    return {"of_session": session, "of_stage": stage}


def _box(box: Box) -> dict[str, Any]:
    return {**_stage(box.session, box.stage), "of_sender": box.sender, "of_recipient": box.recipient}


async def find(session: AsyncSession, box: str, stage: str, sender: str) -> str | None:
    """The bundle that a sender left in this stage; None when nothing."""
    body = (await session.execute(_FIND, {**_stage(box, stage), "of_sender": sender})).scalar_one_or_none()
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
    await _write(session, Box(box, stage, sender, EVERYBODY), 0, {"body": body, "size": len(body), "is_whole": True})


async def bundles(
    session: AsyncSession, box: str, stage: str, senders: Sequence[str] | None = None
) -> Mapping[str, str]:
    """The bundles of a stage, by sender, in the order of their names; of these senders only, where some are given."""
    query = select(_COLUMNS.sender, _COLUMNS.body).where(_BUNDLES, _COLUMNS.body.is_not(None))
    named = _stage(box, stage)
    if senders is None:
        return {row.sender: _text(row.body) for row in await session.execute(query.order_by(_COLUMNS.sender), named)}
    found: dict[str, str] = {}
    for some in batches(senders):
        batch = query.where(_COLUMNS.sender.in_(some))
        found |= {row.sender: _text(row.body) for row in await session.execute(batch, named)}
    return dict(sorted(found.items()))


def _text(body: bytes | None) -> str:
    return (body or b"").decode()


async def senders(session: AsyncSession, box: str, stage: str) -> Sequence[str]:
    """Who has left a bundle in a stage, in the order of their names."""
    query = select(_COLUMNS.sender).where(_BUNDLES).order_by(_COLUMNS.sender)
    return (await session.execute(query, _stage(box, stage))).scalars().all()


async def count(session: AsyncSession, box: str, stage: str) -> int:
    """How many have left a bundle in a stage."""
    return int((await session.execute(_COUNT, _stage(box, stage))).scalar_one())


async def empty(session: AsyncSession, box: str) -> None:
    """Delete everything of an attempt or session that is over."""
    await session.execute(delete(MailboxRow).where(MailboxRow.session == box))


async def message(session: AsyncSession, box: Box, sequence: int) -> StoredMessage | None:
    """One message without its body, also one that is still coming in."""
    return _message((await session.execute(_ONE, {**_box(box), "of_sequence": sequence})).one_or_none())


async def last(session: AsyncSession, box: Box) -> StoredMessage | None:
    """The last message of a box without its body, also one that is still coming in: only the last one may be."""
    return _message((await session.execute(_LAST, _box(box))).one_or_none())


def following(last: StoredMessage | None) -> int:
    """The number of the message that comes next in a box whose last one this is."""
    return 0 if last is None else last.sequence + last.is_whole


async def first_waiting(session: AsyncSession, box: Box, *, with_body: bool) -> StoredMessage | None:
    """The first message of a box that is not acknowledged.

    with_body: read its bytes too, where they are in its row.
    """
    query = _FIRST_WITH_BODY if with_body else _FIRST_WAITING
    return _message((await session.execute(query, _box(box))).one_or_none())


def _message(row: Row[Any] | None) -> StoredMessage | None:
    return None if row is None else StoredMessage(*row)


async def reserve(
    session: AsyncSession, box: Box, sequence: int, before: StoredMessage | None, *, size: int, expires_at: int
) -> None:
    """Keep room for a message whose parts come in.

    The caller has looked, in this transaction, that its number is the next.
    before: an earlier reservation of it.
    """
    values = {"size": size, "expires_at": expires_at, "parts": box.parts_of(sequence), "is_whole": False}
    await _keep(session, box, sequence, before, values)


async def post(
    session: AsyncSession,
    box: Box,
    sequence: int,
    before: StoredMessage | None,
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
    parts = box.parts_of(sequence) if body is None else None
    values = {"size": size, "sha256": sha256, "expires_at": expires_at, "parts": parts, "is_whole": True, "body": body}
    await _keep(session, box, sequence, before, values)


async def _keep(
    session: AsyncSession, box: Box, sequence: int, reserved: StoredMessage | None, values: Mapping[str, Any]
) -> None:
    if reserved is None:
        await _write(session, box, sequence, values)
    else:
        await session.execute(_KEEP_RESERVED.values(values), {**_box(box), "of_sequence": sequence})


async def _write(session: AsyncSession, box: Box, sequence: int, values: Mapping[str, Any]) -> None:
    await session.execute(_WRITE, {**box._asdict(), "sequence": sequence, "created_at": now_ms(), **values})


async def acknowledge(session: AsyncSession, box: Box, sequence: int, now: int) -> None:
    """Take a message out of the mailbox; its number stays used. The caller has looked, in this transaction, that it
    waits.
    """
    this = {**_box(box), "of_sequence": sequence}
    await session.execute(_ACKNOWLEDGE, {**this, "now": now})
    # Numbers are acknowledged in their order, and the last one says that all before it were.
    if sequence:
        await session.execute(_FORGET_BEFORE, this)


class Load(NamedTuple):
    """What waits in the mailbox or is coming in: how many messages, and how many bytes there are of them."""

    messages: int
    size: int


async def load(session: AsyncSession, box: str, now: int) -> dict[str, Load]:
    """What waits in a session's mailbox or is coming in, by sender, beside the offers of keys. Messages that have
    expired have no bytes.
    """
    rows = await session.execute(_LOAD, {"of_session": box, "now": now})
    return {sender: Load(messages, size) for sender, messages, size in rows}


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
