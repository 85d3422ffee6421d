"""Whether a stored file is still there, and what was stored: its name is the SHA-256 of its bytes."""

import hashlib
from pathlib import Path
from typing import Final

from coterie.errors import StorageError

DAMAGED: Final = "blob_damaged"


def is_intact(path: Path) -> bool:
    """Whether the bytes of a file are those that it is named for; not where it is missing or cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == path.name
    except OSError:
        return False


def check_intact(path: Path, what: str) -> Path:
    """The path. what: the file is, for the message. Raises StorageError (``blob_damaged``)."""
    if not is_intact(path):
        raise damaged(path, what)
    return path


def lost(path: Path, what: str) -> StorageError:
    """The error where what the coordinator works on is no longer there. what: it is, for the message."""
    return StorageError(
        f"{what} {path} was deleted, moved or replaced while the coordinator runs; nothing more is accepted.",
        hint="Stop the coordinator, restore its folder from a backup or move it back, and start it again.",
        code="storage_lost",
    )


def damaged(path: Path, what: str) -> StorageError:
    """The error for a file that is missing or not what was stored."""
    missing = "is missing" if not path.exists() else "has changed since it was stored"
    return StorageError(
        f"The file {path} of {what} {missing}.",
        hint="Restore it from a backup of the coordinator's folder, and check the disk.",
        code=DAMAGED,
    )
