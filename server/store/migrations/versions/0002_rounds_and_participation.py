"""Buffered rounds, reservations, participation, and populations whose devices keep no state."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def counted_by_place(state: str) -> str:
    """A round's state whose tasks are counted by the place of their base; every task so far is at place 0."""
    value: dict[str, Any] = json.loads(state)
    if "leased" not in value:
        return state
    for old, new in (("leased", "leases"), ("accepted", "buffer")):
        count = value.pop(old)
        value[new] = {"0": count} if count else {}
    return json.dumps({**value, "waiting": {}}, sort_keys=True)


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("populations", schema=None) as batch_op:
        batch_op.add_column(sa.Column("client_state", sa.String(length=8), server_default="kept", nullable=False))
    with op.batch_alter_table("rounds", schema=None) as batch_op:
        batch_op.add_column(sa.Column("reserved", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("reserved_until", sa.BigInteger(), nullable=True))
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.add_column(sa.Column("place", sa.BigInteger(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("buffer", sa.BigInteger(), nullable=True))
        batch_op.create_index("ix_tasks_buffer", ["experiment", "buffer"], unique=False)
    # Every update accepted so far counts in the round that asked for it.
    op.execute("UPDATE tasks SET buffer = round WHERE kind = 'train' AND upload IS NOT NULL")
    rounds = sa.table("rounds", sa.column("experiment"), sa.column("number"), sa.column("state"))
    connection = op.get_bind()
    for experiment, number, state in connection.execute(sa.select(rounds)).all():
        connection.execute(
            sa.update(rounds)
            .where(rounds.c.experiment == experiment, rounds.c.number == number)
            .values(state=counted_by_place(state))
        )
    op.create_table(
        "participations",
        sa.Column("experiment", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("last_round", sa.BigInteger(), nullable=False),
        sa.Column("times", sa.BigInteger(), nullable=False),
        sa.Column("examples", sa.BigInteger(), nullable=False),
        sa.Column("loss", sa.Float(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["device"],
            ["devices.id"],
        ),
        sa.ForeignKeyConstraint(
            ["experiment"],
            ["experiments.id"],
        ),
        sa.PrimaryKeyConstraint("experiment", "device"),
    )


def downgrade() -> None:
    """Take back."""
    op.drop_table("participations")
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.drop_index("ix_tasks_buffer")
        batch_op.drop_column("buffer")
        batch_op.drop_column("place")
    with op.batch_alter_table("rounds", schema=None) as batch_op:
        batch_op.drop_column("reserved_until")
        batch_op.drop_column("reserved")
    with op.batch_alter_table("populations", schema=None) as batch_op:
        batch_op.drop_column("client_state")
