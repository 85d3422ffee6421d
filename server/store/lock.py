"""The lock that keeps a second coordinator off a folder whose database allows one."""

import fcntl
import os
from pathlib import Path

from coterie.errors import ConfigurationError

LOCK_FILE = "coordinator.lock"


class FolderLock:
    """Holds an exclusive advisory lock on a file in the folder; the system releases it when the process ends, however
    it ends.
    """

    def __init__(self, folder: Path) -> None:
        """Take the lock. Raises ConfigurationError, naming the process that holds it."""
        path = folder / LOCK_FILE
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise ConfigurationError(
                f"Another coordinator (process {holder}) already uses the folder {folder}.",
                hint=f"Stop process {holder}, or give this coordinator another folder (COTERIE_FOLDER).",
                code="folder_in_use",
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back. The file stays: deleting it would let two processes lock two files of one name."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
