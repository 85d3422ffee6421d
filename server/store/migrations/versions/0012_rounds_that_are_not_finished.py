"""Rounds for which something is due are found without reading those that are over."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_index(
        "ix_rounds_unfinished",
        "rounds",
        ["created_at", "experiment"],
        sqlite_where=sa.text("cleaned IS 0"),
        postgresql_where=sa.text("cleaned IS false"),
    )


def downgrade() -> None:
    """Take back."""
    op.drop_index("ix_rounds_unfinished", table_name="rounds")
