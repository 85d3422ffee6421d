"""A run's claim on its folder: two runs that write to one folder would leave files of both."""

import fcntl
import os
import weakref
from pathlib import Path

from coterie.errors import ConfigurationError
from coterie.protocol.files import storage_error

FILE = "run.lock"


class Claim:
    """Holds the folder until it is forgotten or the process ends, however it ends.

    The claim is a process's: a notebook whose run was interrupted, and which still holds on to the error, may run
    again. Where the file system has no locks there is no claim.
    """

    def __init__(self, folder: Path) -> None:
        """Claim the folder. Raises ConfigurationError (``run_in_use``), naming the process that has it, or
        StorageError.
        """
        path = folder / FILE
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise storage_error(path, error) from error
        # The file stays: were it deleted, two processes could hold two files of one name.
        weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise ConfigurationError(
                f"Another run (process {holder}) keeps its versions and checkpoints in {folder}.",
                hint="Wait until it ends, or give this one another folder: simulate(..., folder=), or a name of "
                "its own.",
                code="run_in_use",
            ) from None
        except OSError:
            return
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
