"""What the coordinator says when the files that it works on are gone."""

from pathlib import Path

from coterie.errors import StorageError
from coterie.server.store.blob_reader import DAMAGED


def lost(path: Path, what: str) -> StorageError:
    """The error where what the coordinator works on is no longer there.

    what: it is, for the message.
    """
    return StorageError(
        f"{what} {path} was deleted, moved or replaced while the coordinator runs; nothing more is accepted.",
        hint="Stop the coordinator, restore its folder from a backup or move it back, and start it again.",
        code="storage_lost",
    )


def missing(path: Path) -> StorageError:
    """The error for a file of the coordinator that is gone."""
    return StorageError(
        f"The file {path} of the coordinator is missing.",
        hint="Restore it from a backup of the coordinator's folder, and check the disk.",
        code=DAMAGED,
    )
