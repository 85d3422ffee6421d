"""Files that are either whole or absent: written beside their name, synced, then renamed, then the folder synced."""

import errno
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from coterie import errors

Chunk = bytes | bytearray | memoryview


def write_durably(path: Path, chunks: Iterable[Chunk] | Chunk, *, mode: int = 0o644) -> None:
    """Write the chunks to `path`, replacing what is there.

    Guarantees: when this returns, content and name survive a power cut; at any earlier moment `path` is what it was
    before. The temporary file lies in the same folder (``.<name>.<hex>.part``) and is removed on failure. Raises
    errors.StorageError (a full disk, no permission).
    """
    _write(path, chunks, mode, os.replace)


def create_durably(path: Path, chunks: Iterable[Chunk] | Chunk, *, mode: int = 0o644) -> bool:
    """Like `write_durably`, but leaves an existing `path` alone and returns False.

    Of two racing writers exactly one gets True.
    """
    try:
        _write(path, chunks, mode, _link)
    except FileExistsError:
        return False
    return True


def make_folder(folder: Path) -> None:
    """Make the folder and its parents, if absent. Raises errors.StorageError (a file in the way, no permission)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(folder, error) from error


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable (a no-op where the system has no such call)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, chunks: Iterable[Chunk] | Chunk, mode: int, publish: Callable[[Path, Path], None]) -> None:
    part = path.with_name(f".{path.name[:64]}.{secrets.token_hex(8)}.part")
    try:
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                for chunk in (chunks,) if isinstance(chunks, bytes | bytearray | memoryview) else chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            publish(part, path)
            sync_folder(path.parent)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except FileExistsError:
        raise
    except OSError as error:
        raise storage_error(path, error) from error


def _link(part: Path, path: Path) -> None:
    os.link(part, path)
    part.unlink()


_HINTS = {
    errno.ENOSPC: "Free space on that disk and try again; nothing was lost.",
    errno.EDQUOT: "The disk quota is used up; free space or raise it, then try again; nothing was lost.",
    errno.EFBIG: "Free space on that disk, or raise the limit on the size of files; nothing was lost.",
    errno.EIO: "Free space on that disk and check it, then try again; nothing was lost.",
    errno.ENOTDIR: "Name another place: there is a file where a folder is needed.",
    errno.EACCES: "Give this user write permission on the folder.",
    errno.EPERM: "Give this user write permission on the folder.",
    errno.EROFS: "The file system is read-only; choose another folder (--store of a client, --folder of a server).",
    errno.ENOENT: "Create the folder first.",
}


def storage_error(path: Path, error: OSError) -> errors.StorageError:
    """The coterie error for an operating system's refusal to read or write `path`."""
    return errors.StorageError(
        f"Cannot use {path}: {os.strerror(error.errno) if error.errno else error}.",
        hint=_HINTS.get(error.errno or 0),
        path=str(path),
    )
