"""A device's memory of its execution providers: which are trusted and which are in quarantine, and why."""

import time
from collections.abc import Mapping
from typing import Final

from coterie.client_sdk.device.database import ClientDatabase
from coterie.compute.runtime.verdict import Identity, Verdict

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS providers (
    provider TEXT NOT NULL, version TEXT NOT NULL, driver TEXT NOT NULL, recipes TEXT NOT NULL, trusted INTEGER
    NOT NULL, reason TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (provider, version, driver, recipes));
"""


class Verdicts:
    """The rows of verdicts, one for each provider, version and driver, and for what it was tried with."""

    def __init__(self, database: ClientDatabase) -> None:
        self._database = database

    def recall(self) -> Mapping[Identity, Verdict]:
        """All that is remembered."""
        rows = self._database.execute("SELECT provider, version, driver, recipes, trusted, reason FROM providers")
        found = [Verdict(Identity(*row[:4]), bool(row[4]), str(row[5])) for row in rows]
        return {verdict.identity: verdict for verdict in found}

    def record(self, verdict: Verdict) -> None:
        """Remember a verdict in place of an older one; durable when this returns."""
        it = verdict.identity
        values = (it.provider, it.version, it.driver, it.recipes, int(verdict.trusted), verdict.reason, time.time())
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO providers VALUES (?, ?, ?, ?, ?, ?, ?)", values)
