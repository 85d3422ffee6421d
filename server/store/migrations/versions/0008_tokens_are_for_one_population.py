"""Events and blobs know whose they are, so that a token for one population meets only its own."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply. Events of before are seen by their experiment; the few that have none, by tokens for all populations."""
    op.add_column("events", sa.Column("population", sa.String(length=100), nullable=True))
    op.create_table(
        "blob_populations",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("population", sa.String(length=100), nullable=False),
        sa.ForeignKeyConstraint(["sha256"], ["blobs.sha256"]),
        sa.ForeignKeyConstraint(["population"], ["populations.name"]),
        sa.PrimaryKeyConstraint("sha256", "population"),
    )


def downgrade() -> None:
    """Take back."""
    op.drop_table("blob_populations")
    op.drop_column("events", "population")
