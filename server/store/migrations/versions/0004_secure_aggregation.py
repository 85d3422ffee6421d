"""Secure aggregation: its attempts, the mailbox of its clients, and which attempt a task is part of."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "attempts",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("experiment", sa.String(length=64), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("bucket", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("state", sa.Text(), nullable=True),
        sa.Column("deadline_at", sa.BigInteger(), nullable=True),
        sa.Column("cause", sa.String(length=64), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("awaited", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("clients", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("survivors", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment"],
            ["experiments.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("experiment", "round", "kind", "bucket"),
    )
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.create_index("ix_attempts_phase", ["phase", "deadline_at"], unique=False)
    op.create_table(
        "mailbox",
        sa.Column("session", sa.String(length=64), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("sender", sa.String(length=64), nullable=False),
        sa.Column("bundle", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("session", "phase", "sender"),
    )
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.add_column(sa.Column("attempt", sa.String(length=64), nullable=True))
        batch_op.create_index("ix_tasks_attempt", ["attempt", "state"], unique=False)


def downgrade() -> None:
    """Take back."""
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.drop_index("ix_tasks_attempt")
        batch_op.drop_column("attempt")
    op.drop_table("mailbox")
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_index("ix_attempts_phase")
    op.drop_table("attempts")
