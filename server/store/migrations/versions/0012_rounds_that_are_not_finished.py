"""Rounds for which something is due are found without reading those that are over, and say whether they are noised."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_index(
        "ix_rounds_unfinished",
        "rounds",
        ["created_at", "experiment"],
        sqlite_where=sa.text("cleaned IS 0"),
        postgresql_where=sa.text("cleaned IS false"),
    )
    rows = op.get_bind().execute(
        sa.text(
            "SELECT r.experiment, r.number, r.state, e.request FROM rounds r JOIN experiments e ON e.id = r.experiment"
            " WHERE NOT r.cleaned"
        )
    )
    for experiment, number, state, request in rows.all():
        value: dict[str, Any] = json.loads(state)
        value["config"]["noised"] = _is_noised(json.loads(request).get("privacy"))
        op.get_bind().execute(
            sa.text("UPDATE rounds SET state = :state WHERE experiment = :experiment AND number = :number"),
            {"state": json.dumps(value), "experiment": experiment, "number": number},
        )


def _is_noised(privacy: dict[str, Any] | None) -> bool:
    """Whether the coordinator itself adds the noise that a request asks for, as at this revision."""
    if privacy is None or privacy.get("level") != "user":
        return False
    return privacy.get("mechanism") not in ("discrete_gaussian", "skellam")


def downgrade() -> None:
    """Take back."""
    op.drop_index("ix_rounds_unfinished", table_name="rounds")
