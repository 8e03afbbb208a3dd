"""Which workers are alive, and what they have counted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "workers",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("revision", sa.String(100), nullable=False),
        sa.Column("started", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("workers_seen", "workers", ["seen"])
    op.create_table(
        "figures",
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("label", sa.String(40), primary_key=True),
        sa.Column("bound", sa.String(16), primary_key=True),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("figures")
    op.drop_table("workers")
