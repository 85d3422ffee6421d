"""Sessions and their parties; the mailbox holds their messages beside those of secure aggregation."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("terms", sa.Text(), nullable=False),
        sa.Column("party_quota", sa.BigInteger(), nullable=False),
        sa.Column("session_quota", sa.BigInteger(), nullable=False),
        sa.Column("message_ttl_ms", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
    )
    op.create_index("ix_sessions_state", "sessions", ["state", "expires_at"])
    op.create_table(
        "session_parties",
        sa.Column("session", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=64), nullable=False),
        sa.Column("token", sa.String(length=64), nullable=False),
        sa.Column("party", sa.String(length=64), nullable=True),
        sa.Column("public", sa.String(length=64), nullable=True),
        sa.Column("joined_at", sa.BigInteger(), nullable=True),
        sa.Column("seen_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"]),
        sa.ForeignKeyConstraint(["token"], ["tokens.id"]),
        sa.PrimaryKeyConstraint("session", "role", name=op.f("pk_session_parties")),
        sa.UniqueConstraint("token"),
        sa.UniqueConstraint("party"),
    )
    op.execute("CREATE TABLE mailbox_before AS SELECT * FROM mailbox")
    op.drop_table("mailbox")
    op.create_table(
        "mailbox",
        sa.Column("session", sa.String(length=64), nullable=False),
        sa.Column("stage", sa.String(length=32), nullable=False),
        sa.Column("sender", sa.String(length=64), nullable=False),
        sa.Column("recipient", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("parts", sa.String(length=128), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("is_whole", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("acknowledged_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("session", "stage", "sender", "recipient", "sequence", name=op.f("pk_mailbox")),
    )
    waiting = sa.text("expires_at IS NOT NULL AND acknowledged_at IS NULL")
    op.create_index(
        "ix_mailbox_waiting",
        "mailbox",
        ["session", "sender", "size", "expires_at"],
        sqlite_where=waiting,
        postgresql_where=waiting,
    )
    op.execute(
        "INSERT INTO mailbox (session, stage, sender, recipient, sequence, body, size, is_whole, created_at)"
        " SELECT session, phase, sender, '*', 0, CAST(bundle AS BLOB), size, true, created_at FROM mailbox_before"
    )
    op.drop_table("mailbox_before")


def downgrade() -> None:
    """Take back. Sessions and their messages go; what secure aggregation has in the mailbox stays."""
    op.execute("CREATE TABLE mailbox_before AS SELECT * FROM mailbox WHERE recipient = '*'")
    op.drop_table("mailbox")
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
    op.execute(
        "INSERT INTO mailbox (session, phase, sender, bundle, size, created_at)"
        " SELECT session, stage, sender, CAST(body AS TEXT), size, created_at FROM mailbox_before"
    )
    op.drop_table("mailbox_before")
    op.drop_table("session_parties")
    op.drop_table("sessions")
