"""Bringing a database to the schema of this code. Runs at start, before anything else opens the database."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from coterie.errors import ConfigurationError, StorageError
from coterie.server.store.dialect import blocking_engine, file_of, is_full

Result = TypeVar("Result")
log = structlog.get_logger("coterie.server")
MIGRATIONS = Path(__file__).parent / "migrations"


def _script() -> tuple[Config, ScriptDirectory]:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config, ScriptDirectory.from_config(config)


def head() -> str:
    """The newest revision that this code knows."""
    revision = _script()[1].get_current_head()
    if revision is None:
        raise ConfigurationError(
            f"There are no migrations in {MIGRATIONS}.", hint="Reinstall coterie: its package data is missing."
        )
    return revision


def _with_connection(url: str, act: Callable[[Connection], Result]) -> Result:
    engine = blocking_engine(url)
    try:
        with engine.begin() as connection:
            return act(connection)
    finally:
        engine.dispose()


def current(url: str) -> str | None:
    """The revision that the database is at, or None for an empty one."""

    def revision(connection: Connection) -> str | None:
        return MigrationContext.configure(connection).get_current_revision()

    return _with_connection(url, revision)


def migrate(url: str) -> str:
    """Upgrade to `head` and return it. Raises ConfigurationError for a database that is newer than the code, and leaves
    it untouched; StorageError where the disk has no room.
    """
    config, script = _script()
    found, newest = current(url), head()
    known = {revision.revision for revision in script.walk_revisions()}
    if found is not None and found not in known:
        raise ConfigurationError(
            f"The database is at revision {found!r}, which this version of coterie does not know: it was written "
            "by a newer one.",
            hint="Start the newer version, or restore a backup made before the upgrade.",
            code="database_newer",
        )
    if found == newest:
        return newest

    def upgrade(connection: Connection) -> None:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    try:
        _with_connection(url, upgrade)
    except DBAPIError as error:
        if not is_full(error):
            raise
        raise StorageError(
            f"There is no space for the database {file_of(url)}: {error.orig}.",
            hint="Free space on that disk and start again; nothing was lost.",
            code="storage_full",
        ) from error
    if found is not None:
        log.warning("database migrated", revision_before=found, revision=newest)
    return newest
