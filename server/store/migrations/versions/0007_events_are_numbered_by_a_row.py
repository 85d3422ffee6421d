"""Events take their numbers from a row that the transaction holds until it commits."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "counters",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_counters")),
    )
    op.execute("INSERT INTO counters (name, value) SELECT 'events', COALESCE(MAX(id), 0) FROM events")


def downgrade() -> None:
    """Take back."""
    op.drop_table("counters")
