"""Whether a stored file still is what was stored: its name is the SHA-256 of its bytes."""

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


def damaged(path: Path, what: str) -> StorageError:
    """The error for a file that is missing or not what was stored."""
    missing = "is missing" if not path.exists() else "has changed since it was stored"
    return StorageError(
        f"The file {path} of {what} {missing}.",
        hint="Restore it from a backup of the coordinator's folder, and check the disk.",
        code=DAMAGED,
    )
