"""Folders and files that hold secrets: for this user alone, whatever the umask says and whoever made them before."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from coterie.errors import ConfigurationError
from coterie.protocol.files import storage_error

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_COMPANIONS: Final = ("", "-wal", "-shm", "-journal")
"""What SQLite calls the files beside a database; it makes them with the permissions of the database."""


def make_private_folder(folder: Path) -> None:
    """Make a folder, with its parents, that only this user may enter; an existing one of this user is closed to others.

    A folder of another user stays as it is (a volume that a service manager mounted): what is private in it is so by
    its own permissions. So does one for everybody, like ``/tmp``. Raises errors.StorageError (a file in the way, no
    permission).
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        if _owned_by_us(found) and found.st_mode & _OTHERS and not found.st_mode & stat.S_ISVTX:
            folder.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)
    except OSError as error:
        raise storage_error(folder, error) from error


def make_private_database(path: Path) -> None:
    """Make a file for SQLite that only this user may read, before anything is in it; an existing one, and what SQLite
    keeps beside it, is closed to others.

    Raises errors.ConfigurationError (``database_exposed``) for a file of another user that others may read,
    errors.StorageError (no permission).
    """
    try:
        # A file that is there is not opened: closing it again would drop the locks that SQLite holds on it in this
        # process (POSIX locks belong to processes).
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        for companion in _COMPANIONS:
            _close_to_others(path.with_name(path.name + companion))
    except OSError as error:
        raise storage_error(path, error) from error


def _close_to_others(path: Path) -> None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if os.name != "posix" or not found.st_mode & _OTHERS:
        return
    if not _owned_by_us(found):
        raise ConfigurationError(
            f"Other users may read {path}, which holds secrets, and it belongs to another user.",
            hint=f"Run as its owner: chmod 600 '{path}'",
            code="database_exposed",
        )
    path.chmod(0o600)


def _owned_by_us(status: os.stat_result) -> bool:
    return os.name == "posix" and status.st_uid == os.geteuid()
