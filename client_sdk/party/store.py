"""What a party keeps: its identity, its pins, and for each session its keys, what it has sent and how far it has read,
and a record of what was told (`coterie.client_sdk.party.record`), which stays when the session is over.

A message is sealed once, into the outbox, before its first byte leaves; after a restart the same sealed bytes are sent
on. What has been read is counted before it is acknowledged, so that a message that comes again is known.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Final

from coterie.client_sdk.device.database import ClientDatabase, add_column
from coterie.client_sdk.party.faults import PartyFaults
from coterie.client_sdk.party.pins import Pins
from coterie.client_sdk.party.record import SCHEMA as RECORD
from coterie.client_sdk.party.record import PartyRecord
from coterie.errors import ConfigurationError, InputError
from coterie.protocol.disclosures import MESSAGES_STEP
from coterie.protocol.private_files import make_private_folder
from coterie.protocol.session import KeyOffer, PartyJoined, SessionTerms
from coterie.protocol.signing import SigningKey

KEY: Final = "party.key"
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS memberships (
    session TEXT PRIMARY KEY, url TEXT NOT NULL, party TEXT NOT NULL, role TEXT NOT NULL, name TEXT NOT NULL,
    terms TEXT NOT NULL, ended TEXT
);
CREATE TABLE IF NOT EXISTS keys (
    session TEXT NOT NULL, partner TEXT NOT NULL, private BLOB NOT NULL, own TEXT NOT NULL, other TEXT,
    PRIMARY KEY (session, partner)
);
CREATE TABLE IF NOT EXISTS outbox (
    session TEXT NOT NULL, stage TEXT NOT NULL, recipient TEXT NOT NULL, sequence INTEGER NOT NULL,
    plain TEXT NOT NULL, sealed TEXT NOT NULL, size INTEGER NOT NULL, body BLOB, sent INTEGER NOT NULL,
    step TEXT NOT NULL DEFAULT 'messages',
    PRIMARY KEY (session, stage, recipient, sequence)
);
CREATE TABLE IF NOT EXISTS inbox (
    session TEXT NOT NULL, stage TEXT NOT NULL, sender TEXT NOT NULL, next INTEGER NOT NULL,
    PRIMARY KEY (session, stage, sender)
)
"""


@dataclass(frozen=True)
class PartyMembership:
    """A role that this party has taken.

    name: the session's.
    ended: why the session is over here; None while this party has not ended it.
    """

    url: str
    party: str
    role: str
    name: str
    terms: SessionTerms
    ended: str | None = None

    @property
    def session(self) -> str:
        """The session's id."""
        return self.terms.session


@dataclass(frozen=True)
class PairKeys:
    """The keys of this party and one partner.

    other: the partner's offer, once it has come and is pinned.
    """

    private: bytes = field(repr=False)
    own: KeyOffer
    other: KeyOffer | None


@dataclass(frozen=True)
class Outgoing:
    """A sealed message in the outbox.

    plain, sealed: SHA-256 of the message and of its sealed bytes, hex.
    size: of the sealed bytes.
    body: the sealed bytes where they are few; None where they are in `PartyStore.spool`, or are sent already.
    step: which step of the stage it belongs to.
    """

    session: str
    stage: str
    recipient: str
    sequence: int
    plain: str
    sealed: str
    size: int
    body: bytes | None = field(default=None, repr=False)
    is_sent: bool = False
    step: str = MESSAGES_STEP


class PartyStore:
    """A party's folder; one process at a time. Raises ConfigurationError when another one uses it, StorageError."""

    def __init__(self, folder: Path) -> None:
        make_private_folder(folder)
        self.folder = folder
        self.key = SigningKey.load_or_create(folder / KEY)
        self.pins = Pins(folder)
        self.faults = PartyFaults.from_environment()
        self._database = ClientDatabase(folder, f"{SCHEMA};{RECORD}", "party.db")
        with self._database.transaction() as database:  # of folders that an earlier version made
            add_column(database, "memberships", "ended", "TEXT")
            add_column(database, "outbox", "step", f"TEXT NOT NULL DEFAULT '{MESSAGES_STEP}'")
        self.record = PartyRecord(self._database)
        self._sweep()

    def close(self) -> None:
        """Release the folder."""
        self._database.close()

    def join(self, url: str, joined: PartyJoined) -> PartyMembership:
        """Keep a membership. Raises ConfigurationError ``role_taken`` where this party has another role there,
        InputError ``session_terms`` where the session had other terms before.
        """
        made = PartyMembership(url, joined.party, joined.role, joined.name, joined.terms)
        before = next((each for each in self._memberships() if each.session == made.session), made)
        if before.role != made.role:
            raise ConfigurationError(
                f"{self.folder} holds the role {before.role} of session {made.session}, and this token is for the role "
                f"{made.role}.",
                hint="Join from another folder: a party has one role in a session.",
                code="role_taken",
            )
        if before.terms.digest != made.terms.digest:
            raise InputError(
                f"The coordinator states other terms for session {made.session} than when this party joined it: "
                f"{made.terms.digest[:16]}…, not {before.terms.digest[:16]}….",
                hint="End the session and make another; the coordinator mixed up its sessions, or is not honest.",
                code="session_terms",
            )
        values = (made.session, url, made.party, made.role, made.name, made.terms.model_dump_json(exclude_unset=True))
        with self._database.transaction() as database:
            database.execute("INSERT OR REPLACE INTO memberships VALUES (?, ?, ?, ?, ?, ?, NULL)", values)
        self.faults.reach("joined")
        return made

    def memberships(self) -> list[PartyMembership]:
        """Every role that this party has taken and not ended, the oldest session first."""
        return [each for each in self._memberships() if each.ended is None]

    def _memberships(self) -> list[PartyMembership]:
        query = "SELECT url, party, role, name, terms, ended FROM memberships ORDER BY session"
        return [
            PartyMembership(url, party, role, name, SessionTerms.model_validate_json(terms), ended)
            for url, party, role, name, terms, ended in self._database.execute(query)
        ]

    def membership(self, session: str | None = None) -> PartyMembership:
        """The membership in a session, by its id or the id's end; the only one when none is given.

        Raises ConfigurationError ``session_unknown``.
        """
        return self._only(self.memberships(), session)

    def past_or_present(self, session: str | None = None) -> PartyMembership:
        """As `membership`, also of a session that this party has ended."""
        return self._only(self._memberships(), session)

    def _only(self, memberships: list[PartyMembership], session: str | None) -> PartyMembership:
        found = [each for each in memberships if session is None or each.session.endswith(session)]
        if len(found) == 1:
            return found[0]
        listed = ", ".join(f"{each.session} ({each.name})" for each in found)
        raise ConfigurationError(
            f"{self.folder} holds no such session."
            if not found
            else f"{self.folder} holds several sessions: {listed}.",
            hint="Join one first: `coterie party join`." if not found else "Say which one, by its id.",
            code="session_unknown",
        )

    def end(self, session: str, reason: str) -> None:
        """Delete what only a session that goes on needs, its private keys first of all. What a report needs stays."""
        spools = [self.spool(each) for each in self.unsent(session)]
        with self._database.transaction() as database:
            database.execute("UPDATE keys SET private = x'' WHERE session = ?", (session,))
            database.execute("UPDATE outbox SET body = NULL WHERE session = ?", (session,))
            database.execute("UPDATE memberships SET ended = ? WHERE session = ?", (reason, session))
        for path in spools:
            path.unlink(missing_ok=True)
        rmtree(self.folder_of_alignments(session), ignore_errors=True)

    def folder_of_alignments(self, session: str) -> Path:
        """Where the alignments of a session are."""
        return self.folder / "alignments" / session

    def folder_of_job(self, session: str) -> Path:
        """Where the job of a session keeps its part of the model and what it knows of the table."""
        return self.folder / "jobs" / session

    def keys(self, session: str, partner: str) -> PairKeys | None:
        """The keys with a partner, by its role."""
        query = "SELECT private, own, other FROM keys WHERE session = ? AND partner = ?"
        row = self._database.execute(query, (session, partner)).fetchone()
        if row is None:
            return None
        other = None if row[2] is None else KeyOffer.model_validate_json(row[2])
        return PairKeys(row[0], KeyOffer.model_validate_json(row[1]), other)

    def add_keys(self, session: str, partner: str, private: bytes, own: KeyOffer) -> None:
        """Keep a fresh key for a partner, before it is offered."""
        values = (session, partner, private, own.model_dump_json())
        with self._database.transaction() as database:
            database.execute("INSERT INTO keys VALUES (?, ?, ?, ?, NULL)", values)
        self.faults.reach("key_made")

    def add_offer(self, session: str, partner: str, other: KeyOffer) -> None:
        """Keep a partner's offer, whose identity is pinned."""
        with self._database.transaction() as database:
            values = (other.model_dump_json(), session, partner)
            database.execute("UPDATE keys SET other = ? WHERE session = ? AND partner = ?", values)
        self.faults.reach("offer_kept")

    def next_outgoing(self, session: str, stage: str, recipient: str) -> int:
        """The number of the next message that is put into the outbox."""
        query = "SELECT MAX(sequence) + 1 FROM outbox WHERE session = ? AND stage = ? AND recipient = ?"
        return self._database.execute(query, (session, stage, recipient)).fetchone()[0] or 0

    def outgoing(self, session: str, stage: str, recipient: str, sequence: int) -> Outgoing | None:
        """A message of the outbox, also one that is sent."""
        where = "session = ? AND stage = ? AND recipient = ? AND sequence = ?"
        return next(self._outgoing(where, (session, stage, recipient, sequence)), None)

    def unsent(self, session: str) -> list[Outgoing]:
        """What has not been accepted yet, in the order of each stage and recipient."""
        return [*self._outgoing("session = ? AND sent = 0 ORDER BY stage, recipient, sequence", (session,))]

    def _outgoing(self, where: str, values: tuple[object, ...]) -> Iterator[Outgoing]:
        columns = "session, stage, recipient, sequence, plain, sealed, size, body, step, sent"
        for row in self._database.execute(f"SELECT {columns} FROM outbox WHERE {where}", values).fetchall():
            yield Outgoing(*row[:8], step=row[8], is_sent=bool(row[9]))

    def put(self, message: Outgoing) -> None:
        """Put a sealed message into the outbox. A spool is durable already."""
        if message.body is None:
            self.faults.reach("spooled")
        fields = (message.session, message.stage, message.recipient, message.sequence)
        values = (*fields, message.plain, message.sealed, message.size, message.body, message.step)
        with self._database.transaction() as database:
            database.execute("INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?)", values)
        self.faults.reach("sealed")

    def sent(self, message: Outgoing) -> None:
        """Note that a message was accepted; its sealed bytes go."""
        self.faults.reach("accepted")
        values = (message.session, message.stage, message.recipient, message.sequence)
        with self._database.transaction() as database:
            database.execute(
                "UPDATE outbox SET sent = 1, body = NULL WHERE session = ? AND stage = ? AND recipient = ?"
                " AND sequence = ?",
                values,
            )
        self.faults.reach("sent")
        self.spool(message).unlink(missing_ok=True)

    def spool(self, message: Outgoing) -> Path:
        """Where the sealed bytes of a large message are until it is accepted."""
        name = f"{message.session}.{message.stage}.{message.recipient}.{message.sequence}"
        return self.folder / "outbox" / name

    def next_incoming(self, session: str, stage: str, sender: str) -> int:
        """The number of the next message to read."""
        query = "SELECT next FROM inbox WHERE session = ? AND stage = ? AND sender = ?"
        row = self._database.execute(query, (session, stage, sender)).fetchone()
        return 0 if row is None else row[0]

    def read(self, session: str, stage: str, sender: str, sequence: int) -> None:
        """Note that a message is worked in."""
        with self._database.transaction() as database:
            values = (session, stage, sender, sequence + 1)
            database.execute("INSERT OR REPLACE INTO inbox VALUES (?, ?, ?, ?)", values)
        self.faults.reach("worked_in")

    def _sweep(self) -> None:
        """Delete spools that a crash has left: those that no message of the outbox is in."""
        folder = self.folder / "outbox"
        make_private_folder(folder)
        live = {self.spool(message) for each in self.memberships() for message in self.unsent(each.session)}
        for path in folder.iterdir():
            if path not in live:
                with suppress(FileNotFoundError):
                    path.unlink()
