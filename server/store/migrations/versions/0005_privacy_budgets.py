"""Privacy budgets: an operator's floor for each population, and its ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

GENESIS = "0" * 64


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("populations", schema=None) as batch_op:
        batch_op.add_column(sa.Column("policy", sa.Text(), server_default="{}", nullable=False))
    op.create_table(
        "ledger_heads",
        sa.Column("population", sa.String(length=100), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["population"],
            ["populations.name"],
        ),
        sa.PrimaryKeyConstraint("population"),
    )
    op.create_table(
        "ledger",
        sa.Column("population", sa.String(length=100), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("previous", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("signature", sa.String(length=88), nullable=False),
        sa.ForeignKeyConstraint(
            ["population"],
            ["populations.name"],
        ),
        sa.PrimaryKeyConstraint("population", "sequence"),
    )
    op.execute(f"INSERT INTO ledger_heads (population, sequence, digest) SELECT name, 0, '{GENESIS}' FROM populations")


def downgrade() -> None:
    """Take back."""
    op.drop_table("ledger")
    op.drop_table("ledger_heads")
    with op.batch_alter_table("populations", schema=None) as batch_op:
        batch_op.drop_column("policy")
