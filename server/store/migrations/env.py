"""How Alembic runs a migration of the coordinator's database: on the connection that `coterie.server.store.migrate`
hands over.
"""

from typing import cast

from alembic import context
from sqlalchemy import Connection

from coterie.server.store.tables import Base


def run() -> None:
    """Run the pending migrations in one transaction."""
    attributes = context.config.attributes
    connection = cast("Connection", attributes["connection"])
    context.configure(
        connection=connection, target_metadata=Base.metadata, render_as_batch=True, transactional_ddl=True
    )
    with context.begin_transaction():
        context.run_migrations()


run()
