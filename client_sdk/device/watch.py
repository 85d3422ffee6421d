"""Which execution providers compute now, in a file that only a process leaves behind which ended without warning.

A driver that ends the process ends it in every task anew: the task in flight is worked on again at each start. So who
computed when the process ended is known at the next start, and after the second time is not asked again.
"""

import json
from pathlib import Path
from threading import Lock
from typing import Any, Final, cast

from coterie.compute.runtime.verdict import Identity, Verdict
from coterie.errors import StorageError
from coterie.protocol.files import write_durably

ENDS: Final = 2
"""Once may be a power cut, or the owner's doing."""
_FIELDS = ("provider", "version", "driver", "recipes")


class Watch:
    """How often in a row a process ended while a provider computed, in the file ``path``; without one nothing is kept.
    May be used from several threads.

    A file that cannot be read counts as none, one that cannot be written as written: without it a provider that ends
    the process is met again, and nothing worse.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = Lock()
        self._ends = {} if path is None else _read(path)
        self._now: set[Identity] = set()

    def suspects(self) -> list[Verdict]:
        """Verdicts on the providers that computed when the process ended, the last ``ENDS`` times. They are forgotten
        here when those who compute rest: the verdicts are for the store.
        """
        with self._lock:
            found = [each for each, ends in self._ends.items() if ends >= ENDS]
            self._now |= set(found)
        reason = f"the process ended while it computed, {ENDS} times in a row"
        return [Verdict(each, trusted=False, reason=reason) for each in found]

    def computes(self, identity: Identity) -> None:
        """It computes from here on, until ``rests``; durable when this returns."""
        with self._lock:
            if identity not in self._now:
                self._now.add(identity)
                self._ends[identity] = self._ends.get(identity, 0) + 1
                self._write()

    def rests(self, *, but: Identity | None = None) -> None:
        """All that computed in this process were outlived, ``but`` one that goes on."""
        with self._lock:
            if outlived := self._now - {but}:
                self._now -= outlived
                self._ends = {each: ends for each, ends in self._ends.items() if each not in outlived}
                self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        rows = [dict(zip((*_FIELDS, "ends"), (*_values(each), ends), strict=True)) for each, ends in self._ends.items()]
        try:
            write_durably(self._path, json.dumps(rows).encode())
        except StorageError:
            pass


def _values(identity: Identity) -> tuple[str, ...]:
    return identity.provider, identity.version, identity.driver, identity.recipes


def _read(path: Path) -> dict[Identity, int]:
    try:
        rows = cast("list[dict[str, Any]]", json.loads(path.read_bytes()))
        return {Identity(*(str(row[name]) for name in _FIELDS)): int(row["ends"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
