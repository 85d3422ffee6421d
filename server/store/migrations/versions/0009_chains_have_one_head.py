"""The audit trail and the privacy ledgers keep the ends of their chains in one table."""

import json

import sqlalchemy as sa
from alembic import op

from coterie.protocol.audit import action_digest
from coterie.protocol.canonical import GENESIS

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

AUDIT = sa.Table(
    "audit",
    sa.MetaData(),
    sa.Column("id", sa.BigInteger()),
    sa.Column("at", sa.BigInteger()),
    sa.Column("principal", sa.Text()),
    sa.Column("action", sa.Text()),
    sa.Column("target", sa.Text()),
    sa.Column("detail", sa.Text()),
    sa.Column("previous", sa.Text()),
    sa.Column("digest", sa.Text()),
)


def upgrade() -> None:
    """Apply. Digests of the audit trail are made anew, since they cover an entry's number now."""
    chains = op.create_table(
        "chains",
        sa.Column("name", sa.String(length=120), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.execute(
        "INSERT INTO chains (name, sequence, digest) SELECT 'ledger/' || population, sequence, digest FROM ledger_heads"
    )
    op.drop_table("ledger_heads")
    connection = op.get_bind()
    number, previous = 0, GENESIS
    for row in connection.execute(sa.select(AUDIT).order_by(AUDIT.c.id)).all():
        number += 1
        digest = action_digest(
            id=number, at_ms=row.at, actor=row.principal, action=row.action, subject=row.target,
            data=json.loads(row.detail), previous=previous,
        )  # fmt: skip
        connection.execute(
            AUDIT.update().where(AUDIT.c.id == row.id).values(id=number, previous=previous, digest=digest)
        )
        previous = digest
    op.bulk_insert(chains, [{"name": "audit", "sequence": number, "digest": previous}])
    with op.batch_alter_table("audit", table_args=(), recreate="always") as batch_op:
        batch_op.alter_column("id", existing_type=sa.BigInteger(), autoincrement=False)


def downgrade() -> None:
    """Take back; digests of the audit trail stay as they are."""
    op.create_table(
        "ledger_heads",
        sa.Column("population", sa.String(length=100), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["population"], ["populations.name"]),
        sa.PrimaryKeyConstraint("population"),
    )
    op.execute(
        "INSERT INTO ledger_heads (population, sequence, digest) SELECT substr(name, 8), sequence, digest FROM chains"
        " WHERE name LIKE 'ledger/%'"
    )
    op.drop_table("chains")
