"""The locks that keep a second coordinator off a folder, and off a database, that allow one."""

import fcntl
import os
from pathlib import Path
from typing import Final

from coterie.errors import ConfigurationError

LOCK_FILE: Final = "coordinator.lock"


class FileLock:
    """Holds an exclusive advisory lock on a file; the system releases it when the process ends, however it ends."""

    def __init__(self, path: Path, what: str, *, hint: str, code: str) -> None:
        """Take the lock.

        what: is locked, for the message, with hint and code.
        Raises ConfigurationError, naming the process that holds it; OSError.
        """
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise ConfigurationError(
                f"Another coordinator (process {holder}) already uses {what}.",
                hint=f"Stop process {holder}, or {hint}",
                code=code,
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back. The file stays: deleting it would let two processes lock two files of one name."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def lock_folder(folder: Path) -> FileLock:
    """The lock of a coordinator's folder. Raises ConfigurationError ``folder_in_use``, OSError."""
    hint = "give this coordinator another folder (COTERIE_FOLDER)."
    return FileLock(folder / LOCK_FILE, f"the folder {folder}", hint=hint, code="folder_in_use")


def lock_database(file: Path) -> FileLock:
    """The lock of a database, which coordinators of two folders could share. Raises ConfigurationError
    ``database_in_use``, OSError.
    """
    hint = "give this coordinator another database (COTERIE_DATABASE_URL)."
    return FileLock(file.with_name(f"{file.name}.lock"), f"the database {file}", hint=hint, code="database_in_use")
