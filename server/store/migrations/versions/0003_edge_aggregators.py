"""Edge aggregators: what they may speak for, what they hold of the coordinator above, and whose round answers it."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    for table in ("tokens", "devices"):
        with op.batch_alter_table(table, schema=None) as batch_op:
            batch_op.add_column(sa.Column("min_clients", sa.BigInteger(), nullable=True))
            batch_op.add_column(sa.Column("max_clients", sa.BigInteger(), nullable=True))
    with op.batch_alter_table("rounds", schema=None) as batch_op:
        batch_op.add_column(sa.Column("upstream", sa.String(length=64), nullable=True))
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.add_column(sa.Column("clients", sa.BigInteger(), server_default="1", nullable=False))
    op.create_table(
        "memberships",
        sa.Column("url", sa.String(length=400), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("population", sa.String(length=100), nullable=False),
        sa.Column("coordinator_key", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["population"],
            ["populations.name"],
        ),
        sa.PrimaryKeyConstraint("url"),
    )
    op.create_table(
        "upstream_tasks",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("experiment", sa.String(length=64), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("min_clients", sa.BigInteger(), nullable=False),
        sa.Column("upload", sa.String(length=64), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment"],
            ["experiments.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("upstream_tasks", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_upstream_tasks_experiment"), ["experiment"], unique=False)
        batch_op.create_index(batch_op.f("ix_upstream_tasks_state"), ["state"], unique=False)


def downgrade() -> None:
    """Take back."""
    op.drop_table("upstream_tasks")
    op.drop_table("memberships")
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.drop_column("clients")
    with op.batch_alter_table("rounds", schema=None) as batch_op:
        batch_op.drop_column("upstream")
    for table in ("devices", "tokens"):
        with op.batch_alter_table(table, schema=None) as batch_op:
            batch_op.drop_column("max_clients")
            batch_op.drop_column("min_clients")
