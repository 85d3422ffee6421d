"""Bringing a database to the schema of this code. Runs at start, before anything else opens the database."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, make_url
from sqlalchemy.pool import NullPool

from coterie.errors import ConfigurationError

Result = TypeVar("Result")
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
    # Alembic is synchronous; a short-lived synchronous connection before the asynchronous engine opens is simpler than
    # bridging the two.
    engine = create_engine(make_url(url).set(drivername=make_url(url).get_backend_name()), poolclass=NullPool)
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
    it untouched.
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

    _with_connection(url, upgrade)
    return newest
