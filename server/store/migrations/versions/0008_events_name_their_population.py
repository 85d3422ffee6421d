"""Events name their population, so that a token for one population sees its own."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply. Events of before are seen by their experiment; the few that have none, by tokens for all populations."""
    op.add_column("events", sa.Column("population", sa.String(length=100), nullable=True))


def downgrade() -> None:
    """Take back."""
    op.drop_column("events", "population")
