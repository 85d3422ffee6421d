"""The ends of ledgers, kept outside of the coordinator's own folder.

Key and database lie together, so whoever holds both can cut a ledger short and nothing in it shows that. A folder
elsewhere (another disk, another machine's share) holds the newest entry of each population's ledger, ``<name>.json``,
written when its transaction is committed. A ledger that does not contain that entry has lost some.

Guarantees: a file is whole or as it was; it is never ahead of what is committed. A coordinator that is killed between
commit and file leaves a file that is behind, which is no fault: a ledger may be longer than its checkpoint.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import structlog

from coterie.errors import ConfigurationError, CoterieError, StorageError
from coterie.privacy.ledger.chain import Entry, proven
from coterie.protocol.canonical import canonical_json
from coterie.protocol.conversion import to_json
from coterie.protocol.files import make_folder, write_durably

log = structlog.get_logger("coterie.server.checkpoints")


@dataclass(frozen=True)
class Checkpoints:
    """The files in ``folder``, which `of` has made.

    public: the coordinator's key, hex.
    """

    folder: Path
    public: str

    @staticmethod
    def of(folder: Path, *, inside: Path, public: str) -> "Checkpoints":
        """The checkpoints in a folder, which is made when absent.

        inside: the coordinator's own folder.
        Raises ConfigurationError (``ledger_checkpoints``) for a folder that cannot be written, and for one that would
        be lost or set back together with the database.
        """
        own = folder.absolute()
        if own.resolve().is_relative_to(inside.resolve()):
            raise _unusable(own, "it lies in the coordinator's own folder, and would be set back together with it")
        try:
            make_folder(own)
        except CoterieError as error:
            raise _unusable(own, error.message.rstrip(".")) from error
        if not os.access(own, os.W_OK):
            raise _unusable(own, "it cannot be written")
        return Checkpoints(own, public)

    def newest(self, population: str) -> Entry | None:
        """The newest entry that is known of a population's ledger; None before there is one.

        Raises StorageError (``ledger_checkpoint_damaged``) for a file that this coordinator did not write.
        """
        path = self.path(population)
        if not path.exists():
            return None
        try:
            entry = Entry.from_json(json.loads(path.read_text(encoding="utf-8")))
            why = proven(entry, self.public) if entry.population == population else "it is of another population"
        except (OSError, ValueError, CoterieError) as error:
            why = str(error)
            entry = None
        if entry is None or why is not None:
            raise StorageError(
                f"The checkpoint {path} of the privacy ledger of {population!r} cannot be read: {why}.",
                hint="Find out who changed it. Put back a copy; or check the ledger by a receipt that you kept"
                " (`coterie budget verify --receipt`) and remove the file. Until then this population spends no"
                " budget.",
                code="ledger_checkpoint_damaged",
            )
        return entry

    def write(self, entry: Entry) -> None:
        """Keep a committed entry. A failure is logged: the ledger itself is durable, only its guard stays behind."""
        try:
            write_durably(self.path(entry.population), canonical_json(to_json(entry)))
        except (OSError, CoterieError) as error:
            path = str(self.path(entry.population))
            log.error("ledger checkpoint cannot be written", path=path, entry=entry.sequence, why=str(error))

    def path(self, population: str) -> Path:
        """Where the checkpoint of a population lies."""
        return self.folder / f"{population}.json"


def _unusable(folder: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"Ledger checkpoints cannot be kept in {folder}: {why}.",
        hint="Give a folder on another disk or share (--ledger-checkpoints, COTERIE_LEDGER_CHECKPOINTS).",
        code="ledger_checkpoints",
    )
