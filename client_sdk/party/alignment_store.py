"""What an alignment keeps until it is done, and its result: one file in the party's folder, for this user alone.

A message is kept, as what was made of it, before it is acknowledged; the secret key and the party's own blinded ids are
kept before anything is sent. So a program that was killed goes on from there. When the alignment is done all of that is
deleted, and overwritten in the file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coterie.client_sdk.device.database import ClientDatabase
from coterie.errors import InputError, StorageError
from coterie.privacy.psi.blinding import PsiKey
from coterie.privacy.psi.exchange import PsiOutcome
from coterie.privacy.psi.messages import HEAD_BYTES, PsiHello, PsiMessage, read_psi_head
from coterie.protocol.conversion import from_text, to_text
from coterie.protocol.private_files import make_private_folder

Kept = TypeVar("Kept")

FILE: Final = "alignment.db"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS attempt (id INTEGER PRIMARY KEY, progress TEXT NOT NULL, private BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS points (bucket INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS places (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS taken (number INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS result (id INTEGER PRIMARY KEY, told TEXT NOT NULL, places BLOB NOT NULL)
"""
_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class AlignmentProgress:
    """An attempt of an alignment.

    number: of the attempts in this stage, from 0. Each that came to nothing was one message to and one from the
        partner.
    ids: SHA-256 (hex) of this party's ids, in the order of its rows.
    hello: what this party says first.
    is_agreed: whether the partner has said the same.
    is_over: whether it has said something else.
    """

    number: _Count
    ids: str
    hello: PsiHello
    is_agreed: bool = False
    is_over: bool = False

    def same_as(self, other: "AlignmentProgress") -> bool:
        """Whether both are one call, but for what was drawn for it and how far it is."""
        mine, theirs = self.hello, other.hello
        return (self.ids, mine.terms, mine.ids, mine.minimum) == (other.ids, theirs.terms, theirs.ids, theirs.minimum)


@dataclass(frozen=True, kw_only=True)
class AlignmentTold:
    """What a finished alignment has told, beside row numbers."""

    progress: AlignmentProgress
    is_refused: bool
    count: int | None
    has_rows: bool


class AlignmentStore:
    """The folder of one stage of one session. Raises ConfigurationError when another program uses it, StorageError."""

    def __init__(self, folder: Path) -> None:
        make_private_folder(folder)
        self.folder = folder
        self._database = ClientDatabase(folder, _SCHEMA, FILE)

    def close(self) -> None:
        """Release the folder."""
        self._database.close()

    def attempt(self) -> tuple[AlignmentProgress, PsiKey] | None:
        """The attempt that was begun last. Raises StorageError (``checkpoint_damaged``)."""
        row = self._database.execute("SELECT progress, private FROM attempt").fetchone()
        return None if row is None else (self._read(AlignmentProgress, row[0]), PsiKey(row[1]))

    def begin(self, progress: AlignmentProgress, key: PsiKey) -> None:
        """Keep a new attempt, and nothing of the one before it."""
        with self._database.transaction() as database:
            for table in ("points", "places", "taken"):
                database.execute(f"DELETE FROM {table}")
            database.execute("INSERT OR REPLACE INTO attempt VALUES (1, ?, ?)", (to_text(progress), key.private))

    def keep(self, progress: AlignmentProgress) -> None:
        """Keep how far the attempt is. The key of one that is over is deleted."""
        with self._database.transaction() as database:
            query = "UPDATE attempt SET progress = ?, private = CASE WHEN ? THEN x'' ELSE private END"
            database.execute(query, (to_text(progress), progress.is_over))

    def places(self) -> NDArray[np.int64] | None:
        """The row of each of this party's points; None where they are not made yet."""
        row = self._database.execute("SELECT body FROM places").fetchone()
        return None if row is None else np.frombuffer(row[0], np.int64)

    def points(self, bucket: int) -> bytes | None:
        """A bucket of this party's points; None after the last one."""
        row = self._database.execute("SELECT body FROM points WHERE bucket = ?", (bucket,)).fetchone()
        return None if row is None else row[0]

    def add_points(self, buckets: list[bytes], places: NDArray[np.int64]) -> None:
        """Keep this party's points, all at once."""
        with self._database.transaction() as database:
            database.executemany("INSERT INTO points VALUES (?, ?)", enumerate(buckets))
            database.execute("INSERT INTO places VALUES (1, ?)", (places.tobytes(),))

    def taken(self, number: int) -> PsiMessage | None:
        """A message of the partner that was kept, its body being what was made of it."""
        row = self._database.execute("SELECT body FROM taken WHERE number = ?", (number,)).fetchone()
        return None if row is None else PsiMessage(read_psi_head(row[0]), row[0][HEAD_BYTES:])

    def add_taken(self, number: int, message: PsiMessage) -> None:
        """Keep a message of the partner, before it is acknowledged."""
        with self._database.transaction() as database:
            database.execute("INSERT INTO taken VALUES (?, ?)", (number, message.to_bytes()))

    def result(self) -> tuple[AlignmentProgress, PsiOutcome] | None:
        """What the finished alignment has told. Raises StorageError (``checkpoint_damaged``)."""
        row = self._database.execute("SELECT told, places FROM result").fetchone()
        if row is None:
            return None
        told = self._read(AlignmentTold, row[0])
        rows = np.frombuffer(row[1], np.int64) if told.has_rows else None
        return told.progress, PsiOutcome(told.is_refused, told.count, rows)

    def finish(self, progress: AlignmentProgress, outcome: PsiOutcome) -> None:
        """Keep the result and, in the same transaction, nothing else."""
        told = AlignmentTold(
            progress=progress,
            is_refused=outcome.is_refused,
            count=outcome.count,
            has_rows=outcome.rows is not None,
        )
        rows = b"" if outcome.rows is None else outcome.rows.astype(np.int64).tobytes()
        with self._database.transaction() as database:
            for table in ("attempt", "points", "places", "taken"):
                database.execute(f"DELETE FROM {table}")
            database.execute("INSERT INTO result VALUES (1, ?, ?)", (to_text(told), rows))

    def _read(self, kind: type[Kept], stored: object) -> Kept:
        try:
            return from_text(kind, stored if isinstance(stored, str) else "")
        except InputError as error:
            raise StorageError(
                f"{self.folder / FILE} is damaged: {error.message}",
                hint="Restore the folder from a backup, or align in another stage or session.",
                code="checkpoint_damaged",
                path=str(self.folder / FILE),
            ) from error
