"""The versions of an experiment as a hash chain: each row of models has the head of the chain before it."""

import sqlalchemy as sa
from alembic import op

from coterie.protocol.lineage import GENESIS, LineageLink, head

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("models", schema=None) as batch_op:
        batch_op.add_column(sa.Column("before", sa.String(length=64), server_default=GENESIS, nullable=False))
    connection = op.get_bind()
    chain = (
        "SELECT m.experiment, e.plan, m.round, m.sha256 FROM models m JOIN experiments e ON e.id = m.experiment"
        " ORDER BY m.experiment, m.round"
    )
    heads: dict[str, str] = {}
    for experiment, plan, round, version in connection.execute(sa.text(chain)).all():
        before = heads.get(experiment, GENESIS)
        connection.execute(
            sa.text("UPDATE models SET before = :before WHERE experiment = :experiment AND round = :round"),
            {"before": before, "experiment": experiment, "round": round},
        )
        heads[experiment] = head(before, LineageLink(round=round, version=version), experiment=experiment, plan=plan)
    with op.batch_alter_table("models", schema=None) as batch_op:
        batch_op.alter_column("before", server_default=None)


def downgrade() -> None:
    """Take back."""
    with op.batch_alter_table("models", schema=None) as batch_op:
        batch_op.drop_column("before")
