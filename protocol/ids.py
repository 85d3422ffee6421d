"""Names for things.

A prefix that tells the kind, then a UUID version 7 (RFC 9562), so ids sort by the time they were made.
"""

import re
import secrets
import time
from typing import Final

from coterie import errors

EXPERIMENT: Final = "exp"
DEVICE: Final = "dev"
TASK: Final = "task"
TOKEN: Final = "tok"
ATTEMPT: Final = "att"
JOB: Final = "job"
RUNNER: Final = "run"
SESSION: Final = "ses"
PARTY: Final = "pty"

_PREFIX = re.compile(r"[a-z]{2,8}")


def new_id(prefix: str, *, now_ns: int | None = None, entropy: bytes | None = None) -> str:
    """A fresh id ``<prefix>_<32 hex digits>``.

    prefix: two to eight lower-case letters. The hex digits are a UUIDv7: 48 bits of Unix milliseconds, 12 bits of the
        fraction of that millisecond (RFC 9562 section 6.2, method 3), 62 random bits. now_ns and entropy (8 bytes) are
        given only by tests and vectors.
    Raises errors.InputError for a prefix of another form.
    """
    if not _PREFIX.fullmatch(prefix):
        raise errors.InputError(
            f"An id's prefix is two to eight lower-case letters; {prefix!r} is not.", code="prefix_invalid"
        )
    milliseconds, rest = divmod(time.time_ns() if now_ns is None else now_ns, 1_000_000)
    noise = int.from_bytes(secrets.token_bytes(8) if entropy is None else entropy, "big") & ((1 << 62) - 1)
    fraction = rest * 4096 // 1_000_000
    value = (milliseconds & ((1 << 48) - 1)) << 80 | 7 << 76 | fraction << 64 | 2 << 62 | noise
    return f"{prefix}_{value:032x}"


def pattern(prefix: str) -> str:
    """The regular expression that every id of this prefix matches as a whole."""
    return rf"^{prefix}_[0-9a-f]{{32}}$"
